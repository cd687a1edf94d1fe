"""What is declared of a metric, and the switches of the configuration that it depends on. Torch-free."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from ppo_lightning.algorithms import ADVANTAGES, POLICY_LOSSES
from ppo_lightning.algorithms.tables import find_estimator
from ppo_lightning.config.schema import Config
from ppo_lightning.stages import STAGES, uses_critic

Absent = Callable[[Config], str | None]


def logged(config: Config) -> None:
    """Whatever the configuration, the metric is logged."""


@dataclass(frozen=True)
class MetricSpec:
    """One metric key, or a family of keys.

    Attributes:
        key: as it is logged; `<name>` stands for any text, `<N>` and `<k>` for a number.
        reduction: over micro-batches and ranks: MEAN (of sums and counts), SUM, MIN, MAX, LOSS (sum over micro-batches,
            mean over mini-batches and ranks), or a statistic merged from moments.
        numerator: what is added up, or what the extreme is of.
        denominator: what it is divided by, "-" for nothing.
        unit: of the number.
        stage: that writes it.
        absent_because: the switch that keeps it out of a run with this configuration; None: it is logged.
    """

    key: str
    reduction: str
    numerator: str
    denominator: str
    unit: str
    stage: str
    absent_because: Absent = logged

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """What the keys of the family look like."""
        pieces = re.split(r"(<[^>]+>)", self.key)
        held = {"<N>": r"\d+", "<k>": r"\d+", "<data_source>": r".+"}
        return re.compile("".join(held.get(p, r"[^/]+") if p.startswith("<") else re.escape(p) for p in pieces))

    def matches(self, key: str) -> bool:
        """Return whether this is the declaration of a logged key."""
        return self.key == key or ("<" in self.key and self.pattern.fullmatch(key) is not None)


@dataclass(frozen=True)
class Guide:
    """What a person wants to know about metrics that belong together.

    Attributes:
        keys: patterns of declared keys; `*` stands for any text.
        meaning: what the numbers tell.
        healthy: what they look like in a sound run.
        action: what to do when they do not.
    """

    keys: tuple[str, ...]
    meaning: str
    healthy: str
    action: str


def spread(
    key: str, of: str, over: str, unit: str, stage: str, absent_because: Absent = logged
) -> tuple[MetricSpec, ...]:
    """Declare `key`/mean, /max and /min of the same things."""
    return (
        MetricSpec(f"{key}/mean", "MEAN", of, over, unit, stage, absent_because),
        MetricSpec(f"{key}/max", "MAX", f"{of}, over {over}", "-", unit, stage, absent_because),
        MetricSpec(f"{key}/min", "MIN", f"{of}, over {over}", "-", unit, stage, absent_because),
    )


def either(*reasons: Absent) -> Absent:
    """Return the first reason that holds."""

    def first(config: Config) -> str | None:
        return next((why for reason in reasons if (why := reason(config))), None)

    first.__doc__ = " Or: ".join(reason.__doc__ or "" for reason in reasons if reason is not logged)
    return first


def no_critic(config: Config) -> str | None:
    """The estimator needs no critic (`algorithm.adv_estimator`)."""
    if uses_critic(config):
        return None
    with_critic = ", ".join(name for name, estimator in ADVANTAGES.items() if estimator.critic)
    return f"algorithm.adv_estimator={config.algorithm.adv_estimator} needs no critic; one does with {with_critic}"


def no_servers(config: Config) -> str | None:
    """The engine runs in this process (`rollout.engine` is not vllm_server)."""
    engine = config.rollout.engine
    return None if engine == "vllm_server" else f"rollout.engine={engine} needs no server; vllm_server does"


def no_kl_in_reward(config: Config) -> str | None:
    """KL in the reward is off (`algorithm.use_kl_in_reward`)."""
    return None if config.algorithm.use_kl_in_reward else "algorithm.use_kl_in_reward=false: no KL in the reward"


def no_kl_loss(config: Config) -> str | None:
    """KL in the loss is off (`actor.use_kl_loss`)."""
    return None if config.actor.use_kl_loss else "actor.use_kl_loss=false: no KL in the loss"


def no_importance_weights(config: Config) -> str | None:
    """Importance weights are off (`rollout_correction.rollout_is`)."""
    return "rollout_correction.rollout_is=off" if config.rollout_correction.rollout_is == "off" else None


def no_batch_normalisation(config: Config) -> str | None:
    """Weights are not normalised (`rollout_correction.rollout_is_batch_normalize`)."""
    normalised = config.rollout_correction.rollout_is_batch_normalize
    return None if normalised else "rollout_correction.rollout_is_batch_normalize=false"


def no_lower_bound(config: Config) -> str | None:
    """Weights have no lower bound (`rollout_correction.rollout_is_threshold`)."""
    bounds = config.rollout_correction.rollout_is_threshold
    return None if "_" in bounds else f"rollout_correction.rollout_is_threshold={bounds} has no lower bound"


def no_rejection(config: Config) -> str | None:
    """Rejection is off (`rollout_correction.rollout_rs`)."""
    return "rollout_correction.rollout_rs=off" if config.rollout_correction.rollout_rs == "off" else None


def no_old_policy(config: Config) -> str | None:
    """Old log-probs are the engine's own (`rollout_correction.bypass_mode`)."""
    bypass = config.rollout_correction.bypass_mode
    return "rollout_correction.bypass_mode=true: old log-probs are the engine's own" if bypass else None


def no_group_filter(config: Config) -> str | None:
    """Groups are not filtered (`algorithm.filter_groups`)."""
    return None if config.algorithm.filter_groups else "algorithm.filter_groups=false"


def no_entropy(config: Config) -> str | None:
    """No forward of the unchanged policy is run (`rollout_correction.bypass_mode`)."""
    bypass = config.rollout_correction.bypass_mode
    return "rollout_correction.bypass_mode=true: no forward of the unchanged policy is run" if bypass else None


def no_entropy_bonus(config: Config) -> str | None:
    """The entropy is not in the loss (`actor.entropy_coeff`)."""
    return None if config.actor.entropy_coeff != 0.0 else "actor.entropy_coeff=0"


def no_clipping(config: Config) -> str | None:
    """The policy loss clips no ratio (`actor.policy_loss`)."""
    name = config.actor.policy_loss
    known = POLICY_LOSSES.get(name)
    plain = known is not None and not {"clip_ratio_low", "tau_pos"} & set(known.options)
    return f"actor.policy_loss={name} clips no ratio" if plain else None


def no_lower_clipping(config: Config) -> str | None:
    """The policy loss has no dual clip (`actor.policy_loss`)."""
    if config.actor.policy_loss == "clip_cov":
        return "actor.policy_loss=clip_cov has no dual clip"
    return no_clipping(config)


def no_ratio_kl(config: Config) -> str | None:
    """The policy loss uses no old log-probs (`actor.policy_loss=reinforce`)."""
    return "actor.policy_loss=reinforce uses no old log-probs" if config.actor.policy_loss == "reinforce" else None


def no_balancing(config: Config) -> str | None:
    """There is one rank, or rows are not balanced (`trainer.balance_batch`)."""
    if config.trainer.devices * config.trainer.nodes == 1:
        return "trainer.devices=1, trainer.nodes=1: nothing to balance"
    return None if config.trainer.balance_batch else "trainer.balance_batch=false"


def no_groups(config: Config) -> str | None:
    """Every prompt is sampled once."""
    return "rollout.rollouts_per_prompt=1" if config.rollout.rollouts_per_prompt == 1 else None


def no_score_norms(config: Config) -> str | None:
    """The estimator is no token baseline (`algorithm.adv_estimator`)."""
    estimator = find_estimator(ADVANTAGES, config.algorithm.adv_estimator)
    if "sum_pi_squared" in estimator.reads:
        return None
    needing = ", ".join(name for name, one in ADVANTAGES.items() if "sum_pi_squared" in one.reads)
    return f"algorithm.adv_estimator={config.algorithm.adv_estimator} reads no sum_pi_squared; these do: {needing}"


def no_peak(config: Config) -> str | None:
    """The device's peak is not known (a CPU, or `model.dtype=float32`)."""
    if config.trainer.accelerator == "cpu":
        return "trainer.accelerator=cpu: the peak of a CPU is not known"
    return None if config.model.dtype == "bfloat16" else f"model.dtype={config.model.dtype}: 16-bit peaks are known"


def no_validation(config: Config) -> str | None:
    """There are no validation rows (`data.val`)."""
    return "data.val=null" if config.data.val is None else None


def no_repeats(config: Config) -> str | None:
    """Every validation prompt is sampled once (`validation.samples_per_prompt`)."""
    once = config.validation.samples_per_prompt == 1
    return "validation.samples_per_prompt=1" if once else None


def no_checkpoint(config: Config) -> str | None:
    """Nothing is saved (`checkpoint.every_steps`)."""
    return "checkpoint.every_steps=0" if config.checkpoint.every_steps == 0 else None


def stage_skipped(timer: str) -> Absent:
    """Return why the stage with this timer does not run."""
    return next(stage.skipped_because for stage in STAGES if stage.timer == timer)
