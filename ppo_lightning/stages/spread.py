"""Which rank works on which rows: part of stage 2, and of every PPO epoch of stage 8 whose mini-batches are shuffled.

Rows of one prompt draw move together: what compares them (group statistics) and what shares their prompt in a forward
pass stay on one rank. Which rows make up a mini-batch does not depend on the number of ranks.
"""

import numpy as np

from ppo_lightning.parallel.balance import Layout, seqlen_statistics, targets
from ppo_lightning.parallel.exchange import exchange
from ppo_lightning.protocol.data_proto import DataProto
from ppo_lightning.stages.context import StepContext


def minibatch_size(rows: int, context: StepContext) -> int:
    """Return the rows of a mini-batch over all ranks, of `rows` rows over all ranks."""
    return min(context.config.update.sequences_per_minibatch or rows, rows)


def spread(batch: DataProto, context: StepContext) -> None:
    """Move whole groups between ranks, in place, so that each has equally many rows of similar workload.

    Without trainer.balance_batch rows move only where dynamic sampling has left ranks with unequal shares.

    Writes: every row; global_seqlen/*.
    """
    layout, ranks, config = context.layout, context.ranks, context.config
    if layout is None:
        return
    balanced = config.trainer.balance_batch
    size = minibatch_size(len(layout.owners), context)
    target = targets(layout.tokens, ranks.size, size, config.rollout.rollouts_per_prompt, balanced)
    if balanced and ranks.first:
        write_seqlen(layout, target, context)
    batch.become(exchange(batch, ranks, layout.owners, target))
    context.layout = Layout(target, layout.tokens)


def take_drawn(batch: DataProto, drawn: np.ndarray, context: StepContext) -> None:
    """Make the step's batch of the rows `drawn` (B,), by their numbers, in place: single rows, spread by workload."""
    layout = context.layout
    assert layout is not None, "ranks know where rows are"
    size = minibatch_size(len(drawn), context)
    balanced = context.config.trainer.balance_batch
    target = targets(layout.tokens[drawn], context.ranks.size, size, 1, balanced)
    batch.become(exchange(batch, context.ranks, layout.owners, target, drawn))


def write_seqlen(layout: Layout, target: np.ndarray, context: StepContext) -> None:
    """Write the tokens of the busiest and the idlest rank before and after balancing."""
    size = context.ranks.size
    before, after = (np.bincount(owners, layout.tokens, size) for owners in (layout.owners, target))
    for key, value in seqlen_statistics(before, after).items():
        kind = context.book.min if key.endswith("min") else context.book.max
        (context.book.mean if key.endswith("mean") else kind)(key, value)


def epoch_rows(batch: DataProto, context: StepContext, epoch: int) -> tuple[DataProto, list[np.ndarray]]:
    """Return this rank's rows of a PPO epoch, and which of them make up each mini-batch, in their common order.

    With update.shuffle whole groups are dealt into new mini-batches (single rows where a mini-batch does not hold whole
    groups, which only one rank can have), and rows move so that each rank has equally many of every mini-batch.
    """
    ranks, config = context.ranks, context.config
    rows = len(batch) * ranks.size
    size = minibatch_size(rows, context)
    order = np.arange(rows)
    if config.update.shuffle and size < rows:
        n = config.rollout.rollouts_per_prompt
        unit = n if size % n == 0 else 1
        dealt = np.random.default_rng((config.seed, context.step, epoch)).permutation(rows // unit)
        order = (dealt[:, None] * unit + np.arange(unit)).ravel()
        if context.layout is not None:
            batch = _dealt(batch, order, size, unit, context)
    numbers = batch.batch["global_row"].cpu().numpy() if ranks.size > 1 else order[:0]
    return batch, [_local(order[start : start + size], numbers, ranks.size) for start in range(0, rows, size)]


def _dealt(batch: DataProto, order: np.ndarray, size: int, unit: int, context: StepContext) -> DataProto:
    layout, ranks = context.layout, context.ranks
    assert layout is not None, "ranks know where rows are"
    target = np.empty_like(order)
    balanced = context.config.trainer.balance_batch
    target[order] = targets(layout.tokens[order], ranks.size, size, unit, balanced)
    return exchange(batch, ranks, layout.owners, target)


def _local(chosen: np.ndarray, numbers: np.ndarray, ranks: int) -> np.ndarray:
    """Return where this rank has its rows among those of a mini-batch."""
    if ranks == 1:
        return chosen
    places = {row: place for place, row in enumerate(numbers.tolist())}
    return np.array([places[row] for row in chosen.tolist() if row in places], dtype=np.int64)
