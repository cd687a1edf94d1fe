"""Guide to the numbers of a whole step: rewards, lengths, the engine, counters, time. Torch-free."""

from ppo_lightning.metrics.spec import Guide

SCORES = (
    Guide(
        ("critic/score/*",),
        "Score of each response as the reward gave it: what the run is for.",
        "The mean rises. With rewards of 0 and 1 there is most to learn between 0.1 and 0.9.",
        "At 0: too hard, or the reward cannot read the answers; run `reward-check` on the run directory. Near the top: "
        "too easy; harder prompts, or `algorithm.filter_groups`. A jump to the top: read the best responses in "
        "rollouts/, it may be gamed.",
    ),
    Guide(
        ("critic/rewards/*",),
        "Score less the KL penalty: what advantages are made of.",
        "Equal to the score without `algorithm.use_kl_in_reward`, else a little below.",
        "If the penalty eats the score, lower `algorithm.kl_coef`.",
    ),
    Guide(
        ("critic/advantages/*",),
        "How much better each token's response did than expected; weighed by tokens, so long responses count more.",
        "Mean near 0. Whitened or divided by the group's deviation: extremes within 5 (with n rollouts a group's "
        "largest is at most (n - 1) / sqrt(n)).",
        "All 0: no group has differing scores; easier or harder prompts, more `rollout.rollouts_per_prompt`. Extremes "
        "far out: one reward is out of scale.",
    ),
    Guide(
        ("critic/returns/*",),
        "What the critic is trained towards (without one: the advantages or the reward to go).",
        "On the scale of the rewards.",
        "Extremes that grow: look for an unbounded part of the reward.",
    ),
    Guide(
        ("critic/values/*",),
        "The critic's expectations before the update.",
        "Within the range of the returns.",
        "Outside it: the critic diverges; lower `critic.lr` and look at `critic/vf_explained_var`.",
    ),
    Guide(
        ("reward/<column>/*",),
        "Each number that the reward function returns beside the score, and each part of a combined reward, over the "
        "rows that have it.",
        "Yours to say; with several parts none should pay for the fall of another.",
        "If a part rises while the task's own falls, lower its weight in `reward.parts`.",
    ),
    Guide(
        ("reward/timeout",),
        "Samples whose reward took longer than `reward.timeout_s`; the worker was killed.",
        "0.",
        "Raise the limit or mend the function: the response is in rollouts/ with `reward_fault` beside it.",
    ),
    Guide(
        (
            "reward/exception",
            "reward/none",
            "reward/nan",
            "reward/wrong_type",
            "reward/missing_score",
            "reward/too_few",
        ),
        "Samples whose reward raised, or returned nothing, NaN, no number, a dict without `score`, or too few scores.",
        "0.",
        "The traceback is in rollouts/ (`reward_detail`); `reward-check` repeats it without a model. "
        "`reward.on_error` decides what becomes of the sample.",
    ),
    Guide(
        ("reward/worker_death",),
        "Samples that killed their worker process twice.",
        "0.",
        "Usually memory: raise `reward.memory_mb`, or look for native code that crashes.",
    ),
)

LENGTHS = (
    Guide(
        (
            "response_length/mean",
            "response_length/max",
            "response_length/min",
            "response_length_non_aborted/mean",
            "response_length_non_aborted/max",
            "response_length_non_aborted/min",
        ),
        "Tokens generated, over all rows or over those with any.",
        "Steady, or slow growth where longer reasoning pays.",
        "Falling to a few tokens with a rising score: brevity is rewarded. Growing to the limit without a gain: use "
        "`reward.manager=dapo` with an overlong buffer, or `seq-mean-token-sum-norm`, which does not favour length.",
    ),
    Guide(
        ("response_length/clip_ratio", "response_length_non_aborted/clip_ratio"),
        "Share of responses that were cut off at `rollout.response_tokens`.",
        "Below 0.05.",
        "Above 0.1: raise `rollout.response_tokens`, punish it (overlong buffer) or leave them out "
        "(`algorithm.mask_truncated`). Near 1: the model never stops, check chat template and end-of-sequence tokens.",
    ),
    Guide(
        ("response/aborted_ratio",),
        "Responses without a token.",
        "0.",
        "The engine gave up: `finish_reason` in rollouts/, and `rollout.response_tokens` against the model's context.",
    ),
    Guide(
        ("prompt_length/*",),
        "Tokens of the prompts, chat template included; `clip_ratio`: as long as `data.max_prompt_tokens`.",
        "As your data is; the share at the limit near 0.",
        "A mean far below the limit costs nothing. If the start says that many prompts were left out, raise the limit.",
    ),
)

ENGINE = (
    Guide(
        ("training/rollout_probs_diff_valid",),
        "Whether there was anything to compare.",
        "1.",
        "0: the step had no valid token; look at `response/aborted_ratio`.",
    ),
    Guide(
        ("training/rollout_probs_diff_mean", "training/rollout_probs_diff_std", "training/rollout_probs_diff_max"),
        "Difference of the probabilities that engine and trainer give the sampled tokens.",
        "Mean about 1e-5 in float32, 1e-2 with bfloat16 on a side; single tokens ten times that (docs/engines.md).",
        "Wider from the start: types, temperature or chat template differ. A jump: stale weights. "
        "`rollout.max_probs_diff` stops the run at a bound of yours.",
    ),
    Guide(
        ("training/rollout_actor_probs_pearson_corr",),
        "Correlation of the two probabilities.",
        "Above 0.999 in float32, above 0.99 in bfloat16.",
        "As for `training/rollout_probs_diff_mean`.",
    ),
    Guide(
        ("training/rollout_probs_diff_alarm",),
        "1 when the mean difference is more than rounding explains; a line on the console says so too.",
        "0.",
        "Do not train on: find the cause (docs/engines.md) or correct with `rollout_correction.rollout_is=token`.",
    ),
    Guide(
        ("training/rollout_servers_lost", "training/rollout_requests_moved"),
        "Servers that stopped answering during the step, and requests that others took over.",
        "0.",
        "Look at the server's log; a lost one takes part again after the next sync.",
    ),
)

COUNTERS = (
    Guide(
        ("training/global_step", "training/epoch"),
        "Training steps done, and passes over the training prompts before this step.",
        "One more each step; few passes, unless the prompts are few.",
        "Scores that rise in training and stall in validation over many passes: more prompts, or stop.",
    ),
    Guide(
        ("training/skipped_steps", "training/nonfinite_values"),
        "Steps without an update because a number was not finite (the optimizer steps that such a step took before are "
        "undone, `trainer.undo_bad_steps`), and such values in metrics.",
        "0.",
        "Weights stay as they were. Lower `actor.lr`, look at that step's rollouts and rewards; the run stops after "
        "`trainer.max_skipped_steps` in a row.",
    ),
    Guide(
        ("training/empty_minibatches",),
        "Mini-batches in which no token counts: no optimizer step.",
        "0.",
        "Masking takes everything: truncation (`algorithm.mask_truncated`), rejection, dropped samples, or groups "
        "without signal.",
    ),
    Guide(
        ("training/num_gen_batches", "training/dropped_groups"),
        "Dynamic sampling: rollout batches drawn for the step, and groups thrown away because all scores were equal.",
        "1 to 3 batches.",
        "At `algorithm.filter_groups_max_batches`: most prompts are too easy or too hard; sort them out in advance, or "
        "raise `rollout.rollouts_per_prompt`.",
    ),
    Guide(
        ("training/equal_score_groups",),
        "Share of the groups whose responses all score the same: they teach nothing.",
        "Below 0.6; it is high at first on hard prompts and at the end on easy ones.",
        "Above 0.8: prompts of another difficulty, more `rollout.rollouts_per_prompt`, or `algorithm.filter_groups`.",
    ),
    Guide(
        ("training/warnings", "training/records_lost"),
        "Conditions that deserve a warning and hold now; rollout dumps and logger calls that failed.",
        "0.",
        "The console and warnings.jsonl say what to do. Lost records: a full disk, or a logger without a network.",
    ),
    Guide(
        ("global_seqlen/*",),
        "Tokens per rank, before and after rows are spread by workload.",
        "After balancing, largest and smallest within a few per cent.",
        "Still apart: one very long row; lower `rollout.response_tokens` or take more rows per rank. Uneven before "
        "balancing is what it is for.",
    ),
)

SECONDS = (
    Guide(
        ("timing_s/step", "perf/time_per_step"),
        "Wall seconds of a step: all stages, without validation and saving.",
        "Steady; it follows the response length.",
        "Growing with steady lengths: memory is swapped or another job runs. Where it goes: the timers below.",
    ),
    Guide(
        ("timing_s/gen", "timing_per_token_ms/gen"),
        "Generation, without waiting for late rewards.",
        "The largest part of the step, usually more than half.",
        "docs/performance.md: another engine, more `rollout.sequences_per_batch`, shorter `rollout.response_tokens`; "
        "one long response holds up the batch.",
    ),
    Guide(
        ("timing_s/reward", "timing_s/reward_busy"),
        "Waiting for rewards after generation (`reward`), and seconds spent in rewards by all workers (`reward_busy`).",
        "Waiting near 0: rule rewards run while others still generate.",
        "Waiting: raise `reward.workers`, or speed up the function; `reward_busy` / workers is the least it can take.",
    ),
    Guide(
        (
            "timing_s/old_log_prob",
            "timing_s/ref",
            "timing_s/values",
            "timing_per_token_ms/ref",
            "timing_per_token_ms/values",
        ),
        "One forward over the step's rows: old policy, reference, critic.",
        "Each about a third of an update (forward against forward and backward).",
        "`old_log_prob` falls away with one optimizer step per rollout; the reference with KL off. Larger "
        "`update.sequences_per_microbatch` or a token budget, if memory allows.",
    ),
    Guide(
        ("timing_s/align", "timing_s/adv", "timing_per_token_ms/adv"),
        "Joining and checking the batch; rewards, correction, advantages.",
        "Milliseconds.",
        "Seconds are a fault of ours, or of an estimator of your own.",
    ),
    Guide(
        ("timing_s/update*actor", "timing_s/update*critic", "timing_s/update", "timing_per_token_ms/update_*"),
        "Forward, backward and optimizer of the actor, the critic, and both.",
        "The second largest part; the same per token from step to step.",
        "Larger micro-batches by tokens (`update.tokens_per_microbatch`), `update.share_prompts`; without need no "
        "`model.gradient_checkpointing`.",
    ),
    Guide(
        ("timing_s/update_weights",),
        "Handing the policy's weights to the engine and proving that they arrived.",
        "0 with the transformers engine, else a few per cent of the step.",
        "`rollout.check_weights=false` saves the proof; keep it until the run is known to be sound.",
    ),
    Guide(
        ("timing_s/save_checkpoint", "timing_s/testing"),
        "Saving and validation, on the steps that do so; not part of `timing_s/step`.",
        "Small over the whole run.",
        "Raise `checkpoint.every_steps` or `validation.every_steps`; `data.max_val_rows`, fewer "
        "`validation.samples_per_prompt`.",
    ),
    Guide(
        ("timing_s/<timer>",),
        "Any other timer: `gen_max` is ReMax's greedy rollout; the rest carry their stage's name.",
        "Small.",
        "Look at the stage of that name.",
    ),
    Guide(
        ("perf/total_num_tokens", "perf/throughput"),
        "Prompt and response tokens of the step, and how many of them a device gets through per second of the step.",
        "Steady, or growing with the response length.",
        "Compare settings by throughput, at the same lengths; by seconds per step only at the same number of tokens.",
    ),
    Guide(
        ("perf/padding_ratio",),
        "Tokens computed in the updates, padding included, over tokens that count, a shared prompt once.",
        "1.00 where rows are packed (`update.share_prompts`); up to 1.1 where the model allows only padded rows.",
        "`update.tokens_per_microbatch` puts rows of similar length together; more rows per step make them more alike.",
    ),
    Guide(
        ("perf/forward_only_rows",),
        "Rows of the updates that were only run forward: their advantages are 0 and nothing else is in the loss.",
        "The share of groups with equal rewards (`training/equal_score_groups`); 0 with an entropy bonus or a KL loss.",
        "Near 1 a step is cheap and teaches nothing: other prompts, or `algorithm.filter_groups`.",
    ),
    Guide(
        ("perf/mfu/*",),
        "Share of the device's peak that the model's own operations reach.",
        "Training 0.2 to 0.5 on a GPU, a forward alone more.",
        "Below 0.1: micro-batches are too small, or padding is computed; `update.tokens_per_microbatch`.",
    ),
    Guide(
        ("variance_proxy/*",),
        "Proxies of the gradient: signal (squared norm of the mean), total power, pure noise, and their factors.",
        "The noise well below the signal; both fall as the score saturates.",
        "Noise far above the signal: more prompts or rollouts per step, or a better baseline.",
    ),
)
