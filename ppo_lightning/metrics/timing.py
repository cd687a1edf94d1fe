"""Seconds of each stage, as they are and per token, under verl's names. Stage settle."""

from collections.abc import Mapping

from ppo_lightning.metrics.data import lengths
from ppo_lightning.metrics.values import MetricBook
from ppo_lightning.protocol.data_proto import DataProto
from ppo_lightning.protocol.padding import without_padding

# Stage of this package -> the name verl's users have on their dashboards. Other names are logged as they are.
VERL_NAMES = {"rollout": "gen", "score": "reward", "ref_log_prob": "ref", "advantage": "adv", "validation": "testing"}
PER_RESPONSE_TOKEN = ("gen",)
PER_TOKEN = ("ref", "values", "adv", "update_critic", "update_actor")


def timing_metrics(batch: DataProto, seconds: Mapping[str, float], book: MetricBook, ranks: int = 1) -> None:
    """Write timing_s/<stage> (mean over ranks) and timing_per_token_ms/<stage> (that over all ranks' tokens).

    Reads: responses, attention_mask. Time per token is absent for a batch without tokens.

    Args:
        batch: this rank's rows.
        seconds: wall seconds by name of stage or of timer (`step`, `update_actor`, ...); summed over repeats.
        book: taken the numbers into.
        ranks: number of ranks that write into the same metric.
    """
    prompt, response = lengths(without_padding(batch))
    tokens = {"response": response.sum(), "all": response.sum() + prompt.sum()}
    for stage, wall in seconds.items():
        name = VERL_NAMES.get(stage, stage)
        book.mean(f"timing_s/{name}", wall)
        counted = "response" if name in PER_RESPONSE_TOKEN else "all" if name in PER_TOKEN else None
        if counted:
            book.mean(f"timing_per_token_ms/{name}", 1000.0 * wall / ranks, tokens[counted])
