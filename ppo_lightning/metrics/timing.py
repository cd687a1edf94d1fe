"""Seconds of each stage, as they are and per token, under verl's names. Stage settle."""

from collections.abc import Mapping

from ppo_lightning.metrics.data import lengths
from ppo_lightning.metrics.values import MetricBook
from ppo_lightning.protocol.data_proto import DataProto
from ppo_lightning.protocol.padding import without_padding

PER_RESPONSE_TOKEN = ("gen",)
PER_TOKEN = ("ref", "values", "adv", "update_critic", "update_actor")


def timing_metrics(batch: DataProto, seconds: Mapping[str, float], book: MetricBook, ranks: int = 1) -> None:
    """Write timing_s/<stage> (mean over ranks) and timing_per_token_ms/<stage> (that over all ranks' tokens).

    Reads: responses, attention_mask. Time per token is absent for a batch without tokens.

    Args:
        batch: this rank's rows.
        seconds: wall seconds by timer (the stages' timers, `step`, `update_actor`, ...), summed over repeats.
        book: taken the numbers into.
        ranks: number of ranks that write into the same metric.
    """
    prompt, response = lengths(without_padding(batch))
    tokens = {"response": response.sum(), "all": response.sum() + prompt.sum()}
    for name, wall in seconds.items():
        book.mean(f"timing_s/{name}", wall)
        counted = "response" if name in PER_RESPONSE_TOKEN else "all" if name in PER_TOKEN else None
        if counted:
            book.mean(f"timing_per_token_ms/{name}", 1000.0 * wall / ranks, tokens[counted])
