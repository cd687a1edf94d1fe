"""verl 0.9.1's options and ours: the one table behind `recipes import-verl` and docs/from_verl.md. Imports no torch."""

from typing import Any, NamedTuple

from ppo_lightning.recipes import verl_rules as rule
from ppo_lightning.recipes.verl_rules import Rule

VERSION = "0.9.1"


class Option(NamedTuple):
    """One option of verl with a counterpart here.

    Attributes:
        verl: its key.
        default: verl's default; where verl takes it from another key, that key's default.
        ours: our key.
        rule: how the value is converted.
        note: what differs in meaning, for the page; empty: nothing.
    """

    verl: str
    default: Any
    ours: str
    rule: Rule = rule.same
    note: str = ""


_ACTOR, _ROLLOUT, _REF = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "actor_rollout_ref.ref"
_OPTIM, _CORRECTION = f"{_ACTOR}.optim", "algorithm.rollout_correction"
_MODEL, _REWARD = "actor_rollout_ref.model", "reward"
_OVERLONG = "reward.reward_kwargs.overlong_buffer_cfg"
_HERE_SHARED = "one value for actor and critic here"

OPTIONS: tuple[Option, ...] = (
    Option("trainer.experiment_name", "gsm8k", "name"),
    Option("data.seed", None, "seed", lambda value, _: rule.SKIP if value is None else int(value), "other streams"),
    Option(f"{_MODEL}.path", "~/models/deepseek-llm-7b-chat", "model.path", rule.path),
    Option(
        f"{_ACTOR}.fsdp_config.model_dtype",
        "fp32",
        "model.dtype",
        rule.dtype,
        "parameters; verl computes under bfloat16 autocast, which has no counterpart",
    ),
    Option(f"{_MODEL}.custom_chat_template", None, "model.chat_template", note="a file here, the template there"),
    Option(f"{_MODEL}.trust_remote_code", False, "model.trust_remote_code"),
    Option(f"{_MODEL}.enable_gradient_checkpointing", True, "model.gradient_checkpointing"),
    Option(f"{_MODEL}.lora_rank", 0, "model.lora_rank", note="a critic gets an adapter too"),
    Option(f"{_MODEL}.lora_alpha", 16, "model.lora_alpha", rule.of_adapter),
    Option(f"{_MODEL}.target_modules", "all-linear", "model.lora_targets", rule.targets),
    Option("data.train_files", "~/data/rlhf/gsm8k/train.parquet", "data.train", rule.one_file, "one file"),
    Option("data.val_files", "~/data/rlhf/gsm8k/test.parquet", "data.val", rule.one_file, "one file"),
    Option("data.max_prompt_length", 512, "data.max_prompt_tokens"),
    Option("data.max_response_length", 512, "rollout.response_tokens"),
    Option("data.filter_overlong_prompts", False, "data.long_prompts", rule.overlong, "false: by data.truncation"),
    Option("data.train_max_samples", -1, "data.max_train_rows", rule.null_if_negative, "first rows; verl: a sample"),
    Option("data.val_max_samples", -1, "data.max_val_rows", rule.null_if_negative, "first rows; verl: a sample"),
    Option("data.train_batch_size", 1024, "data.prompts_per_step"),
    Option("data.shuffle", True, "data.shuffle"),
    Option(f"{_ROLLOUT}.name", "vllm", "rollout.engine", rule.engine, "sglang and trtllm become vllm"),
    Option(f"{_ROLLOUT}.n", 1, "rollout.rollouts_per_prompt"),
    Option(f"{_ROLLOUT}.temperature", 1.0, "rollout.temperature", rule.number),
    Option(f"{_ROLLOUT}.top_p", 1, "rollout.top_p", rule.number, "below 1 is refused here unless corrected"),
    Option(f"{_ROLLOUT}.top_k", -1, "rollout.top_k", note="above 0 is refused here unless corrected"),
    Option(f"{_ROLLOUT}.ignore_eos", False, "rollout.ignore_eos"),
    Option(f"{_ROLLOUT}.dtype", "bfloat16", "rollout.dtype", rule.dtype),
    Option(f"{_ROLLOUT}.gpu_memory_utilization", 0.5, "rollout.memory_fraction", rule.number),
    Option(f"{_ROLLOUT}.enforce_eager", False, "rollout.enforce_eager"),
    Option("trainer.val_before_train", True, "validation.before_train"),
    Option(
        "trainer.test_freq",
        -1,
        "validation.every_steps",
        rule.zero_if_negative,
        "-1 is 0; here the end of training is validated even then",
    ),
    Option(f"{_ROLLOUT}.val_kwargs.n", 1, "validation.samples_per_prompt"),
    Option(f"{_ROLLOUT}.val_kwargs.temperature", 0, "validation.temperature", rule.number),
    Option(f"{_ROLLOUT}.val_kwargs.top_p", 1.0, "validation.top_p", rule.number),
    Option(f"{_ROLLOUT}.val_kwargs.top_k", -1, "validation.top_k"),
    Option(f"{_REWARD}.num_workers", 8, "reward.workers"),
    Option(f"{_REWARD}.custom_reward_function.path", None, "reward.path", rule.path),
    Option(f"{_REWARD}.custom_reward_function.name", "compute_score", "reward.name"),
    Option(f"{_REWARD}.custom_reward_function.reward_kwargs", {}, "reward.options"),
    Option(f"{_REWARD}.reward_manager.name", "naive", "reward.manager", note="gdpo: algorithm.adv_options"),
    Option(f"{_OVERLONG}.len", None, "reward.overlong_buffer_tokens", rule.penalty_zone, "0 unless its enable is on"),
    Option(f"{_OVERLONG}.penalty_factor", 1.0, "reward.overlong_penalty", rule.penalty),
    Option(f"{_REWARD}.reward_model.model_path", None, "reward.model_path", rule.model_if_on, "if its enable is on"),
    Option(f"{_REWARD}.reward_model.enable_resource_pool", False, "reward.model_own_resources"),
    Option("algorithm.adv_estimator", "gae", "algorithm.adv_estimator", rule.text),
    Option("algorithm.gamma", 1.0, "algorithm.gamma", rule.number),
    Option("algorithm.lam", 1.0, "algorithm.lam", rule.number),
    Option("algorithm.norm_adv_by_std_in_grpo", True, "algorithm.norm_adv_by_std_in_grpo"),
    Option("algorithm.use_kl_in_reward", False, "algorithm.use_kl_in_reward"),
    Option("algorithm.kl_penalty", "kl", "algorithm.kl_penalty"),
    Option("algorithm.kl_ctrl.type", "fixed", "algorithm.kl_ctrl"),
    Option("algorithm.kl_ctrl.kl_coef", 0.001, "algorithm.kl_coef", rule.number),
    Option("algorithm.kl_ctrl.target_kl", 0.1, "algorithm.kl_target", rule.number),
    Option("algorithm.kl_ctrl.horizon", 10000, "algorithm.kl_horizon"),
    Option("algorithm.filter_groups.enable", False, "algorithm.filter_groups", note="raw task scores decide"),
    Option(
        "algorithm.filter_groups.max_num_gen_batches", 0, "algorithm.filter_groups_max_batches", rule.batches, "0: all"
    ),
    Option("algorithm.pf_ppo.reweight_method", "pow", "algorithm.pf_ppo_reweight", rule.pf_ppo, "if use_pf_ppo is on"),
    Option("algorithm.pf_ppo.weight_pow", 2.0, "algorithm.pf_ppo_weight_pow", rule.number),
    Option(f"{_CORRECTION}.bypass_mode", False, "rollout_correction.bypass_mode"),
    Option(f"{_CORRECTION}.rollout_is", None, "rollout_correction.rollout_is", rule.off_if_null),
    Option(f"{_CORRECTION}.rollout_is_threshold", 2.0, "rollout_correction.rollout_is_threshold", rule.text),
    Option(f"{_CORRECTION}.rollout_is_batch_normalize", False, "rollout_correction.rollout_is_batch_normalize"),
    Option(f"{_CORRECTION}.rollout_rs", None, "rollout_correction.rollout_rs", rule.off_if_null),
    Option(f"{_CORRECTION}.rollout_rs_threshold", None, "rollout_correction.rollout_rs_threshold", rule.text),
    Option(f"{_ACTOR}.ppo_epochs", 1, "update.ppo_epochs"),
    Option(
        f"{_ACTOR}.ppo_mini_batch_size",
        256,
        "update.sequences_per_minibatch",
        rule.per_prompt_to_sequences,
        "verl counts prompts: times rollout.n; the whole step is null",
    ),
    Option(
        f"{_ACTOR}.ppo_micro_batch_size_per_gpu",
        None,
        "update.sequences_per_microbatch",
        rule.micro_batch,
        "per device in both; forwards without gradients use it too; ppo_micro_batch_size is divided by the devices",
    ),
    Option(
        f"{_ACTOR}.ppo_max_token_len_per_gpu",
        16384,
        "update.tokens_per_microbatch",
        rule.token_budget,
        "with use_dynamic_bsz, else null; per device in both; times ulysses_sequence_parallel_size",
    ),
    Option(f"{_ACTOR}.shuffle", False, "update.shuffle", note=_HERE_SHARED),
    Option(f"{_ACTOR}.loss_agg_mode", "token-mean", "update.loss_agg_mode", note=_HERE_SHARED),
    Option(f"{_ACTOR}.loss_scale_factor", None, "update.loss_scale_factor", note="null: response_tokens in both"),
    Option(f"{_OPTIM}.weight_decay", 0.01, "update.weight_decay", rule.number, _HERE_SHARED),
    Option(f"{_OPTIM}.betas", [0.9, 0.999], "update.betas", note=_HERE_SHARED),
    Option(
        f"{_OPTIM}.lr_warmup_steps",
        -1,
        "update.lr_warmup_steps",
        rule.warmup,
        "-1: by the ratio; step 1 has 1/W of lr here, 0 there",
    ),
    Option(f"{_OPTIM}.lr_scheduler_type", "constant", "update.lr_schedule", note=_HERE_SHARED),
    Option(f"{_OPTIM}.lr", 1e-6, "actor.lr", rule.number),
    Option(f"{_OPTIM}.clip_grad", 1.0, "actor.grad_clip", rule.number),
    Option(f"{_ACTOR}.policy_loss.loss_mode", "vanilla", "actor.policy_loss", rule.loss_mode, "bypass: by loss_type"),
    Option(f"{_ACTOR}.clip_ratio_low", 0.2, "actor.clip_ratio_low", rule.number),
    Option(f"{_ACTOR}.clip_ratio_high", 0.2, "actor.clip_ratio_high", rule.number),
    Option(f"{_ACTOR}.clip_ratio_c", 3.0, "actor.clip_ratio_c", rule.number),
    Option(f"{_ACTOR}.entropy_coeff", 0, "actor.entropy_coeff", rule.number),
    Option(f"{_ACTOR}.use_kl_loss", False, "actor.use_kl_loss"),
    Option(f"{_ACTOR}.kl_loss_coef", 0.001, "actor.kl_loss_coef", rule.number),
    Option(f"{_ACTOR}.kl_loss_type", "low_var_kl", "actor.kl_loss_type"),
    Option(f"{_ACTOR}.tau_pos", 1.0, "actor.loss_options", rule.loss_options, "with tau_neg, for sapo"),
    Option("critic.optim.lr", 1e-5, "critic.lr", rule.with_critic),
    Option("critic.optim.clip_grad", 1.0, "critic.grad_clip", rule.with_critic),
    Option("critic.model.path", "~/models/deepseek-llm-7b-chat", "critic.path", rule.with_critic),
    Option("critic.cliprange_value", 0.5, "critic.cliprange_value", rule.with_critic),
    Option("trainer.critic_warmup", 0, "critic.warmup_steps", rule.with_critic),
    Option("trainer.total_training_steps", None, "trainer.steps"),
    Option("trainer.total_epochs", 30, "trainer.epochs"),
    Option("trainer.device", "cuda", "trainer.accelerator", rule.accelerator),
    Option(f"{_ACTOR}.strategy", "fsdp", "trainer.strategy", rule.strategy, "one device: single"),
    Option("trainer.n_gpus_per_node", 8, "trainer.devices"),
    Option("trainer.nnodes", 1, "trainer.nodes"),
    Option("trainer.balance_batch", True, "trainer.balance_batch", note="within mini-batches here"),
    Option("trainer.save_freq", -1, "checkpoint.every_steps", rule.zero_if_negative, "-1 is 0"),
    Option("trainer.max_actor_ckpt_to_keep", None, "checkpoint.keep", rule.keep, "null, all, is a large number"),
    Option("trainer.logger", ["console", "wandb"], "logging.wandb", rule.wandb, "online if it lists wandb"),
    Option("trainer.logger", ["console", "wandb"], "logging.loggers", rule.loggers),
    Option("trainer.project_name", "verl_examples", "logging.project"),
)

READ_BY_RULES: dict[str, Any] = {
    "actor_rollout_ref.actor.use_dynamic_bsz": False,
    "actor_rollout_ref.actor.ppo_micro_batch_size": None,
    "actor_rollout_ref.actor.ulysses_sequence_parallel_size": 1,
    "actor_rollout_ref.actor.optim.lr_warmup_steps_ratio": 0.0,
    "actor_rollout_ref.actor.tau_neg": 1.05,
    "actor_rollout_ref.actor.policy_loss.clip_cov_ratio": 0.0002,
    "actor_rollout_ref.actor.policy_loss.clip_cov_lb": 1.0,
    "actor_rollout_ref.actor.policy_loss.clip_cov_ub": 5.0,
    "actor_rollout_ref.actor.policy_loss.kl_cov_ratio": 0.0002,
    "actor_rollout_ref.actor.policy_loss.ppo_kl_coef": 0.1,
    "actor_rollout_ref.actor.policy_loss.dro_beta": None,
    "algorithm.rollout_correction.loss_type": "ppo_clip",
    "algorithm.use_pf_ppo": False,
    "critic.enable": None,
    "data.truncation": "error",
    "reward.reward_kwargs.overlong_buffer_cfg.enable": False,
    "reward.reward_model.enable": False,
}
"""verl's options that are part of another row: what the rules read besides their own value."""

BEYOND_THE_CONFIG = (
    "reward.custom_reward_function.reward_kwargs",
    "reward.reward_kwargs.overlong_buffer_cfg.len",
    "reward.reward_kwargs.overlong_buffer_cfg.penalty_factor",
    "reward.reward_kwargs.overlong_buffer_cfg.enable",
)
"""verl's code reads these, its configuration files do not list them: they are given with a leading +."""

LEGACY = {
    "custom_reward_function.": "reward.custom_reward_function.",
    "reward_model.num_workers": "reward.num_workers",
    "reward_model.reward_manager": "reward.reward_manager.name",
    "reward_model.reward_kwargs.": "reward.reward_kwargs.",
    "reward_model.enable_resource_pool": "reward.reward_model.enable_resource_pool",
    "reward_model.enable": "reward.reward_model.enable",
    "reward_model.model.path": "reward.reward_model.model_path",
    "actor_rollout_ref.actor.optim.grad_clip": "actor_rollout_ref.actor.optim.clip_grad",
    "critic.optim.grad_clip": "critic.optim.clip_grad",
    "actor_rollout_ref.actor.optim.warmup_style": "actor_rollout_ref.actor.optim.lr_scheduler_type",
}
"""Old keys that verl still takes, and what it makes of them."""


def defaults() -> dict[str, Any]:
    """Return verl's default of every key that a rule may read."""
    return {option.verl: option.default for option in OPTIONS} | READ_BY_RULES
