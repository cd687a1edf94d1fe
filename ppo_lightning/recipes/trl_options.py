"""Options of TRL's GRPOConfig and ours: the table behind docs/from_trl.md. Imports no torch."""

from typing import NamedTuple

VERSION = "1.16"


class Option(NamedTuple):
    """One option of TRL.

    Attributes:
        trl: its name.
        default: TRL's default, as written.
        ours: our keys, separated by commas; empty: none.
        note: how to convert, or why there is none.
    """

    trl: str
    default: str
    ours: str
    note: str = ""


_SERVER = "start the server yourself and name it"
OPTIONS: tuple[Option, ...] = (
    Option(
        "per_device_train_batch_size",
        "8",
        "data.prompts_per_step",
        "TRL counts completions per device: x devices x steps_per_generation / num_generations = prompts per step",
    ),
    Option(
        "gradient_accumulation_steps",
        "1",
        "update.sequences_per_minibatch, update.sequences_per_microbatch",
        "mini-batch = per_device_train_batch_size x devices x gradient_accumulation_steps; micro-batch = "
        "per_device_train_batch_size",
    ),
    Option("generation_batch_size", "None", "data.prompts_per_step", "completions per generation / num_generations"),
    Option("steps_per_generation", "None", "update.sequences_per_minibatch", "by default one optimizer step each"),
    Option("num_generations", "8", "rollout.rollouts_per_prompt"),
    Option("num_generations_eval", "None", "validation.samples_per_prompt", "TRL's default is num_generations, ours 1"),
    Option("max_completion_length", "512", "rollout.response_tokens"),
    Option("num_train_epochs", "3.0", "trainer.epochs"),
    Option("max_steps", "-1", "trainer.steps", "-1 is null; TRL counts optimizer steps, we count rollouts"),
    Option("learning_rate", "1e-06", "actor.lr"),
    Option("lr_scheduler_type", "linear", "update.lr_schedule", "ours is constant"),
    Option("warmup_steps", "0", "update.lr_warmup_steps"),
    Option("weight_decay", "0.0", "update.weight_decay", "ours is 0.01"),
    Option("max_grad_norm", "1.0", "actor.grad_clip"),
    Option("adam_beta1, adam_beta2", "0.9, 0.999", "update.betas"),
    Option("gradient_checkpointing", "True", "model.gradient_checkpointing", "ours is false"),
    Option("bf16", "None", "model.dtype", "autocast there, the type of the weights here"),
    Option("seed", "42", "seed"),
    Option("shuffle_dataset", "True", "data.shuffle"),
    Option("temperature", "1.0", "rollout.temperature"),
    Option("top_p", "1.0", "rollout.top_p", "below 1 is refused here unless corrected"),
    Option("top_k", "0", "rollout.top_k", "0 there is -1 here"),
    Option("min_p", "None", "rollout.min_p", "None is 0"),
    Option("repetition_penalty", "1.0", "", "it would make the engine's probabilities not those of the policy"),
    Option("generation_kwargs, cache_implementation", "None", "", "the engine's own settings are not passed through"),
    Option("use_vllm", "False", "rollout.engine", "vllm; the default is transformers in both"),
    Option("vllm_mode", "colocate", "rollout.engine", "colocate is vllm, server is vllm_server"),
    Option("vllm_server_base_url, _host, _port", "None, 0.0.0.0, 8000", "rollout.servers", _SERVER),
    Option("vllm_server_timeout", "240.0", "rollout.request_timeout_s"),
    Option("vllm_gpu_memory_utilization", "0.3", "rollout.memory_fraction", "ours is 0.5"),
    Option("vllm_tensor_parallel_size", "1", "", "one device per engine here"),
    Option("vllm_max_model_length", "None", "", "data.max_prompt_tokens + rollout.response_tokens"),
    Option("beta", "0.0", "actor.use_kl_loss, actor.kl_loss_coef", "above 0: use_kl_loss=true; kl_loss_type=k3"),
    Option("num_iterations", "1", "update.ppo_epochs"),
    Option("epsilon", "0.2", "actor.clip_ratio"),
    Option("epsilon_high", "None", "actor.clip_ratio_high"),
    Option("delta", "None", "actor.clip_ratio_c", "close to it: dual clip bounds negative advantages"),
    Option("importance_sampling_level", "token", "actor.policy_loss", "sequence is gspo"),
    Option("sapo_temperature_pos, _neg", "1.0, 1.05", "actor.loss_options", "tau_pos and tau_neg"),
    Option("scale_rewards", "group", "algorithm.norm_adv_by_std_in_grpo", "none is false; batch has no counterpart"),
    Option("reward_weights", "None", "reward.parts", "each part has its weight"),
    Option("multi_objective_aggregation", "sum_then_normalize", "algorithm.adv_estimator", "the other way is gdpo"),
    Option(
        "loss_type",
        "dapo",
        "update.loss_agg_mode, actor.policy_loss",
        "dapo and bnpo: token-mean (always over the whole mini-batch here); grpo: seq-mean-token-mean; dr_grpo: "
        "seq-mean-token-sum-norm; cispo, sapo: policy_loss of that name",
    ),
    Option("mask_truncated_completions", "False", "algorithm.mask_truncated"),
    Option("entropy_coef", "0.0", "actor.entropy_coeff"),
    Option("top_entropy_quantile", "1.0", "", "training on high-entropy tokens only is not available here"),
    Option("use_adaptive_entropy", "False", "", "not available here"),
    Option("sync_ref_model", "False", "", "the reference stays what the run started from"),
    Option(
        "vllm_importance_sampling_correction",
        "True",
        "rollout_correction.rollout_is, rollout_correction.rollout_rs",
        "on there, off here; sequence_mask is rollout_rs, token_truncate is rollout_is=token",
    ),
    Option("vllm_importance_sampling_clip_max", "3.0", "rollout_correction.rollout_is_threshold"),
    Option("off_policy_mask_threshold", "None", "", "rollout_correction.rollout_rs by the k1 of a sequence is close"),
    Option("use_liger_kernel", "False", "", "log-probs are computed in tiles here, always"),
    Option("disable_dropout", "False", "", "log-probs are taken without dropout here"),
    Option("remove_unused_columns", "False", "", "every column reaches the reward function"),
    Option("model_init_kwargs", "None", "model.dtype, model.trust_remote_code"),
    Option("chat_template_kwargs", "None", "model.chat_template", "a template of your own"),
    Option("max_tool_calling_iterations", "None", "", "rollouts over several turns are not available here"),
    Option("output_dir", "None", "output_dir, name"),
    Option("run_name", "None", "name"),
    Option("report_to", "none", "logging.wandb, logging.loggers", "metrics.jsonl is always written"),
    Option("logging_steps", "10", "", "every step is logged"),
    Option("log_completions", "False", "logging.samples_per_step", "every response is in a file"),
    Option("eval_steps", "None", "validation.every_steps"),
    Option("eval_on_start", "False", "validation.before_train", "ours is true"),
    Option("save_steps", "500", "checkpoint.every_steps", "ours counts rollouts"),
    Option("save_total_limit", "None", "checkpoint.keep"),
    Option("metric_for_best_model, greater_is_better", "None", "checkpoint.best_metric, checkpoint.best_mode"),
    Option("resume_from_checkpoint", "None", "", "fit --resume auto, or a path"),
    Option("dataloader_num_workers", "0", "data.workers"),
)

ARGUMENTS: tuple[Option, ...] = (
    Option("model", "", "model.path"),
    Option("reward_funcs", "", "reward.path, reward.name", "a file with TRL's signature; several: reward.parts"),
    Option("train_dataset, eval_dataset", "", "data.train, data.val", "columns `prompt` and others are recognised"),
    Option("peft_config", "None", "", "see the reference of options for what is available"),
)
"""Arguments of GRPOTrainer itself."""
