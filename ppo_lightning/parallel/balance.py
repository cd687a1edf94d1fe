"""Spreading a batch's rows over ranks so that all have the same work, within each mini-batch.

Only the order of rows changes: totals stay, and which rows make up a mini-batch does not depend on the number of ranks.
"""

import heapq
from dataclasses import dataclass

import numpy as np

from ppo_lightning.errors import DataError

LINEAR = 24576
"""Cost of a token in the linear layers, in units of the attention cost of a pair: 12 h^2 / 2 h at hidden size 4096."""


@dataclass(frozen=True)
class Balance:
    """An order of rows in which equal consecutive parts go to the ranks.

    Attributes:
        order: (B,) int64; row i of the balanced batch is row order[i] of the given one.
        inverse: (B,) int64; puts balanced rows back: balanced[inverse] is the given batch.
    """

    order: np.ndarray
    inverse: np.ndarray


def workload(lengths: np.ndarray) -> np.ndarray:
    """Return the relative cost of training on sequences of `lengths` (B,) valid tokens: 24576 s + s^2, int64."""
    tokens = np.asarray(lengths).astype(np.int64)
    return LINEAR * tokens + tokens * tokens


def balance(lengths: np.ndarray, ranks: int, minibatch: int | None = None, together: int = 1) -> Balance:
    """Order rows so that every rank gets equally many rows of similar total workload from every mini-batch.

    Mini-batch m is made of rows m * minibatch to (m + 1) * minibatch of the given batch. In the balanced order the rows
    of rank 0 come first, mini-batch by mini-batch, then those of rank 1, and so on: rank r's part of mini-batch m is
    its m-th run of minibatch / ranks rows.

    Args:
        lengths: (B,) valid tokens of each row, prompt and response.
        ranks: Number of ranks.
        minibatch: Rows per optimizer step over all ranks; None: the whole batch.
        together: Consecutive rows that stay on one rank, side by side.

    Raises:
        DataError: B is not divisible by the mini-batch, or that not by the ranks times `together`.
    """
    if together > 1:
        return _balance_groups(lengths, ranks, minibatch, together)
    costs = workload(lengths)
    return _balance(costs, ranks, len(costs) if minibatch is None else minibatch)


def _balance_groups(lengths: np.ndarray, ranks: int, minibatch: int | None, together: int) -> Balance:
    size = len(lengths) if minibatch is None else minibatch
    if len(lengths) % together or size % together:
        raise DataError(
            f"rows of one prompt stay together: {len(lengths)} rows and mini-batches of {size} must be divisible by "
            f"rollout.rollouts_per_prompt={together}: change update.sequences_per_minibatch"
        )
    groups = _balance(workload(lengths).reshape(-1, together).sum(1), ranks, size // together).order
    order = (groups[:, None] * together + np.arange(together)).ravel()
    return Balance(order, np.argsort(order))


def _balance(costs: np.ndarray, ranks: int, size: int) -> Balance:
    rows = len(costs)
    if ranks < 1 or size % ranks or (rows and (size < 1 or rows % size)):
        raise DataError(
            f"rows must be divisible by sequences_per_minibatch and that by the ranks, got {rows} rows, "
            f"mini-batches of {size} and {ranks} ranks: change update.sequences_per_minibatch or trainer.devices"
        )
    shares: list[list[np.ndarray]] = [[] for _ in range(ranks)]
    loads = [0] * ranks
    for start in range(0, rows, max(size, 1)):
        parts = [start + part for part in karmarkar_karp(costs[start : start + size], ranks)]
        parts.sort(key=lambda part: -int(costs[part].sum()))
        for rank, part in zip(np.argsort(loads, kind="stable").tolist(), parts, strict=True):
            shares[rank].append(part)
            loads[rank] += int(costs[part].sum())
    runs = [part for share in shares for part in share]
    order = np.concatenate(runs) if runs else np.zeros(0, dtype=np.int64)
    return Balance(order, np.argsort(order))


def karmarkar_karp(costs: np.ndarray, parts: int) -> list[np.ndarray]:
    """Partition items into `parts` equally large sets of similar total cost.

    The largest differencing method: rows of similar cost are spread over the parts, and the two most uneven partial
    solutions are merged, heaviest with lightest, until one is left.

    Args:
        costs: (M,) int64, M divisible by `parts`.
        parts: Number of sets.

    Returns:
        The sets as sorted indices, heaviest set first.

    Source: Karmarkar and Karp, The differencing method of set partitioning, 1982.
    """
    assert len(costs) % parts == 0, f"{len(costs)} items cannot be cut into {parts} equally large sets"
    if not len(costs):
        return [np.zeros(0, dtype=np.int64) for _ in range(parts)]
    ordered = np.argsort(costs, kind="stable")
    values = costs[ordered].tolist()
    heap = []
    for start in range(0, len(values), parts):
        sets = [(values[place], [place]) for place in range(start + parts - 1, start - 1, -1)]
        heap.append((sets[-1][0] - sets[0][0], -sets[0][0], start, sets))
    heapq.heapify(heap)
    while len(heap) > 1:
        _, _, tie, uneven = heapq.heappop(heap)
        _, _, _, other = heapq.heappop(heap)
        merged = [
            (heavy + light, items + more) for (heavy, items), (light, more) in zip(uneven, reversed(other), strict=True)
        ]
        merged.sort(key=lambda entry: -entry[0])
        heapq.heappush(heap, (merged[-1][0] - merged[0][0], -merged[0][0], tie, merged))
    return [np.sort(ordered[items]) for _, items in heap[0][3]]


@dataclass(frozen=True)
class Layout:
    """Where the rows of a step are.

    Attributes:
        owners: (B,) int64, the rank that has each row, by its number among the rows of all ranks.
        tokens: (B,) int64, valid tokens of each row, prompt and response.
    """

    owners: np.ndarray
    tokens: np.ndarray


def targets(tokens: np.ndarray, ranks: int, minibatch: int, together: int, balanced: bool) -> np.ndarray:
    """Return the rank (B,) that each row goes to: from every mini-batch equally many rows to each.

    Args:
        tokens: (B,) valid tokens of each row, in the order in which mini-batches are cut.
        ranks: Number of ranks.
        minibatch: Rows per optimizer step over all ranks.
        together: Consecutive rows that stay on one rank.
        balanced: By workload; else the ranks take turns.
    """
    rows = len(tokens)
    if not balanced:
        return np.arange(rows) // together % ranks
    found = np.empty(rows, dtype=np.int64)
    found[balance(tokens, ranks, minibatch, together).order] = np.repeat(np.arange(ranks), rows // ranks)
    return found


def seqlen_statistics(before: np.ndarray, after: np.ndarray) -> dict[str, float]:
    """Return global_seqlen/*, verl's names, from the tokens of each rank (ranks,) before and after balancing."""
    return {
        "global_seqlen/min": float(before.min()),
        "global_seqlen/max": float(before.max()),
        "global_seqlen/minmax_diff": float(before.max() - before.min()),
        "global_seqlen/balanced_min": float(after.min()),
        "global_seqlen/balanced_max": float(after.max()),
        "global_seqlen/mean": float(before.mean()),
    }
