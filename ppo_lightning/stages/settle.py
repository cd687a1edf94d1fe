"""Stage 9: what the whole batch says: data, timing, throughput and mismatch metrics."""

import time

from ppo_lightning.metrics.data import column_metrics, data_metrics
from ppo_lightning.metrics.mismatch import mismatch_metrics
from ppo_lightning.metrics.throughput import throughput_metrics
from ppo_lightning.metrics.timing import timing_metrics
from ppo_lightning.protocol.data_proto import DataProto
from ppo_lightning.samples import DATA_COLUMNS
from ppo_lightning.stages import corrects_rollout
from ppo_lightning.stages.context import StepContext
from ppo_lightning.stages.correction import measure_distance


def settle(batch: DataProto, context: StepContext) -> None:
    """Write the metrics of the finished step into the book.

    Reads: everything that earlier stages wrote.
    """
    book = context.book
    data_metrics(batch, book, context.critic is not None)
    if not context.config.rollout_correction.bypass_mode:  # there old_log_probs are the engine's
        mismatch_metrics(batch, book)
        if not corrects_rollout(context.config):
            measure_distance(batch, context)
    column_metrics(batch, book, [name for name in batch.non_tensor_batch if name not in DATA_COLUMNS])
    for name, optimizer in context.optimizers.items():
        book.mean(f"{name}/lr", optimizer.param_groups[0]["lr"])
    book.mean("training/global_step", context.step)
    context.seconds["step"] = time.perf_counter() - context.started
    timing_metrics(batch, context.seconds, book, context.ranks.size)
    throughput_metrics(batch, context.seconds["step"], book)
