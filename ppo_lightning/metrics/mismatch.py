"""How far the engine's probabilities are from the trainer's: the alarm for stale weights and wrong precision.

Stage settle. Divergences of the two (rollout_corr/*) are measured by `algorithms/rollout_correction`.
Legend: B rows on this rank, R response width.
"""

from ppo_lightning.metrics.moments import PearsonValue, StdValue
from ppo_lightning.metrics.values import MetricBook
from ppo_lightning.protocol.data_proto import DataProto
from ppo_lightning.protocol.padding import without_padding

PREFIX = "training/rollout_probs_diff"


def mismatch_metrics(batch: DataProto, book: MetricBook) -> None:
    """Write training/rollout_probs_diff_{valid,max,mean,std} and training/rollout_actor_probs_pearson_corr.

    Reads: rollout_log_probs, old_log_probs, response_mask (B, R). Over valid response tokens of all ranks. Without any,
    `valid` is 0 and the others are absent; the deviation needs two tokens, the correlation two that differ.
    """
    tensors = without_padding(batch).tensors()
    mask = tensors["response_mask"].bool()
    engine, trainer = (tensors[field].float().exp() for field in ("rollout_log_probs", "old_log_probs"))
    diff = (trainer - engine).abs()
    book.max(f"{PREFIX}_valid", mask.any().double())
    book.max(f"{PREFIX}_max", diff, mask)
    book.masked_mean(f"{PREFIX}_mean", diff, mask)
    book.add(f"{PREFIX}_std", StdValue, StdValue.row(diff, mask))
    book.add("training/rollout_actor_probs_pearson_corr", PearsonValue, PearsonValue.row(trainer, engine, mask))
