"""The loop that actor and critic share: PPO epochs, mini-batches, micro-batches, one optimizer step per mini-batch."""

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn

from ppo_lightning.algorithms.aggregation import LossCounts, count
from ppo_lightning.metrics.values import MetricBook
from ppo_lightning.parallel.gradients import average_gradients, total_norm
from ppo_lightning.parallel.sharding import sum_gradients_at
from ppo_lightning.protocol.data_proto import DataProto
from ppo_lightning.stages.chunks import READ_BY_MODELS, Chunk, idle, micros
from ppo_lightning.stages.context import StepContext
from ppo_lightning.stages.finite import NAMES_A_ROW, update_fault
from ppo_lightning.stages.forward_only import apart
from ppo_lightning.stages.spread import epoch_rows


class Loss(Protocol):
    """What is optimised: a model with its loss on one micro-batch, and the tensors that the loss reads, if there."""

    name: str
    grad_clip: float
    reads: tuple[str, ...]

    @property
    def model(self) -> nn.Module:
        """What is trained."""

    def prepare(self, mini: DataProto) -> bool:
        """See the whole mini-batch before its first backward; return whether its response mask changed."""

    def __call__(self, micro: Chunk, counts: LossCounts, book: MetricBook) -> Tensor:
        """Return the micro-batch's share of the mini-batch loss."""

    def weightless(self, mini: DataProto) -> Tensor:
        """Mark the rows (B,) whose part of the loss is constant: there is nothing to learn from them."""

    def idle(self, micro: Chunk) -> Tensor:
        """Return a zero that depends on every parameter, from a micro-batch without valid tokens."""

    def close(self, mini: DataProto) -> None:
        """See the whole mini-batch after its last backward."""

    def finish(self) -> None:
        """Write what was measured over all mini-batches."""


def optimise(batch: DataProto, context: StepContext, loss: Loss, last: bool = True) -> None:
    """Take one optimizer step per mini-batch.

    The denominators are counted over the whole mini-batch and all ranks, after every masking, before the first
    backward. A mini-batch without a valid token anywhere is skipped and counted in training/empty_minibatches. A loss
    or gradient that is not finite ends the step's updates: it is the caller who takes back those before it.

    Args:
        batch: the step's rows.
        context: the step's surroundings.
        loss: what is optimised.
        last: whether no other model is updated after this one in the step.
    """
    epochs = context.config.update.ppo_epochs
    for epoch in range(epochs):
        minis = cut_minibatches(*epoch_rows(batch, context, epoch), loss.reads)
        for place, (mini, counts) in enumerate(zip(minis, global_counts(minis, context), strict=True), 1):
            if context.fault is None:
                context.look()
                _minibatch(mini, counts, context, loss, last and (epoch + 1, place) == (epochs, len(minis)))
    loss.finish()


def cut_minibatches(batch: DataProto, row_lists: Sequence[np.ndarray], reads: Sequence[str]) -> list[DataProto]:
    """Return the rows of each list with the tensors that models and a loss read, as far as they are there.

    Each is a batch of its own: what a loss adds to it is gone after the mini-batch. Consecutive rows are not copied. A
    mini-batch of all rows keeps the batch's order, in which a loss writes back what it measured.
    """
    tensors, columns = batch.tensors(), batch.non_tensor_batch
    keys = [key for key in dict.fromkeys((*READ_BY_MODELS, *NAMES_A_ROW, *reads)) if key in tensors]
    read = batch.select(keys, [key for key in NAMES_A_ROW if key in columns])
    return [_take(read, rows) for rows in row_lists]


def _take(batch: DataProto, rows: np.ndarray) -> DataProto:
    if len(rows) == len(batch):
        return batch.select()
    first = int(rows[0]) if len(rows) else 0
    consecutive = np.array_equal(rows, np.arange(first, first + len(rows)))
    return batch[first : first + len(rows)] if consecutive else batch.select_idxs(rows)


def _minibatch(mini: DataProto, counts: LossCounts | None, context: StepContext, loss: Loss, last: bool) -> None:
    if counts is not None and loss.prepare(mini):
        (counts,) = global_counts([mini], context)
    if counts is None:
        if context.ranks.first:
            context.book.sum("training/empty_minibatches", 1.0)
        return
    book = MetricBook()
    forward_only, trained = apart(mini, loss.weightless(mini))

    def value_of(micro: Chunk) -> Tensor:
        return loss(micro, counts, book)

    with torch.no_grad():
        forward = _passes(mini, forward_only, context, loss, value_of)
    backward = _passes(mini, trained, context, loss, value_of, context.backward)
    losses = forward + backward
    for micro, _ in losses:
        book.mean("perf/padding_ratio", micro.computed, micro.needed)
    book.mean("perf/forward_only_rows", len(forward_only), len(mini))
    context.trained.setdefault(loss.name, []).append((len(trained), len(mini)))
    loss.close(mini)
    if not context.ranks.sharded:  # a sharded model's gradients are averaged in its last backward pass
        average_gradients(loss.model.parameters(), context.ranks)
    _step(mini, context, loss, book, losses, last)
    context.book.update(book)


def _passes(
    mini: DataProto,
    rows: np.ndarray,
    context: StepContext,
    loss: Loss,
    value_of: Callable[[Chunk], Tensor],
    backward: Callable[[Tensor], None] | None = None,
) -> list[tuple[Chunk, Tensor]]:
    """Run rows of a mini-batch through a loss in micro-batches; return each with its value.

    With a sharded model every rank takes part in every pass, and the last backward pass averages the gradient.
    """
    update, sharing = context.config.update, context.sharing
    chunks = list(micros(mini, update, sharing, rows))
    passes = context.ranks.most(len(chunks)) if context.ranks.sharded else len(chunks)
    values: list[tuple[Chunk, Tensor]] = []
    for number in range(passes):
        sum_gradients_at(loss.model, last=number == passes - 1)
        value = value_of(chunks[number]) if number < len(chunks) else loss.idle(idle(mini, update, sharing))
        if backward is not None:
            backward(value)
        if number < len(chunks):
            values.append((chunks[number], value.detach()))
    return values


def global_counts(minis: Sequence[DataProto], context: StepContext) -> list[LossCounts | None]:
    """Count the valid tokens and rows of mini-batches over all ranks, in one collective; None: there is none."""
    mine = torch.stack([count(mini.batch["response_mask"]) for mini in minis])
    size = context.ranks.size
    found = context.ranks.sum(mine).tolist()
    return [LossCounts(tokens, sequences, size) if tokens else None for tokens, sequences in found]


def _step(
    mini: DataProto,
    context: StepContext,
    loss: Loss,
    book: MetricBook,
    losses: list[tuple[Chunk, Tensor]],
    last: bool,
) -> None:
    """Check, clip and apply the gradient; log its norm before clipping."""
    optimizer = context.optimizers[loss.name]
    parameters = list(loss.model.parameters())
    norm = total_norm(parameters, context.ranks)
    context.fault = update_fault(loss.name, loss.model, norm, mini, losses, context.ranks)
    if context.fault is None:
        nn.utils.clip_grads_with_norm_(parameters, loss.grad_clip, norm)
        if not context.undo.keep(optimizer, last):
            context.commit()
        optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    book.mean(f"{loss.name}/grad_norm", float(norm))
    context.gradient_norms.setdefault(loss.name, []).append(float(norm))
