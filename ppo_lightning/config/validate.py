"""What must hold between options; every problem is found before any model loads. Imports no torch."""

from collections.abc import Callable, Iterator

from ppo_lightning.algorithms import ADVANTAGES, POLICY_LOSSES
from ppo_lightning.algorithms.policy_losses.arguments import check_loss_options, find_policy_loss
from ppo_lightning.algorithms.rollout_correction.settings import read_settings
from ppo_lightning.algorithms.tables import check_adv_options, find_estimator, resolve
from ppo_lightning.config.load import get
from ppo_lightning.config.schema import Config
from ppo_lightning.engines import find_engine
from ppo_lightning.errors import ConfigError, PPOLightningError

AT_LEAST_ONE = (
    "data.max_prompt_tokens",
    "data.prompts_per_step",
    "rollout.rollouts_per_prompt",
    "rollout.response_tokens",
    "rollout.sequences_per_batch",
    "validation.samples_per_prompt",
    "reward.workers",
    "update.ppo_epochs",
    "update.sequences_per_microbatch",
    "trainer.epochs",
    "algorithm.filter_groups_max_batches",
    "trainer.devices",
    "trainer.nodes",
    "trainer.max_skipped_steps",
    "checkpoint.keep",
)
AT_LEAST_ZERO = (
    "actor.lr",
    "critic.lr",
    "critic.warmup_steps",
    "update.weight_decay",
    "update.lr_warmup_steps",
    "validation.every_steps",
    "validation.temperature",
    "checkpoint.every_steps",
    "logging.samples_per_step",
    "data.workers",
    "model.lora_rank",
    "reward.memory_mb",
    "reward.max_error_share",
)
ABOVE_ZERO = (
    "rollout.temperature",
    "model.lora_alpha",
    "actor.grad_clip",
    "critic.grad_clip",
    "reward.timeout_s",
    "rollout.request_timeout_s",
)
OPTIONAL = (
    "trainer.steps",
    "trainer.threads",
    "update.sequences_per_minibatch",
    "update.tokens_per_microbatch",
    "data.max_train_rows",
)


def validate(config: Config) -> None:
    """Check everything that options must satisfy together.

    Raises:
        ConfigError: with one line per problem.
    """
    problems = [problem for check in CHECKS for problem in check(config)]
    if problems:
        raise ConfigError("\n".join(problems))


def ranks(config: Config) -> int:
    """Return the number of data-parallel processes."""
    return config.trainer.devices * config.trainer.nodes


def sequences_per_step(config: Config) -> int:
    """Return prompts x n."""
    return config.data.prompts_per_step * config.rollout.rollouts_per_prompt


def sequences_per_minibatch(config: Config) -> int:
    """Return the rollouts of one optimizer step over all ranks."""
    return config.update.sequences_per_minibatch or sequences_per_step(config)


def optimizer_steps(config: Config) -> int:
    """Return optimizer steps per training step."""
    return -(-sequences_per_step(config) // sequences_per_minibatch(config)) * config.update.ppo_epochs


def _ranges(config: Config) -> Iterator[str]:
    for key in AT_LEAST_ONE:
        if get(config, key) < 1:
            yield f"{key}={get(config, key)} must be at least 1"
    for key in OPTIONAL:
        if get(config, key) is not None and get(config, key) < 1:
            yield f"{key}={get(config, key)} must be at least 1, or null"
    for key in AT_LEAST_ZERO:
        if get(config, key) < 0:
            yield f"{key}={get(config, key)} must not be negative"
    for key in ABOVE_ZERO:
        if not get(config, key) > 0:
            yield f"{key}={get(config, key)} must be above 0"
    if len(config.update.betas) != 2:
        yield f"update.betas={config.update.betas} must hold two numbers"


def _arithmetic(config: Config) -> Iterator[str]:
    total, mini, size = sequences_per_step(config), sequences_per_minibatch(config), ranks(config)
    if total < 1 or mini < 1:
        return
    if mini > total or total % mini:
        near = ", ".join(str(n) for n in range(1, total + 1) if total % n == 0)
        yield (
            f"update.sequences_per_minibatch={mini} must divide the step's sequences, data.prompts_per_step="
            f"{config.data.prompts_per_step} x rollout.rollouts_per_prompt={config.rollout.rollouts_per_prompt} = "
            f"{total}: use one of {near}"
        )
    prompts = config.data.prompts_per_step
    if size > 1 and prompts % size:
        yield (
            f"data.prompts_per_step={prompts} must be divisible by dp_size={size} (trainer.devices x trainer.nodes): "
            f"use {prompts // size * size or size} or {(prompts // size + 1) * size}"
        )
    if size > 1 and mini % (size * config.rollout.rollouts_per_prompt):
        yield (
            f"update.sequences_per_minibatch={mini} must hold whole prompts on each of {size} ranks: use a multiple of "
            f"{size * config.rollout.rollouts_per_prompt}"
        )
    budget, longest = (
        config.update.tokens_per_microbatch,
        config.data.max_prompt_tokens + config.rollout.response_tokens,
    )
    if budget is not None and budget < longest:
        yield (
            f"update.tokens_per_microbatch={budget} must hold the longest sequence, data.max_prompt_tokens + "
            f"rollout.response_tokens = {longest}: raise it or shorten those"
        )


def _devices(config: Config) -> Iterator[str]:
    if config.trainer.strategy == "single" and ranks(config) > 1:
        yield (
            f"trainer.strategy=single runs on one device, got trainer.devices={config.trainer.devices} x trainer.nodes="
            f"{config.trainer.nodes}: use strategy=ddp, or strategy=fsdp where a model does not fit on one device"
        )


def _sharded(config: Config) -> Iterator[str]:
    """What works on whole tensors, where fsdp cuts them."""
    if config.trainer.strategy == "fsdp" and config.trainer.offload:
        yield "trainer.offload=True needs whole weights on each rank: use trainer.strategy=ddp, or leave it off"


def _algorithm(config: Config) -> Iterator[str]:
    n = config.rollout.rollouts_per_prompt
    try:
        estimator = find_estimator(ADVANTAGES, config.algorithm.adv_estimator)
        if estimator.grouped and n < 2:
            yield (
                f"algorithm.adv_estimator={config.algorithm.adv_estimator} compares the rollouts of one prompt: "
                f"rollout.rollouts_per_prompt={n} must be at least 2, 8 is usual"
            )
        check_adv_options(estimator, config.algorithm)
    except PPOLightningError as error:
        yield _named("algorithm.adv_estimator", error)
    try:
        check_loss_options(find_policy_loss(POLICY_LOSSES, config.actor.policy_loss), config.actor)
    except PPOLightningError as error:
        yield _named("actor.policy_loss", error)
    if config.algorithm.filter_groups and n < 2:
        yield f"algorithm.filter_groups needs rollout.rollouts_per_prompt of at least 2, got {n}"
    if config.algorithm.kl_ctrl == "adaptive" and not (
        config.algorithm.kl_target > 0 and config.algorithm.kl_horizon > 0
    ):
        yield "algorithm.kl_ctrl=adaptive needs algorithm.kl_target and algorithm.kl_horizon above 0"


def _named(key: str, error: PPOLightningError) -> str:
    """Return the message with the key that the user set, if it does not name one of the same section."""
    return str(error) if f"{key.partition('.')[0]}." in str(error) else f"{key}: {error}"


def _order(config: Config) -> Iterator[str]:
    try:
        if config.data.order is not None:
            resolve(config.data.order)
    except ConfigError as error:
        yield _named("data.order", error)


def _engine(config: Config) -> Iterator[str]:
    try:
        path = find_engine(config.rollout.engine)
        if ":" in config.rollout.engine:
            resolve(path)
    except ConfigError as error:
        yield _named("rollout.engine", error)
    if config.model.dtype == "float64" and config.rollout.dtype == "model" and config.rollout.engine.startswith("vllm"):
        yield f"rollout.engine={config.rollout.engine} has no float64: set rollout.dtype=float32"


def _sampling(config: Config) -> Iterator[str]:
    rollout, correction = config.rollout, config.rollout_correction
    truncated = [
        f"rollout.{name}={getattr(rollout, name)}"
        for name, on in (("top_p", rollout.top_p < 1), ("top_k", rollout.top_k > 0), ("min_p", rollout.min_p > 0))
        if on
    ]
    if truncated and correction.rollout_is == "off" and not correction.bypass_mode:
        yield (
            f"{', '.join(truncated)}: training on a truncated distribution is biased, since the trainer normalises "
            "over the whole vocabulary: use 1.0, -1 and 0.0, or correct for it with rollout_correction.rollout_is=token"
        )
    if config.validation.samples_per_prompt > 1 and config.validation.temperature == 0:
        yield (
            f"validation.samples_per_prompt={config.validation.samples_per_prompt} with validation.temperature=0 would "
            "sample the same response every time: set a temperature, such as 1.0, or one sample"
        )
    if rollout.engine == "vllm_server" and not rollout.servers:
        yield "rollout.engine=vllm_server needs rollout.servers, such as [http://127.0.0.1:8000]"


def _correction(config: Config) -> Iterator[str]:
    try:
        read_settings(config.rollout_correction)
        needs_forward = "sum_pi_squared" in find_estimator(ADVANTAGES, config.algorithm.adv_estimator).reads
    except ConfigError as error:
        yield str(error)
        return
    if needs_forward and config.rollout_correction.bypass_mode:
        yield (
            f"algorithm.adv_estimator={config.algorithm.adv_estimator} needs the policy's forward before the update, "
            "which rollout_correction.bypass_mode leaves out: set it to false"
        )


def _reward(config: Config) -> Iterator[str]:
    from ppo_lightning.rewards.validate import problems

    yield from problems(config.reward, config.rollout.response_tokens)


def _checkpoint(config: Config) -> Iterator[str]:
    checkpoint, validation = config.checkpoint, config.validation
    if checkpoint.best_metric is None or not checkpoint.every_steps:
        return
    if config.data.val is None:
        yield f"checkpoint.best_metric={checkpoint.best_metric} needs validation rows: set data.val"
    elif not validation.every_steps or checkpoint.every_steps % validation.every_steps:
        yield (
            f"checkpoint.best_metric={checkpoint.best_metric} compares weights that are saved: checkpoint.every_steps="
            f"{checkpoint.every_steps} must be a multiple of validation.every_steps={validation.every_steps}"
        )


CHECKS: tuple[Callable[[Config], Iterator[str]], ...] = (
    _ranges,
    _arithmetic,
    _devices,
    _sharded,
    _algorithm,
    _order,
    _engine,
    _sampling,
    _correction,
    _reward,
    _checkpoint,
)
