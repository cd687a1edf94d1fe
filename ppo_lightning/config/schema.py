"""Every option of a run with its default and one line of meaning: the only home of defaults. Imports no torch."""

from dataclasses import dataclass, field, fields
from typing import Any, cast


def option(default: Any, doc: str, choices: tuple[str, ...] | None = None) -> Any:
    """Declare one option: its default, its meaning (the reference is generated from it) and its legal values."""
    metadata = {"doc": doc, "choices": choices}
    if isinstance(default, list | dict):
        return field(default_factory=lambda: type(default)(default), metadata=metadata)
    return field(default=default, metadata=metadata)


AGGREGATIONS = ("token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-sum-norm", "seq-mean-token-mean")
KL_ESTIMATORS = (
    "k1",
    "kl",
    "abs",
    "k2",
    "mse",
    "k3",
    "low_var_kl",
    "k1+",
    "kl+",
    "abs+",
    "k2+",
    "mse+",
    "k3+",
    "low_var_kl+",
)


@dataclass(frozen=True)
class ModelConfig:
    """The policy and what it is loaded with."""

    path: str = option("smollm2-135m-instruct", "local folder, Hub id, or the name of a packaged model (`model ls`)")
    dtype: str = option(
        "float32",
        "parameter and compute type; float64 tells rounding from arithmetic where numbers should be equal",
        ("float32", "bfloat16", "float64"),
    )
    chat_template: str | None = option(None, "file with a Jinja chat template that replaces the tokenizer's own")
    trust_remote_code: bool = option(False, "run Python code that comes with the model folder")
    gradient_checkpointing: bool = option(False, "recompute activations in the backward pass: less memory, more time")
    lora_rank: int = option(0, "train LoRA matrices of this rank beside frozen weights (extra `lora`); 0: all weights")
    lora_alpha: float = option(32.0, "LoRA scale: the adapter's product counts lora_alpha / lora_rank")
    lora_targets: list[str] = option([], "matrices that get an adapter; empty: every linear layer but the head")


@dataclass(frozen=True)
class DataConfig:
    """Prompts with answers: where they come from and how a row becomes a prompt."""

    train: str = option(
        "openai/gsm8k:main@train", "JSONL, JSON or Parquet file; Hub id[:config][@split]; or generator:options"
    )
    val: str | None = option("openai/gsm8k:main@test", "the same for validation rows; null: no validation")
    data_source: str | None = option(None, "overrides the data source named in metrics and used to pick the scorer")
    question_key: str = option("question", "column of a plain question/answer file that holds the question")
    answer_key: str = option("answer", "column of a plain question/answer file that holds the answer")
    answer_pattern: str | None = option(None, "regular expression whose first group, last match, is the ground truth")
    system_prompt: str | None = option(None, "system message put before every prompt")
    prompt_suffix: str = option("", "text appended to the last user message")
    max_prompt_tokens: int = option(512, "longest prompt in tokens, chat template included (P)")
    long_prompts: str = option("filter", "what happens to longer prompts", ("filter", "error"))
    bad_rows: str = option("error", "what happens to rows that cannot be read or used", ("error", "skip"))
    max_train_rows: int | None = option(None, "use only the first rows, counted before filtering")
    max_val_rows: int | None = option(None, "use only the first validation rows, counted before filtering")
    prompts_per_step: int = option(32, "prompts drawn per training step, over all ranks")
    shuffle: bool = option(True, "draw training rows in a new order every epoch")
    order: str | None = option(
        None, "your own order of training rows: module:function(prompts, epoch, seed) -> positions"
    )
    workers: int = option(0, "loader worker processes per rank (none with algorithm.filter_groups)")


@dataclass(frozen=True)
class RolloutConfig:
    """How responses are sampled."""

    engine: str = option(
        "transformers", "what generates: transformers, vllm, vllm_server, or your own as module:function"
    )
    rollouts_per_prompt: int = option(1, "responses sampled per prompt draw (n)")
    response_tokens: int = option(512, "longest response in tokens (R)")
    temperature: float = option(1.0, "sampling temperature of training rollouts")
    top_p: float = option(1.0, "nucleus sampling; below 1 needs rollout correction")
    top_k: int = option(-1, "keep the k likeliest tokens; -1: all; else needs rollout correction")
    min_p: float = option(0.0, "drop tokens below this share of the likeliest; above 0 needs rollout correction")
    ignore_eos: bool = option(False, "always generate response_tokens tokens (benchmarks)")
    sequences_per_batch: int = option(64, "sequences that the transformers engine decodes at once")
    dtype: str = option(
        "model", "type of the engine's weights; `model` takes model.dtype", ("model", "float32", "bfloat16")
    )
    servers: list[str] = option(
        [], "addresses of running vLLM servers (engine=vllm_server), such as http://127.0.0.1:8000"
    )
    memory_gib: float = option(4.0, "KV-cache memory of vLLM on a CPU, in GiB")
    memory_fraction: float = option(0.5, "share of a GPU's memory that vLLM may take")
    enforce_eager: bool = option(True, "no compilation and no CUDA graphs in vLLM: starts faster, generates slower")
    request_timeout_s: float = option(600.0, "longest wait for one request to a vLLM server")
    check_weights: bool = option(True, "compare a checksum of the engine's weights after every sync")
    max_probs_diff: float | None = option(
        None, "stop when training/rollout_probs_diff_mean exceeds this; null: only warn"
    )


@dataclass(frozen=True)
class ValidationConfig:
    """How the model is validated."""

    before_train: bool = option(True, "validate before the first step")
    every_steps: int = option(10, "validate after every so many steps; 0: only before and after training")
    samples_per_prompt: int = option(1, "responses per validation prompt (N)")
    temperature: float = option(0.0, "sampling temperature; 0: greedy")
    top_p: float = option(1.0, "nucleus sampling")
    top_k: int = option(-1, "keep the k likeliest tokens; -1: all")
    response_tokens: int | None = option(None, "longest response in tokens; null: rollout.response_tokens")


@dataclass(frozen=True)
class RewardConfig:
    """Who scores a response."""

    scorer: str = option("auto", "built-in scorer by name; auto: by the row's data source")
    options: dict[str, Any] = option({}, "keyword arguments of the scorer or of your own function")
    path: str | None = option(None, "Python file with your own reward function (verl or TRL signature)")
    name: str = option("compute_score", "name of the function in reward.path")
    parts: list[dict[str, Any]] = option(
        [], "further rewards added to the scorer's: each {scorer: name, weight: w, options: {}}"
    )
    manager: str = option(
        "naive", "how scores become token rewards: naive, dapo, batch, token, turn, or your own as module:function"
    )
    workers: int = option(8, "worker processes")
    timeout_s: float = option(10.0, "seconds one sample may take")
    memory_mb: int = option(
        2048, "MiB of address space a worker may take beyond what loading its function took; 0: no limit"
    )
    environment: list[str] = option([], "environment variables (such as an API key) that your reward function may read")
    on_error: str = option("stop", "a sample that fails: stop, drop (out of its group), or score:<value>")
    max_error_share: float = option(0.1, "share of failed samples in a step above which the run stops")
    overlong_buffer_tokens: int = option(0, "length of the soft penalty zone before response_tokens; 0: no penalty")
    overlong_penalty: float = option(1.0, "penalty at full length")
    model_path: str | None = option(None, "sequence-classification model that scores whole batches (route B)")
    model_server: str | None = option(None, "address of a server that scores whole batches (route B)")
    model_own_resources: bool = option(False, "the reward model has its own machine: rule rewards stay streamed")


@dataclass(frozen=True)
class AlgorithmConfig:
    """From rewards to advantages."""

    adv_estimator: str = option("gae", "advantage estimator (`algorithms/advantages`), or your own as module:function")
    gamma: float = option(1.0, "discount per token")
    lam: float = option(1.0, "GAE lambda")
    norm_adv_by_std_in_grpo: bool = option(True, "divide by the group's sample standard deviation; false: Dr.GRPO")
    use_kl_in_reward: bool = option(False, "subtract kl_coef * KL(old, ref) from each token's reward")
    kl_penalty: str = option("kl", "KL estimator in the reward", KL_ESTIMATORS)
    kl_ctrl: str = option("fixed", "how kl_coef moves", ("fixed", "adaptive"))
    kl_coef: float = option(0.001, "KL coefficient in the reward")
    kl_target: float = option(0.1, "KL that the adaptive controller aims at")
    kl_horizon: int = option(10000, "sequences over which the adaptive controller moves")
    filter_groups: bool = option(False, "DAPO: drop groups whose raw task scores are all equal and draw more prompts")
    filter_groups_max_batches: int = option(10, "rollout batches drawn at most for one step when filter_groups is on")
    mask_truncated: bool = option(False, "leave truncated responses out of the loss (overlong masking)")
    adv_options: dict[str, Any] = option({}, "further keyword arguments of the estimator, by its own names")
    pf_ppo_reweight: str = option(
        "off", "PF-PPO: resample rows by their score", ("off", "pow", "max_min", "max_random")
    )
    pf_ppo_weight_pow: float = option(2.0, "exponent of the PF-PPO weights")


@dataclass(frozen=True)
class RolloutCorrectionConfig:
    """Correction for the gap between the engine's and the trainer's probabilities; off by default."""

    bypass_mode: bool = option(
        False, "use the engine's log-probs as old_log_probs: weights and rejection then follow the policy being trained"
    )
    rollout_is: str = option("off", "importance weights", ("off", "token", "sequence"))
    rollout_is_threshold: str = option(
        "2.0", "upper bound that weights are truncated at, or lower_upper: weights outside become 0"
    )
    rollout_is_batch_normalize: bool = option(False, "divide the weights by their batch mean")
    rollout_rs: str = option(
        "off",
        "rejection rules by commas, or off: token, seq_sum, seq_mean or seq_max, each with _k1, _k2 or _k3",
    )
    rollout_rs_threshold: str | None = option(
        None, "bound per rule, by commas: upper; for k1 lower_upper of the ratio engine / trainer"
    )


@dataclass(frozen=True)
class UpdateConfig:
    """How a step's rollouts are split and optimised: the same for actor and critic."""

    ppo_epochs: int = option(1, "passes over a step's rollouts")
    sequences_per_minibatch: int | None = option(
        None, "rollouts per optimizer step, over all ranks; null: the whole step"
    )
    sequences_per_microbatch: int = option(16, "rollouts per forward pass and rank")
    tokens_per_microbatch: int | None = option(
        None, "token budget per forward pass and rank, instead of sequences_per_microbatch"
    )
    share_prompts: bool = option(
        True,
        "pack rows without padding and compute each prompt once for all its rollouts, where the model allows it (same "
        "numbers, fewer tokens)",
    )
    shuffle: bool = option(False, "new mini-batch composition every PPO epoch")
    loss_agg_mode: str = option("token-mean", "how token losses become one number", AGGREGATIONS)
    loss_scale_factor: float | None = option(None, "constant of seq-mean-token-sum-norm; null: response_tokens")
    master_weights: bool = option(True, "with model.dtype=bfloat16 the optimizer keeps the weights in float32 as well")
    weight_decay: float = option(0.01, "AdamW weight decay")
    betas: list[float] = option([0.9, 0.999], "AdamW betas")
    lr_warmup_steps: int = option(0, "training steps of linear warm-up")
    lr_schedule: str = option("constant", "after warm-up", ("constant", "cosine", "linear"))


@dataclass(frozen=True)
class ActorConfig:
    """The policy's loss."""

    lr: float = option(1e-6, "learning rate")
    grad_clip: float = option(1.0, "largest gradient norm")
    policy_loss: str = option("vanilla", "policy loss (`algorithms/policy_losses`), or your own as module:function")
    clip_ratio: float = option(0.2, "clip range of the probability ratio, both sides")
    clip_ratio_low: float | None = option(None, "lower clip range; null: clip_ratio")
    clip_ratio_high: float | None = option(None, "upper clip range; null: clip_ratio")
    clip_ratio_c: float = option(3.0, "dual-clip bound for negative advantages")
    entropy_coeff: float = option(0.0, "weight of the entropy bonus")
    use_kl_loss: bool = option(False, "add kl_loss_coef * KL(current, ref) to the loss")
    kl_loss_coef: float = option(0.001, "weight of the KL loss")
    kl_loss_type: str = option("low_var_kl", "KL estimator in the loss", KL_ESTIMATORS)
    loss_options: dict[str, Any] = option({}, "further keyword arguments of the policy loss, by its own names")


@dataclass(frozen=True)
class CriticConfig:
    """The value model and its loss; used when the estimator needs values."""

    lr: float = option(1e-5, "learning rate")
    grad_clip: float = option(1.0, "largest gradient norm")
    path: str | None = option(None, "model the critic starts from; null: model.path")
    cliprange_value: float = option(0.5, "clip range of the value around its old value")
    warmup_steps: int = option(0, "first steps that update the critic only")


@dataclass(frozen=True)
class TrainerConfig:
    """How long and on what."""

    steps: int | None = option(None, "training steps; null: as many as epochs give")
    epochs: int = option(1, "passes over the training prompts when steps is null")
    accelerator: str = option("auto", "device kind", ("auto", "cpu", "gpu"))
    strategy: str = option("single", "how work is spread over ranks", ("single", "ddp", "fsdp"))
    devices: int = option(1, "devices per node")
    nodes: int = option(1, "machines")
    threads: int | None = option(None, "CPU threads per rank; null: torch's choice")
    offload: bool = option(False, "on a GPU, keep reference and optimizer in the CPU's memory between their phases")
    balance_batch: bool = option(True, "spread rows over ranks by workload, within mini-batches")
    deterministic: bool = option(
        False, "use deterministic kernels only: on a GPU slower; an operation that has none is an error"
    )
    max_skipped_steps: int = option(
        3, "steps in a row without an update, because a number was not finite, before the run stops"
    )
    undo_bad_steps: bool = option(
        True,
        "a step that goes bad or is broken off after it has begun to update is undone: with several optimizer steps in "
        "it a copy of weights and optimizer is in the CPU's memory during the update; false: what was done stands",
    )


@dataclass(frozen=True)
class CheckpointConfig:
    """When and how much is saved."""

    every_steps: int = option(50, "save after every so many steps, and after the last; 0: never")
    keep: int = option(2, "checkpoints kept besides the best one")
    best_metric: str | None = option(None, "validation metric whose best checkpoint is kept; null: none")
    best_mode: str = option("max", "whether the best metric is the largest or the smallest", ("max", "min"))


@dataclass(frozen=True)
class LoggingConfig:
    """Where numbers and samples go; metrics.jsonl is always written."""

    wandb: str = option("off", "Weights & Biases", ("off", "offline", "online"))
    project: str = option("ppo_lightning", "W&B project")
    loggers: list[str] = option([], "further files in the run directory: tensorboard, csv")
    samples_per_step: int = option(2, "completions shown on the console per step")
    rollouts: str = option(
        "jsonl", "how rollouts/ is written: verl's keys or TRL's columns", ("jsonl", "parquet", "off")
    )


@dataclass(frozen=True)
class Config:
    """One run."""

    name: str = option("run", "name of the run; its directory is output_dir/name")
    seed: int = option(1, "seed of everything random")
    output_dir: str = option("runs", "folder that run directories are made in")
    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    validation: ValidationConfig = field(default_factory=ValidationConfig)
    reward: RewardConfig = field(default_factory=RewardConfig)
    algorithm: AlgorithmConfig = field(default_factory=AlgorithmConfig)
    rollout_correction: RolloutCorrectionConfig = field(default_factory=RolloutCorrectionConfig)
    update: UpdateConfig = field(default_factory=UpdateConfig)
    actor: ActorConfig = field(default_factory=ActorConfig)
    critic: CriticConfig = field(default_factory=CriticConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    logging: LoggingConfig = field(default_factory=LoggingConfig)


def leaves(cls: type = Config, prefix: str = "") -> dict[str, Any]:
    """Return every option as {dotted key: dataclass field}."""
    found: dict[str, Any] = {}
    for item in fields(cls):
        key = f"{prefix}{item.name}"
        if hasattr(item.type, "__dataclass_fields__"):
            found |= leaves(cast(type, item.type), f"{key}.")
        else:
            found[key] = item
    return found
