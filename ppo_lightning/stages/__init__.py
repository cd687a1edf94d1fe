"""The nine stages of a step in order: what each reads, writes, and when it is left out. Imports no torch.

File names, timers, tests and error messages carry these names; `module.py` runs them from this table.
"""

from collections.abc import Callable
from dataclasses import dataclass

from ppo_lightning.algorithms.tables import find_estimator
from ppo_lightning.config.schema import Config


def uses_critic(config: Config) -> bool:
    """Whether the estimator needs values."""
    from ppo_lightning.algorithms import ADVANTAGES

    return find_estimator(ADVANTAGES, config.algorithm.adv_estimator).critic


def uses_reference(config: Config) -> bool:
    """Whether a reference policy is needed: KL in the reward or in the loss."""
    return config.algorithm.use_kl_in_reward or config.actor.use_kl_loss


def strictly_on_policy(config: Config) -> bool:
    """Whether every rollout is used for exactly one optimizer step: the policy is still the one that sampled."""
    rollouts = config.data.prompts_per_step * config.rollout.rollouts_per_prompt
    mini = config.update.sequences_per_minibatch or rollouts
    return config.update.ppo_epochs == 1 and mini >= rollouts


def estimator_reads(config: Config) -> tuple[str, ...]:
    """Return what the estimator reads."""
    from ppo_lightning.algorithms import ADVANTAGES

    return find_estimator(ADVANTAGES, config.algorithm.adv_estimator).reads


def reads_squares(config: Config) -> bool:
    """Whether the estimator needs the sum over the vocabulary of squared probabilities at each token."""
    return "sum_pi_squared" in estimator_reads(config)


def corrects_rollout(config: Config) -> bool:
    """Whether importance weights or rejection are on."""
    correction = config.rollout_correction
    return correction.rollout_is != "off" or correction.rollout_rs != "off"


def reads_old_log_probs_early(config: Config) -> bool:
    """Whether something before the update needs old_log_probs."""
    reads = {"old_log_probs", "sum_pi_squared"} & set(estimator_reads(config))
    return config.algorithm.use_kl_in_reward or corrects_rollout(config) or bool(reads)


def _no_old_log_prob(config: Config) -> str | None:
    """One optimizer step per rollout, whose own forward gives the same numbers; or bypass mode."""
    if config.rollout_correction.bypass_mode:
        return "rollout_correction.bypass_mode takes the engine's log-probs"
    selects = config.actor.policy_loss in ("clip_cov", "kl_cov")
    if strictly_on_policy(config) and not reads_old_log_probs_early(config) and not selects:
        return "one optimizer step per rollout: the update's own forward gives the same numbers"
    return None


def _no_reference(config: Config) -> str | None:
    """KL is neither in the reward nor in the loss (`algorithm.use_kl_in_reward`, `actor.use_kl_loss`)."""
    return None if uses_reference(config) else "algorithm.use_kl_in_reward and actor.use_kl_loss are off"


def _no_values(config: Config) -> str | None:
    """The estimator needs no critic (`algorithm.adv_estimator`)."""
    return None if uses_critic(config) else f"algorithm.adv_estimator={config.algorithm.adv_estimator} needs no critic"


def _always(config: Config) -> None:
    return None


@dataclass(frozen=True)
class Stage:
    """One stage of a step.

    Attributes:
        name: file, test and error name.
        reads: batch keys that must be there.
        writes: batch keys that must be there afterwards.
        hook: the Lightning hook it runs in.
        timer: its key under timing_s/ (verl's name).
        skipped_because: why it does not run under a configuration; None: it runs.
    """

    name: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    hook: str
    timer: str
    skipped_because: Callable[[Config], str | None] = _always


ROLLED_OUT = ("prompts", "responses", "input_ids", "attention_mask", "position_ids", "rollout_log_probs")

STAGES: tuple[Stage, ...] = (
    Stage("rollout", ("raw_prompt_ids", "uid"), (*ROLLED_OUT, "response_mask"), "on_train_batch_start", "gen"),
    Stage("align", ROLLED_OUT, ("response_mask", "global_token_num"), "on_train_batch_start", "align"),
    Stage("score", ("responses", "response_mask"), ("rm_scores",), "on_train_batch_start", "reward"),
    Stage("old_log_prob", ROLLED_OUT, ("old_log_probs",), "on_train_batch_start", "old_log_prob", _no_old_log_prob),
    Stage("ref_log_prob", ROLLED_OUT, ("ref_log_prob",), "on_train_batch_start", "ref", _no_reference),
    Stage("values", ROLLED_OUT, ("values",), "on_train_batch_start", "values", _no_values),
    Stage(
        "advantage",
        ("rm_scores", "response_mask", "uid"),
        ("token_level_scores", "token_level_rewards", "advantages", "returns"),
        "on_train_batch_start",
        "adv",
    ),
    Stage("update", ("advantages", "returns", "response_mask"), ("old_log_probs",), "training_step", "update"),
    Stage("settle", ("token_level_scores", "old_log_probs"), (), "on_train_batch_end", "settle"),
)
