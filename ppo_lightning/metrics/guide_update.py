"""Guide to the numbers of updates: the policy, the critic, rollout correction. Torch-free."""

from ppo_lightning.metrics.spec import Guide

POLICY = (
    Guide(
        ("actor/pg_loss",),
        "The policy objective that is minimised, aggregated by `update.loss_agg_mode`.",
        "Near 0 and without a trend: advantages are centred, so its size says nothing about progress.",
        "Do not tune by it. If it jumps, look at `critic/advantages/max`, `actor/ppo_kl` and `actor/grad_norm` of the "
        "same step.",
    ),
    Guide(
        ("actor/loss",),
        "What the actor's backward starts from: policy loss - entropy_coeff x entropy + kl_loss_coef x KL.",
        "Equal to `actor/pg_loss` while both additions are off; else the additions stay smaller than what they add to.",
        "If an addition dominates, lower `actor.entropy_coeff` or `actor.kl_loss_coef`.",
    ),
    Guide(
        ("actor/pg_clipfrac",),
        "How often the clip stops a token from moving further in the direction of its advantage (`clip_cov`: tokens "
        "taken out; `dppo_*`: tokens beyond the divergence bound).",
        "Exactly 0 with one optimizer step per rollout, 0.01 to 0.2 with several. `gspo` clips whole sequences in a "
        "narrow band: far more is normal there.",
        "Above 0.3: rollouts are used up; lower `actor.lr` or `update.ppo_epochs`, or raise "
        "`update.sequences_per_minibatch`. 0 with several optimizer steps: the learning rate does nothing.",
    ),
    Guide(
        ("actor/pg_clipfrac_lower",),
        "Tokens with a negative advantage whose ratio reached `actor.clip_ratio_c` (dual clip).",
        "Below 0.01.",
        "If it rises, the policy raises what it should lower: lower `actor.lr`; in bypass mode look at the gap to the "
        "engine first.",
    ),
    Guide(
        ("actor/ppo_kl",),
        "How far the policy moved from the one that sampled: mean of old - new log-prob (k1; `kl_cov`: its size).",
        "0 with one optimizer step per rollout, else between -0.01 and 0.05. A sampled estimate: slightly negative is "
        "normal.",
        "Above 0.1: fewer `update.ppo_epochs`, larger mini-batches or a lower `actor.lr`. Clearly above 0 in the first "
        "mini-batch: old and new forward differ (type, dropout), which is a fault.",
    ),
    Guide(
        ("actor/entropy", "actor/entropy_loss"),
        "How undecided the policy is at each response token, at the sampling temperature. `entropy_loss` is the same "
        "of the policy being trained. Nats per token with the token-mean; other aggregations scale it.",
        "Starts between 0.1 and 1.5 for chat models and falls slowly; the score rises meanwhile.",
        "Towards 0 with a stalled score: exploration has ended; raise `actor.clip_ratio_high` (0.28), add "
        "`actor.entropy_coeff=0.001`, or use `actor.policy_loss=clip_cov` or `kl_cov`. Rising with a falling score: "
        "too high a learning rate or entropy bonus, or stale engine weights.",
    ),
    Guide(
        ("actor/kl_loss",),
        "Distance to the reference policy as it stands in the loss.",
        "Exactly 0 in the first mini-batch, then slow growth; below 0.1 for light tuning, below 0.3 in long runs.",
        "Not 0 at first: the reference is another model, or read in another type. Growing without end: raise "
        "`actor.kl_loss_coef` or lower `actor.lr`.",
    ),
    Guide(
        ("actor/kl_coef",),
        "The weight of the KL loss.",
        "`actor.kl_loss_coef`, constant.",
        "It is an option, not a result.",
    ),
    Guide(
        ("actor/kl_clamped_frac",),
        "Tokens so far from the reference that the value of k3 is limited to 10 (the gradient still points back).",
        "0.",
        "Above 0.001: the policy has left the reference behind; raise `actor.kl_loss_coef`, lower `actor.lr`, or "
        "check that the reference is the model that you started from.",
    ),
    Guide(
        ("actor/grad_norm",),
        "Length of the gradient before clipping, averaged over the step's optimizer steps.",
        "The same order of magnitude through the run, mostly below `actor.grad_clip`.",
        "Always above the clip: every step has the same length, so lower `actor.lr` rather than the clip. A spike: "
        "read that step in rollouts/. Growth over many steps comes before divergence: lower `actor.lr`. 0: no group "
        "has differing scores.",
    ),
    Guide(
        ("actor/lr", "critic/lr"),
        "The learning rate in force.",
        "`actor.lr` or `critic.lr`, warmed up and decayed as `update.lr_schedule` says.",
        "It is an option, not a result; it stands still over skipped steps.",
    ),
    Guide(
        ("actor/reward_kl_penalty",),
        "Distance of the sampling policy to the reference, as it is taken off the rewards.",
        "0 in the first step; then about `algorithm.kl_target` with the adaptive controller, slow growth without.",
        "Not 0 at first: the reference is another model. Above 0.3: raise `algorithm.kl_coef` or set "
        "`algorithm.kl_ctrl=adaptive`.",
    ),
    Guide(
        ("actor/reward_kl_penalty_coeff",),
        "The weight of the KL penalty in the reward.",
        "`algorithm.kl_coef` while it is fixed; adaptive: it settles.",
        "If it climbs without end, `algorithm.kl_target` cannot be held: lower `actor.lr` or raise the target.",
    ),
)

CRITIC = (
    Guide(
        ("critic/vf_loss",),
        "Error of the critic's values against the returns.",
        "Falls within the first tens of steps, then follows the variance of the returns; its unit is reward squared.",
        "Rising: lower `critic.lr`, or the rewards changed their scale. Never falling: raise `critic.lr` or give it "
        "`critic.warmup_steps`.",
    ),
    Guide(
        ("critic/vf_clipfrac",),
        "Tokens whose value wants to move further in one step than `critic.cliprange_value`.",
        "Below 0.1 after the first steps.",
        "Above 0.3: raise `critic.cliprange_value` to the scale of the rewards, or lower `critic.lr`.",
    ),
    Guide(
        ("critic/vpred_mean",),
        "Mean of the values being trained.",
        "Close to `critic/returns/mean`.",
        "If it lags behind, the critic is too slow: raise `critic.lr` or `critic.warmup_steps`.",
    ),
    Guide(
        ("critic/grad_norm",),
        "Length of the critic's gradient before clipping.",
        "Large at first (a new head), then steady; often above the actor's.",
        "Growing: lower `critic.lr`. Above the clip for ever: the rewards are large, scale them down.",
    ),
    Guide(
        ("critic/vf_explained_var",),
        "Share of the variance of the returns that the values predict: what the critic is worth.",
        "0 or below at first, 0.3 to 0.9 once trained.",
        "Still at 0 after 50 steps: advantages are no better than without a critic; raise `critic.lr`, add "
        "`critic.warmup_steps`, or use a group estimator. A sudden fall: rewards or response lengths changed.",
    ),
)

CORRECTION = (
    Guide(
        ("rollout_corr/kl", "rollout_corr/k3_kl"),
        "Distance between engine and trainer on the same weights (bypass mode: and from the updates since), k1 and k3.",
        "k3 below 1e-4 in float32, around 1e-3 in bfloat16; k1 the same size, of either sign.",
        "k3 above 0.01: correct for it (`rollout_correction.rollout_is=token`). Above 0.1, or a jump from one step to "
        "the next: the engine samples from other weights or settings (docs/engines.md).",
    ),
    Guide(
        ("rollout_corr/chi2_token", "rollout_corr/chi2_seq"),
        "Variance of the importance weights that would correct the gap, per token and per sequence: 1 / (1 + chi2) is "
        "the share of samples that would be left.",
        "Tokens below 0.01. Sequences grow with length: a few tenths for hundreds of tokens in bfloat16.",
        "Sequences above 1: sequence weights lose half of the samples; use `rollout_is=token`, or close the gap.",
    ),
    Guide(
        (
            "rollout_corr/training_ppl",
            "rollout_corr/training_log_ppl",
            "rollout_corr/rollout_ppl",
            "rollout_corr/rollout_log_ppl",
        ),
        "Perplexity of the responses under the trainer and under the engine, as it reports it.",
        "The two are equal; 1.1 to 5 for chat models at temperature 1. It falls with the entropy.",
        "Apart: see `rollout_corr/log_ppl_diff`. Near 1: the responses are all but deterministic.",
    ),
    Guide(
        ("rollout_corr/log_ppl_*diff*", "rollout_corr/ppl_ratio"),
        "Trainer against engine per response: log-perplexity difference (signed, absolute, extremes) and ratio.",
        "Differences around 0, the ratio around 1: within 1e-4 in float32, 0.02 in bfloat16.",
        "A bias to one side: different temperature, log-probs before processing, or truncated sampling. An outlier "
        "(`_max`, `_min`): look for that response in rollouts/.",
    ),
    Guide(
        (
            "rollout_corr/rollout_is_mean",
            "rollout_corr/rollout_is_seq_mean",
            "rollout_corr/rollout_is_batch_norm_factor",
        ),
        "Mean importance weight (per token, per sequence), and what the weights were divided by.",
        "0.95 to 1.05: weights of a sampled policy average to 1, truncation takes a little away.",
        "Far below 1: most weight is truncated or zeroed; widen `rollout_correction.rollout_is_threshold` or close the "
        "gap at its source.",
    ),
    Guide(
        (
            "rollout_corr/rollout_is_std",
            "rollout_corr/rollout_is_max",
            "rollout_corr/rollout_is_min",
            "rollout_corr/rollout_is_seq_std",
            "rollout_corr/rollout_is_seq_max",
            "rollout_corr/rollout_is_seq_min",
            "rollout_corr/rollout_is_seq_max_deviation",
        ),
        "Spread of the importance weights.",
        "Deviation below 0.5; the largest at most the threshold (sequence level: the weight before truncation).",
        "A wide spread means that a few tokens carry the gradient: token level instead of sequence, a lower threshold.",
    ),
    Guide(
        ("rollout_corr/rollout_is_eff_sample_size",),
        "Share of the tokens that the weighted gradient is worth.",
        "Above 0.8.",
        "Below 0.5: half of the rollout is thrown away; close the gap (docs/engines.md) before tuning anything else.",
    ),
    Guide(
        (
            "rollout_corr/rollout_is_ratio_fraction_*",
            "rollout_corr/rollout_is_seq_fraction_*",
            "rollout_corr/rollout_is_oob_ratio",
        ),
        "How often raw weights lie outside the bounds.",
        "Below 0.01 per token; sequences more, with their length.",
        "Above 0.05: the bounds do the work that the engine should do; look at the gap.",
    ),
    Guide(
        ("rollout_corr/rollout_rs_masked_fraction", "rollout_corr/rollout_rs_seq_masked_fraction"),
        "What all rejection rules together take out of the loss: tokens, and rows that lose any.",
        "Below 0.05.",
        "Above 0.2: rollouts are generated for nothing; loosen `rollout_correction.rollout_rs_threshold`, or close "
        "the gap.",
    ),
    Guide(
        ("rollout_corr/rollout_rs_<rule>_*fraction*",),
        "What one rule takes out, and on which side of its bounds.",
        "Below 0.05; a rule for whole sequences rejects all their tokens.",
        "One side only: a bias, see `rollout_corr/log_ppl_diff`. One rule does all the work: drop the others.",
    ),
    Guide(
        (
            "rollout_corr/rollout_rs_<rule>_mean",
            "rollout_corr/rollout_rs_<rule>_std",
            "rollout_corr/rollout_rs_<rule>_max",
            "rollout_corr/rollout_rs_<rule>_min",
            "rollout_corr/rollout_rs_<rule>_seq_mean",
            "rollout_corr/rollout_rs_<rule>_seq_std",
            "rollout_corr/rollout_rs_<rule>_seq_max",
            "rollout_corr/rollout_rs_<rule>_seq_min",
            "rollout_corr/rollout_rs_<rule>_seq_max_deviation",
        ),
        "Distribution of the rule's statistic (k1, k2 or k3 of the log-ratio), before rejection.",
        "Mean and deviation well inside the bounds.",
        "If the mean nears a bound, set the threshold from these numbers, or close the gap.",
    ),
)
