"""The loop that actor and critic share: PPO epochs, mini-batches, micro-batches, one optimizer step per mini-batch."""

from collections.abc import Iterator
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn

from ppo_lightning.algorithms.aggregation import LossCounts, count
from ppo_lightning.metrics.values import MetricBook
from ppo_lightning.protocol.data_proto import DataProto
from ppo_lightning.stages.context import StepContext
from ppo_lightning.stages.forward import Chunk, micros


class Loss(Protocol):
    """What is optimised: a model with its loss on one micro-batch."""

    name: str
    grad_clip: float

    @property
    def model(self) -> nn.Module:
        """What is trained."""

    def prepare(self, mini: DataProto) -> None:
        """See the whole mini-batch before its first backward."""

    def __call__(self, micro: Chunk, counts: LossCounts, book: MetricBook) -> Tensor:
        """Return the micro-batch's share of the mini-batch loss."""


def optimise(batch: DataProto, context: StepContext, loss: Loss) -> None:
    """Take one optimizer step per mini-batch.

    The denominators are counted over the whole mini-batch and all ranks, after every masking, before the first
    backward. A mini-batch without a valid token anywhere is skipped; one whose gradient is not finite leaves weights,
    optimizer and schedule as they are and is counted in training/skipped_steps.
    """
    for rows in minibatch_rows(len(batch), context):
        mini = batch if rows is None else batch.select_idxs(rows)
        tokens, sequences = context.ranks.sum(count(mini.batch["response_mask"])).tolist()
        if not tokens:
            continue
        loss.prepare(mini)
        book = MetricBook()
        counts = LossCounts(tokens, sequences, context.ranks.size)
        for micro in micros(mini, context.config.update, context.sharing):
            context.backward(loss(micro, counts, book))
        _step(context, loss, book)
        context.book.update(book)
    if hasattr(loss, "finish"):
        loss.finish()


def minibatch_rows(rows: int, context: StepContext) -> Iterator[np.ndarray | None]:
    """Yield the rows of every mini-batch of every PPO epoch; None stands for all rows in order."""
    update = context.config.update
    size = (update.sequences_per_minibatch or rows * context.ranks.size) // context.ranks.size
    for epoch in range(update.ppo_epochs):
        if size >= rows:
            yield None
            continue
        order = np.arange(rows)
        if update.shuffle:
            order = np.random.default_rng((context.config.seed, context.step, epoch)).permutation(rows)
        for start in range(0, rows, size):
            yield order[start : start + size]


def _step(context: StepContext, loss: Loss, book: MetricBook) -> None:
    """Clip, check and apply the gradient; log its norm before clipping."""
    optimizer = context.optimizers[loss.name]
    norm = nn.utils.clip_grad_norm_(loss.model.parameters(), loss.grad_clip, error_if_nonfinite=False)
    finite = bool(torch.isfinite(norm))
    if finite:
        optimizer.step()
    else:
        book.sum("training/skipped_steps", 1.0)
        context.skipped = True
    optimizer.zero_grad(set_to_none=True)
    book.mean(f"{loss.name}/grad_norm", float(norm))
