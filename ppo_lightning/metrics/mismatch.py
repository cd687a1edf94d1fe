"""How far the engine's probabilities are from the trainer's: the alarm for stale weights and wrong precision.

Stage settle. Divergences of the two (rollout_corr/*) are measured by `algorithms/rollout_correction`.
Legend: B rows on this rank, R response width.
"""

from ppo_lightning.config.schema import Config
from ppo_lightning.errors import EngineError
from ppo_lightning.metrics.entries import Entries
from ppo_lightning.metrics.moments import PearsonValue, StdValue
from ppo_lightning.metrics.values import MaxValue, MeanValue, MetricBook
from ppo_lightning.protocol.data_proto import DataProto
from ppo_lightning.protocol.padding import without_padding

PREFIX = "training/rollout_probs_diff"

EXPECTED = {"float64": 1e-2, "float32": 1e-2, "bfloat16": 5e-2}
"""Mean gap above which rounding is no explanation, by the coarser of the two types (docs/engines.md)."""

ADVICE = (
    "look at check_weights, at the engine's sampling settings and types (docs/engines.md), or correct for the gap with "
    "rollout_correction.rollout_is=token"
)


def mismatch_metrics(batch: DataProto, book: MetricBook) -> None:
    """Write training/rollout_probs_diff_{valid,max,mean,std} and training/rollout_actor_probs_pearson_corr.

    Reads: rollout_log_probs, old_log_probs, response_mask (B, R). Over valid response tokens of all ranks. Without any,
    `valid` is 0 and the others are absent; the deviation needs two tokens, the correlation two that differ.
    """
    tensors = without_padding(batch).tensors()
    mask = tensors["response_mask"].bool()
    names = ("rollout_log_probs", "old_log_probs")
    engine, trainer = (Entries(tensors[name], mask).map(lambda logs: logs.float().exp()) for name in names)
    diff = trainer.map(lambda one, other: (one - other).abs_(), engine)
    book.max(f"{PREFIX}_valid", mask.any().double())
    book.add(f"{PREFIX}_max", MaxValue, MaxValue.entries_row(diff))
    book.add(f"{PREFIX}_mean", MeanValue, MeanValue.entries_row(diff))
    book.add(f"{PREFIX}_std", StdValue, StdValue.row(diff))
    book.add("training/rollout_actor_probs_pearson_corr", PearsonValue, PearsonValue.row(trainer, engine))


def raise_alarm(metrics: dict[str, float | None], config: Config) -> None:
    """Write training/rollout_probs_diff_alarm into a step's metrics (`metrics/advice.py` makes it a warning).

    Raises:
        EngineError: the mean gap exceeds rollout.max_probs_diff.
    """
    key = f"{PREFIX}_mean"
    gap = metrics.get(key)
    if gap is None:
        return
    bound = config.rollout.max_probs_diff
    if bound is not None and gap > bound:
        raise EngineError(f"{key}={gap:.2e} must not exceed rollout.max_probs_diff={bound:g}: {ADVICE}")
    types = {config.model.dtype, config.model.dtype if config.rollout.dtype == "model" else config.rollout.dtype}
    metrics[f"{PREFIX}_alarm"] = float(gap > max(EXPECTED[name] for name in types))
