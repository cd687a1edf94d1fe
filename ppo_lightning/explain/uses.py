"""Which stage reads and writes which field under which configuration, and if it does not, why. Imports no torch.

`stages.STAGES` holds what every run needs; here is the rest, which depends on the recipe.
"""

from collections.abc import Callable
from dataclasses import dataclass

from ppo_lightning.algorithms import POLICY_LOSSES
from ppo_lightning.config.schema import Config
from ppo_lightning.metrics.spec import (
    either,
    no_importance_weights,
    no_kl_in_reward,
    no_kl_loss,
    no_rejection,
    no_score_norms,
)
from ppo_lightning.rewards.routes import has_reward_model, has_rule, route
from ppo_lightning.stages import ROLLED_OUT, STAGES, Stage, corrects_rollout, estimator_reads

Reason = Callable[[Config], str | None]
READS, WRITES = "reads", "writes"


def always(config: Config) -> None:
    """Whatever the recipe."""


def because(*reasons: Reason) -> Reason:
    """Return the first reason that holds."""
    return either(*reasons)


def skipped(name: str) -> Reason:
    """Return why a stage does not run."""
    return next(stage.skipped_because for stage in STAGES if stage.name == name)


def no_bypass(config: Config) -> str | None:
    """Old log-probs are not the engine's."""
    return None if config.rollout_correction.bypass_mode else "rollout_correction.bypass_mode=false"


def bypass(config: Config) -> str | None:
    """Old log-probs are the engine's."""
    return "rollout_correction.bypass_mode=true" if config.rollout_correction.bypass_mode else None


def not_read_by_estimator(key: str) -> Reason:
    """Return why the estimator does not read `key`."""

    def reason(config: Config) -> str | None:
        name = config.algorithm.adv_estimator
        return None if key in estimator_reads(config) else f"algorithm.adv_estimator={name} does not read it"

    return reason


def no_streamed_rule(config: Config) -> str | None:
    """No rule scores during the rollout."""
    if not has_rule(config.reward):
        return "reward.model_path or reward.model_server scores instead of a rule"
    decided = route(has_reward_model(config.reward), config.reward.model_own_resources, has_scores=False)
    return None if decided.rule == "streamed" else "reward.model_own_resources=false: rules wait for the reward model"


def scored_by_rollout(config: Config) -> str | None:
    """Rules have scored during the rollout and no reward model adds anything."""
    if has_reward_model(config.reward):
        return None
    return "no reward model is on (reward.model_path, reward.model_server): the rollout's scores are extracted"


def weights_in_update(config: Config) -> str | None:
    """Weights are not made before the update."""
    bypass_mode = config.rollout_correction.bypass_mode
    return "rollout_correction.bypass_mode=true: the update makes them itself, per micro-batch" if bypass_mode else None


def no_shared_prompts(config: Config) -> str | None:
    """Every row's prompt is computed for itself."""
    return None if config.update.share_prompts else "update.share_prompts=false"


def no_truncation_mask(config: Config) -> str | None:
    """Truncated responses are trained."""
    return None if config.algorithm.mask_truncated else "algorithm.mask_truncated=false"


def no_correction(config: Config) -> str | None:
    """Neither weights nor rejection."""
    on = corrects_rollout(config)
    return None if on else "rollout_correction.rollout_is=off and rollout_correction.rollout_rs=off"


def no_selection(config: Config) -> str | None:
    """The policy loss takes every token."""
    record = POLICY_LOSSES.get(config.actor.policy_loss)
    return None if record and record.selection else f"actor.policy_loss={config.actor.policy_loss} picks no tokens"


def old_log_probs_are_there(config: Config) -> str | None:
    """The update finds old_log_probs, so that it does not write them."""
    if config.rollout_correction.bypass_mode:
        return "rollout_correction.bypass_mode=true: they are the engine's"
    return None if skipped("old_log_prob")(config) else "stage old_log_prob has written them"


def no_old_log_probs(config: Config) -> str | None:
    """There are no old_log_probs before the update: it makes them itself."""
    return None if old_log_probs_are_there(config) else skipped("old_log_prob")(config)


def not_for_advantage(config: Config) -> str | None:
    """Nothing in the advantage stage needs old_log_probs."""
    needs = config.algorithm.use_kl_in_reward or corrects_rollout(config)
    if (needs and not bypass(config)) or "old_log_probs" in estimator_reads(config):
        return None
    if config.algorithm.use_kl_in_reward:
        return None
    return "no KL in the reward, no rollout correction, and the estimator does not read them"


@dataclass(frozen=True)
class Use:
    """One stage reads or writes one field, unless `off` says why not."""

    stage: str
    way: str
    key: str
    off: Reason = always


def _uses(stage: str, way: str, keys: str, off: Reason = always) -> tuple[Use, ...]:
    return tuple(Use(stage, way, key, off) for key in keys.split())


EXTRA: tuple[Use, ...] = (
    *_uses("rollout", READS, "dataset_index global_steps validate eos_token_id pad_token_id"),
    *_uses("rollout", READS, "data_source reward_model extra_info raw_prompt", no_streamed_rule),
    *_uses("rollout", WRITES, "sample_index finish_reason temperature"),
    *_uses("rollout", WRITES, "rm_scores", no_streamed_rule),
    *_uses("rollout", WRITES, "reward_baselines", not_read_by_estimator("reward_baselines")),
    *_uses("score", READS, "rm_scores", no_streamed_rule),
    *_uses("score", READS, "finish_reason", no_truncation_mask),
    *_uses("score", WRITES, "response_mask", no_truncation_mask),
    *_uses("old_log_prob", READS, "response_mask temperature"),
    *_uses("old_log_prob", WRITES, "entropys"),
    *_uses("old_log_prob", WRITES, "sum_pi_squared", no_score_norms),
    *_uses("old_log_prob", READS, "uid", no_shared_prompts),
    *_uses("ref_log_prob", READS, "response_mask temperature"),
    *_uses("ref_log_prob", READS, "uid", no_shared_prompts),
    *_uses("values", READS, "response_mask"),
    *_uses("values", READS, "uid", no_shared_prompts),
    *_uses("advantage", READS, "old_log_probs", not_for_advantage),
    *_uses("advantage", READS, "ref_log_prob", no_kl_in_reward),
    *_uses("advantage", READS, "rollout_log_probs", lambda config: None if bypass(config) else no_correction(config)),
    *_uses("advantage", READS, "values", not_read_by_estimator("values")),
    *_uses("advantage", READS, "sum_pi_squared", not_read_by_estimator("sum_pi_squared")),
    *_uses("advantage", READS, "reward_baselines", not_read_by_estimator("reward_baselines")),
    *_uses("advantage", WRITES, "old_log_probs", no_bypass),
    *_uses("advantage", WRITES, "rollout_is_weights", because(no_importance_weights, weights_in_update)),
    *_uses("advantage", WRITES, "response_mask", because(no_rejection, bypass)),
    *_uses("update", READS, " ".join(ROLLED_OUT[:5]) + " temperature"),
    *_uses("update", READS, "uid", no_shared_prompts),
    *_uses("update", READS, "old_log_probs", no_old_log_probs),
    *_uses("update", READS, "rollout_log_probs", no_bypass),
    *_uses("update", READS, "ref_log_prob", no_kl_loss),
    *_uses("update", READS, "values", skipped("values")),
    *_uses("update", READS, "rollout_is_weights", because(no_importance_weights, weights_in_update)),
    *_uses("update", READS, "sample_index dataset_index", no_selection),
    *_uses("update", WRITES, "selection", no_selection),
    *_uses("settle", READS, "prompts responses attention_mask response_mask global_token_num"),
    *_uses("settle", READS, "token_level_rewards advantages returns data_source"),
    *_uses("settle", READS, "rollout_log_probs", bypass),
    *_uses("settle", READS, "values", skipped("values")),
    *_uses("settle", READS, "sum_pi_squared", no_score_norms),
    *_uses("settle", READS, "rollout_is_weights", because(no_importance_weights, weights_in_update)),
)

REASONS: dict[tuple[str, str, str], Reason] = {
    ("score", WRITES, "rm_scores"): scored_by_rollout,
    ("update", WRITES, "old_log_probs"): old_log_probs_are_there,
}
"""Why an entry of STAGES is left to somebody else."""


def uses_of(stage: Stage) -> tuple[Use, ...]:
    """Return everything that a stage reads and writes, under whatever recipe; reads first."""
    declared = [
        Use(stage.name, way, key, REASONS.get((stage.name, way, key), always))
        for way, keys in ((READS, stage.reads), (WRITES, stage.writes))
        for key in keys
    ]
    named = {(use.way, use.key) for use in declared}
    extra = [use for use in EXTRA if use.stage == stage.name and (use.way, use.key) not in named]
    return tuple(sorted((*declared, *extra), key=lambda use: use.way))
