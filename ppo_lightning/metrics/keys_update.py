"""Declared metrics of rewards, correction and updates: reward faults, rollout_corr/*, actor/*, critic/*. Torch-free."""

from ppo_lightning.metrics.spec import (
    Absent,
    MetricSpec,
    either,
    no_batch_normalisation,
    no_clipping,
    no_critic,
    no_entropy,
    no_entropy_bonus,
    no_importance_weights,
    no_kl_in_reward,
    no_kl_loss,
    no_lower_bound,
    no_lower_clipping,
    no_ratio_kl,
    no_rejection,
)
from ppo_lightning.rewards.sample import FAULTS

TOKENS = "valid response tokens"
GIVEN = "rows with at least one response token"
MINI = "mini-batch steps"
LOSS_COUNT = "count of update.loss_agg_mode over the global mini-batch"

ACTOR = (
    MetricSpec("actor/pg_loss", "LOSS", "policy loss of the tokens", LOSS_COUNT, "loss", "update"),
    MetricSpec("actor/loss", "LOSS", "policy loss - entropy bonus + KL loss", LOSS_COUNT, "loss", "update"),
    MetricSpec("actor/pg_clipfrac", "MEAN", "tokens whose ratio is clipped and whose gradient that stops", TOKENS,
               "share", "update", no_clipping),
    MetricSpec("actor/pg_clipfrac_lower", "MEAN", "tokens that the dual clip bounds (advantage < 0)", TOKENS,
               "share", "update", no_lower_clipping),
    MetricSpec("actor/ppo_kl", "MEAN", "old_log_prob - log_prob", TOKENS, "nats", "update", no_ratio_kl),
    MetricSpec("actor/entropy", "LOSS", "entropy of the policy before the update", LOSS_COUNT, "nats",
               "old_log_prob or update", no_entropy),
    MetricSpec("actor/entropy_loss", "LOSS", "entropy of the policy being trained", LOSS_COUNT, "nats", "update",
               no_entropy_bonus),
    MetricSpec("actor/kl_loss", "LOSS", "KL(current, reference) by actor.kl_loss_type", LOSS_COUNT, "nats", "update",
               no_kl_loss),
    MetricSpec("actor/kl_coef", "MEAN", "actor.kl_loss_coef", MINI, "-", "update", no_kl_loss),
    MetricSpec("actor/kl_clamped_frac", "MEAN", "tokens whose log-ratio to the reference is clamped", TOKENS, "share",
               "update", no_kl_loss),
    MetricSpec("actor/grad_norm", "MEAN", "gradient norm before clipping", MINI, "-", "update"),
    MetricSpec("actor/lr", "MEAN", "learning rate at the end of the step", "-", "-", "settle"),
    MetricSpec("actor/reward_kl_penalty", "MEAN", "mean KL(old, reference) over the row's tokens", GIVEN, "nats",
               "advantage", no_kl_in_reward),
    MetricSpec("actor/reward_kl_penalty_coeff", "MEAN", "algorithm.kl_coef, as the controller moved it", "-", "-",
               "advantage", no_kl_in_reward),
)  # fmt: skip

CRITIC = (
    MetricSpec("critic/vf_loss", "LOSS", "half the squared error of the values, clipped", LOSS_COUNT, "loss", "update",
               no_critic),
    MetricSpec("critic/vf_clipfrac", "MEAN", "tokens whose clipped error is the larger", TOKENS, "share", "update",
               no_critic),
    MetricSpec("critic/vpred_mean", "MEAN", "values being trained", TOKENS, "reward", "update", no_critic),
    MetricSpec("critic/grad_norm", "MEAN", "gradient norm before clipping", MINI, "-", "update", no_critic),
    MetricSpec("critic/lr", "MEAN", "learning rate at the end of the step", "-", "-", "settle", no_critic),
)  # fmt: skip

REWARD = tuple(
    MetricSpec(f"reward/{kind}", "SUM", f"samples whose scoring failed: {kind}", "-", "samples", "score")
    for kind in FAULTS
)


DISTANCE = "advantage, settle or update"
"""Which stage compares engine and policy: with correction, without, in bypass mode."""


def _corr(name: str, numerator: str, denominator: str = TOKENS, unit: str = "-") -> MetricSpec:
    return MetricSpec(f"rollout_corr/{name}", "MEAN", numerator, denominator, unit, DISTANCE)


DIVERGENCE = (
    _corr("kl", "log p_engine - log p_trainer (k1)", unit="nats"),
    _corr("k3_kl", "ratio - 1 - log ratio, ratio = p_trainer / p_engine (k3)", unit="nats"),
    _corr("chi2_token", "ratio squared, less 1"),
    _corr("chi2_seq", "squared ratio of the whole row, less 1", GIVEN),
    _corr("training_ppl", "perplexity of the row under the trainer", GIVEN),
    _corr("training_log_ppl", "log of it", GIVEN, "nats"),
    _corr("rollout_ppl", "perplexity of the row under the engine", GIVEN),
    _corr("rollout_log_ppl", "log of it", GIVEN, "nats"),
    _corr("log_ppl_diff", "training_log_ppl - rollout_log_ppl of the row", GIVEN, "nats"),
    _corr("log_ppl_abs_diff", "its absolute value", GIVEN, "nats"),
    MetricSpec("rollout_corr/log_ppl_diff_max", "MAX", f"log_ppl_diff, over {GIVEN}", "-", "nats", DISTANCE),
    MetricSpec("rollout_corr/log_ppl_diff_min", "MIN", f"log_ppl_diff, over {GIVEN}", "-", "nats", DISTANCE),
    _corr("ppl_ratio", "training_ppl / rollout_ppl of the row", GIVEN),
)  # fmt: skip


def _statistic(stem: str, what: str, absent: Absent) -> tuple[MetricSpec, ...]:
    """Declare what is measured of importance weights and of every rejection rule, over tokens and over rows."""
    found: list[MetricSpec] = []
    for suffix, over in (("", TOKENS), ("_seq", GIVEN)):
        of = f"row mean of {what}" if suffix else what
        key = f"{stem}{suffix}"
        found += [
            MetricSpec(f"{key}_{name}", name.upper(), of, over, "-", "advantage", absent) for name in ("mean", "std")
        ]
        for name in ("max", "min"):
            found.append(MetricSpec(f"{key}_{name}", name.upper(), f"{of}, over {over}", "-", "-", "advantage", absent))
    return tuple(found)


def _share(key: str, what: str, over: str, absent: Absent) -> MetricSpec:
    return MetricSpec(key, "MEAN", what, over, "share", "advantage", absent)


IS, RS = "rollout_corr/rollout_is", "rollout_corr/rollout_rs"
RULE = f"{RS}_<rule>"

WEIGHTS = (
    *_statistic(IS, "importance weights as applied", no_importance_weights),
    _share(f"{IS}_eff_sample_size", "squared sum of weights / sum of squared weights", TOKENS, no_importance_weights),
    _share(f"{IS}_ratio_fraction_high", "tokens whose raw weight is above the upper bound", TOKENS,
           no_importance_weights),
    _share(f"{IS}_ratio_fraction_low", "tokens whose raw weight is below the lower bound", TOKENS,
           no_importance_weights),
    _share(f"{IS}_seq_fraction_high", "rows whose mean raw weight is above the upper bound", GIVEN,
           no_importance_weights),
    _share(f"{IS}_seq_fraction_low", "rows whose mean raw weight is below the lower bound", GIVEN,
           no_importance_weights),
    MetricSpec(f"{IS}_seq_max_deviation", "MAX", "|row mean of weights - 1|", "-", "-", "advantage",
               no_importance_weights),
    _share(f"{IS}_oob_ratio", "tokens whose raw weight is outside the band", TOKENS,
           either(no_importance_weights, no_lower_bound)),
    MetricSpec(f"{IS}_batch_norm_factor", "MEAN", "mean weight that the weights were divided by", "-", "-",
               "advantage", either(no_importance_weights, no_batch_normalisation)),
)  # fmt: skip

REJECTION = (
    _share(f"{RS}_masked_fraction", "tokens that any rule rejects", TOKENS, no_rejection),
    _share(f"{RS}_seq_masked_fraction", "rows with a rejected token", GIVEN, no_rejection),
    _share(f"{RULE}_seq_masked_fraction", "rows with a token that the rule rejects", GIVEN, no_rejection),
    _share(f"{RULE}_masked_fraction", "tokens that the rule rejects", TOKENS, no_rejection),
    _share(f"{RULE}_seq_fraction_high", "rows above the rule's upper bound", GIVEN, no_rejection),
    _share(f"{RULE}_seq_fraction_low", "rows below the rule's lower bound", GIVEN, no_rejection),
    _share(f"{RULE}_fraction_high", "tokens (rows, for seq rules) above the upper bound", TOKENS, no_rejection),
    _share(f"{RULE}_fraction_low", "tokens (rows, for seq rules) below the lower bound", TOKENS, no_rejection),
    MetricSpec(f"{RULE}_seq_max_deviation", "MAX", "|statistic of the row|", "-", "-", "advantage", no_rejection),
    *reversed(_statistic(RULE, "the rule's statistic", no_rejection)),
)

UPDATE = (*ACTOR, *CRITIC, *REWARD, *DIVERGENCE, *WEIGHTS, *REJECTION)
