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

    def prepare(self, mini: DataProto) -> bool:
        """See the whole mini-batch before its first backward; return whether its response mask changed."""

    def __call__(self, micro: Chunk, counts: LossCounts, book: MetricBook) -> Tensor:
        """Return the micro-batch's share of the mini-batch loss."""

    def close(self, mini: DataProto) -> None:
        """See the whole mini-batch after its last backward."""

    def finish(self) -> None:
        """Write what was measured over all mini-batches."""


def optimise(batch: DataProto, context: StepContext, loss: Loss) -> None:
    """Take one optimizer step per mini-batch.

    The denominators are counted over the whole mini-batch and all ranks, after every masking, before the first
    backward. A mini-batch without a valid token anywhere is skipped and counted in training/empty_minibatches; one
    whose gradient is not finite leaves weights, optimizer and schedule as they are and is counted in
    training/skipped_steps.
    """
    for rows in minibatch_rows(len(batch), context):
        # A batch of its own around the same tensors: what a loss adds to it is gone after the mini-batch.
        mini = (batch if rows is None else batch.select_idxs(rows)).select()
        counts = global_counts(mini, context)
        if counts is not None and loss.prepare(mini):
            counts = global_counts(mini, context)
        if counts is None:
            if context.ranks.first:
                context.book.sum("training/empty_minibatches", 1.0)
            continue
        book = MetricBook()
        for micro in micros(mini, context.config.update, context.sharing):
            context.backward(loss(micro, counts, book))
            book.mean("perf/padding_ratio", micro.computed, micro.needed)
        loss.close(mini)
        _step(context, loss, book)
        context.book.update(book)
    loss.finish()


def global_counts(mini: DataProto, context: StepContext) -> LossCounts | None:
    """Count the valid tokens and rows of a mini-batch over all ranks; None: there is none."""
    tokens, sequences = context.ranks.sum(count(mini.batch["response_mask"])).tolist()
    return LossCounts(tokens, sequences, context.ranks.size) if tokens else None


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
        if context.ranks.first:  # the gradient is the same on every rank
            book.sum("training/skipped_steps", 1.0)
        context.skipped = True
    optimizer.zero_grad(set_to_none=True)
    book.mean(f"{loss.name}/grad_norm", float(norm))
    context.gradient_norms.setdefault(loss.name, []).append(float(norm))
