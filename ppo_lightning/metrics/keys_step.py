"""Declared metrics of the whole step: data, lengths, seconds, throughput, mismatch, variance, counters. Torch-free."""

from ppo_lightning.metrics.spec import (
    Absent,
    MetricSpec,
    either,
    logged,
    no_balancing,
    no_checkpoint,
    no_critic,
    no_group_filter,
    no_groups,
    no_old_policy,
    no_peak,
    no_score_norms,
    no_servers,
    no_validation,
    spread,
    stage_skipped,
)

TOKENS = "valid response tokens"
GIVEN = "rows with at least one response token"
ROWS = "rows, aborted ones included"
EVERY = "prompt + response tokens"


def _lengths(key: str, of: str, over: str, full: str) -> tuple[MetricSpec, ...]:
    share = MetricSpec(f"{key}/clip_ratio", "MEAN", f"rows whose {of} is {full}", over, "share", "settle")
    return (*spread(key, of, over, "tokens", "settle"), share)


def _seconds(timer: str, what: str, absent: Absent = logged, per: str | None = None) -> tuple[MetricSpec, ...]:
    wall = MetricSpec(f"timing_s/{timer}", "MEAN", f"wall seconds of {what}", "ranks", "s", "settle", absent)
    if per is None:
        return (wall,)
    ms = f"wall milliseconds of {what}"
    return wall, MetricSpec(f"timing_per_token_ms/{timer}", "MEAN", ms, per, "ms/token", "settle", absent)


def _mfu(name: str, what: str, absent: Absent) -> MetricSpec:
    return MetricSpec(
        f"perf/mfu/{name}", "MEAN", f"model FLOPs of {what}", "seconds x peak FLOP/s of all devices", "share", "settle",
        either(absent, no_peak),
    )  # fmt: skip


def _proxy(name: str, reduction: str, numerator: str, denominator: str) -> MetricSpec:
    key = f"variance_proxy/{name}"
    return MetricSpec(key, reduction, numerator, denominator, "squared gradient", "settle", no_score_norms)


DATA = (
    *spread("critic/score", "sum of token_level_scores over the row", GIVEN, "reward", "settle"),
    *spread("critic/rewards", "sum of token_level_rewards (KL subtracted) over the row", GIVEN, "reward", "settle"),
    *spread("critic/advantages", "advantages", TOKENS, "reward", "settle"),
    *spread("critic/returns", "returns", TOKENS, "reward", "settle"),
    *spread("critic/values", "values before the update", TOKENS, "reward", "settle", no_critic),
    MetricSpec(
        "critic/vf_explained_var", "EXPLAINED_VARIANCE", "1 - Var(returns - values)", f"Var(returns) + 1e-5, {TOKENS}",
        "share", "settle", no_critic,
    ),
    *_lengths("response_length", "response tokens", ROWS, "the response width R"),
    *_lengths("response_length_non_aborted", "response tokens", GIVEN, "the response width R"),
    *_lengths("prompt_length", "prompt tokens", ROWS, "the prompt width P"),
    MetricSpec("response/aborted_ratio", "MEAN", "rows without a response token", ROWS, "share", "settle"),
    *spread("reward/<column>", "a number that the scorer returns beside the score", "its rows", "-", "settle"),
)  # fmt: skip

SECONDS = (
    *_seconds("gen", "generation", per=TOKENS),
    *_seconds("align", "joining prompts and responses"),
    *_seconds("reward", "scoring (waiting for it, where it is streamed)"),
    MetricSpec("timing_s/reward_busy", "SUM", "wall seconds that samples spent in rewards", "-", "s", "score"),
    *_seconds("old_log_prob", "the old policy's forward", stage_skipped("old_log_prob")),
    *_seconds("ref", "the reference's forward", stage_skipped("ref"), EVERY),
    *_seconds("values", "the critic's forward", stage_skipped("values"), EVERY),
    *_seconds("adv", "rewards, correction and advantages", per=EVERY),
    *_seconds("update_critic", "the critic's update", no_critic, EVERY),
    *_seconds("update_actor", "the actor's update (none during critic.warmup_steps)", per=EVERY),
    *_seconds("update", "both updates"),
    *_seconds("update_weights", "sending weights to the engine"),
    *_seconds("save_checkpoint", "saving, on steps that save", no_checkpoint),
    *_seconds("testing", "validation, on steps that validate", no_validation),
    *_seconds("step", "the whole step"),
    *_seconds("<timer>", "any other timer"),
)

SPEED = (
    MetricSpec("perf/total_num_tokens", "SUM", EVERY, "-", "tokens", "settle"),
    MetricSpec(
        "perf/padding_ratio",
        "MEAN",
        "tokens computed by the updates' forward passes, padding included",
        "tokens of their rows, a shared prompt once",
        "ratio",
        "update",
    ),
    MetricSpec(
        "perf/forward_only_rows",
        "MEAN",
        "rows of updates without a backward pass",
        "rows of updates",
        "share",
        "update",
    ),
    MetricSpec("perf/time_per_step", "MEAN", "wall seconds of the step", "ranks", "s", "settle"),
    MetricSpec("perf/throughput", "MEAN", EVERY, "step seconds x devices", "tokens/s/device", "settle"),
    _mfu("actor", "the actor's update", logged),
    _mfu("critic", "the critic's update", no_critic),
    _mfu("actor_infer", "the old policy's forward", stage_skipped("old_log_prob")),
)


def _gap(name: str, reduction: str, numerator: str, denominator: str, unit: str = "probability") -> MetricSpec:
    return MetricSpec(f"training/{name}", reduction, numerator, denominator, unit, "settle", no_old_policy)


MISMATCH = (
    _gap("rollout_probs_diff_valid", "MAX", "1 if there is any valid token", "-", "0 or 1"),
    _gap("rollout_probs_diff_max", "MAX", "|p_trainer - p_engine|", "-"),
    _gap("rollout_probs_diff_mean", "MEAN", "|p_trainer - p_engine|", TOKENS),
    _gap("rollout_probs_diff_std", "STD", "|p_trainer - p_engine|", TOKENS),
    _gap("rollout_actor_probs_pearson_corr", "PEARSON", "p_trainer with p_engine", TOKENS, "-1..1"),
    _gap(
        "rollout_probs_diff_alarm", "MAX", "1 if rollout_probs_diff_mean is more than rounding explains", "-", "0 or 1"
    ),
)

VARIANCE = (
    _proxy("proxy1_signal_strength", "MEAN", "actor/grad_norm squared", "-"),
    _proxy("proxy2_total_power", "MEAN", "squared advantage x weight x score-norm proxy of the row", GIVEN),
    _proxy("proxy3_pure_noise", "PURE_NOISE", "proxy2 - proxy1", f"{GIVEN}, less 1"),
    _proxy("expected_a_squared", "MEAN", "squared mean advantage of the row", GIVEN),
    _proxy("expected_w", "MEAN", "score-norm proxy of the row", GIVEN),
)

COUNTERS = (
    MetricSpec("training/global_step", "MEAN", "number of the step, from 1", "-", "steps", "settle"),
    MetricSpec("training/epoch", "MEAN", "epoch of the training prompts, from 0", "-", "epochs", "settle"),
    MetricSpec("training/skipped_steps", "SUM", "1 if a number was not finite and the step has no update", "-", "steps",
               "update"),
    MetricSpec("training/empty_minibatches", "SUM", "mini-batches without a valid token: no optimizer step", "-",
               "mini-batches", "update"),
    MetricSpec("training/nonfinite_values", "SUM", "NaN and infinite values that went into metrics", "-", "values",
               "settle"),
    MetricSpec("training/equal_score_groups", "MEAN", "groups whose rows all have the same score",
               "groups of at least two rows", "share", "settle", no_groups),
    MetricSpec("training/warnings", "SUM", "conditions of docs/warnings.md that are met", "-", "conditions", "settle"),
    MetricSpec("training/records_lost", "SUM", "rollout dumps and logger calls that failed since the last step", "-",
               "records", "settle"),
    MetricSpec("training/rollout_servers_lost", "SUM", "vLLM servers that stopped answering", "-", "servers", "rollout",
               no_servers),
    MetricSpec("training/rollout_requests_moved", "SUM", "requests sent again because their server was lost", "-",
               "requests", "rollout", no_servers),
    MetricSpec("training/num_gen_batches", "MAX", "rollout batches drawn for the step", "-", "batches", "rollout",
               no_group_filter),
    MetricSpec("training/dropped_groups", "SUM", "groups whose scores are all equal", "-", "groups", "score",
               no_group_filter),
    MetricSpec("global_seqlen/min", "MIN", "tokens of a rank before balancing", "-", "tokens", "align", no_balancing),
    MetricSpec("global_seqlen/max", "MAX", "tokens of a rank before balancing", "-", "tokens", "align", no_balancing),
    MetricSpec("global_seqlen/minmax_diff", "MAX", "max - min before balancing", "-", "tokens", "align", no_balancing),
    MetricSpec("global_seqlen/balanced_min", "MIN", "tokens of a rank after balancing", "-", "tokens", "align",
               no_balancing),
    MetricSpec("global_seqlen/balanced_max", "MAX", "tokens of a rank after balancing", "-", "tokens", "align",
               no_balancing),
    MetricSpec("global_seqlen/mean", "MEAN", "tokens of the step", "ranks", "tokens", "align", no_balancing),
)  # fmt: skip

STEP = (*DATA, *SECONDS, *SPEED, *MISMATCH, *VARIANCE, *COUNTERS)
