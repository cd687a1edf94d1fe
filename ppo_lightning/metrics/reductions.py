"""Reductions as torchmetrics classes: what a metric keeps of its data, and how that merges over updates and ranks.

A class keeps one packed float64 row. The rule that merges rows is written once and serves updates, books and ranks.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from torchmetrics import Metric

from ppo_lightning.metrics.entries import Entries, Scalar

Row = Tensor | tuple[float, ...]


def as_double(value: Scalar) -> Tensor:
    """Return the value as a detached float64 tensor on the device where it is."""
    return value.detach().double() if isinstance(value, Tensor) else torch.tensor(value, dtype=torch.float64)


def as_row(*entries: Scalar) -> Row:
    """Return the entries as a row (W,): a tuple if all are numbers, else a float64 tensor, without waiting for it."""
    if not any(isinstance(entry, Tensor) for entry in entries):
        return tuple(float(entry) for entry in entries)
    tensors = [as_double(entry) for entry in entries]
    device = common_device(tensors)
    return torch.stack([tensor.to(device) for tensor in tensors])


def common_device(tensors: Sequence[Tensor]) -> torch.device:
    """Return the accelerator that any of the tensors is on, else the CPU."""
    return next((tensor.device for tensor in tensors if tensor.device.type != "cpu"), torch.device("cpu"))


def stack_rows(rows: Sequence[Row]) -> Tensor:
    """Return K rows as one float64 tensor (K, W), on the accelerator if any row is there."""
    device = common_device([row for row in rows if isinstance(row, Tensor)])
    if device.type == "cpu":  # one tensor of many numbers is made sooner than one of many tensors
        return torch.tensor([row.tolist() if isinstance(row, Tensor) else row for row in rows], dtype=torch.float64)
    return torch.stack([torch.as_tensor(row, dtype=torch.float64, device=device) for row in rows])


def nonfinite(value: Scalar) -> Scalar:
    """Return how many entries of the value are NaN or infinite."""
    return (~value.isfinite()).sum() if isinstance(value, Tensor) else float(not math.isfinite(value))


class Value(Metric):
    """One metric: a packed float64 row, the rule that merges rows, and the number that a merged row stands for.

    Unlike plain torchmetrics states the row stays float64 when the module that holds it is cast (`bf16-true` casts
    every state, and bfloat16 counts to 256 only), and NaN is kept and counted instead of dropped.

    Attributes:
        reduction: name of the reduction, as the registry declares it.
        initial: row of a value that nothing was added to. Its last two entries are the number of things counted and
            the number of non-finite values among them.
        neutral: whether a row stays what it is when it is merged with the initial one.
    """

    reduction: ClassVar[str]
    initial: ClassVar[tuple[float, ...]]
    neutral: ClassVar[bool] = True
    full_state_update = False
    packed: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.add_state("packed", torch.tensor(self.initial, dtype=torch.float64), dist_reduce_fx=self.merge)

    @classmethod
    def row(cls, *data: Any) -> Row:
        """Return the row (W,) of new data."""
        raise NotImplementedError

    @classmethod
    def merge(cls, rows: Tensor) -> Tensor:
        """Merge the rows (K, ..., W) of K ranks or updates into one (..., W): for as many metrics at once as given."""
        return rows.sum(0)

    @classmethod
    def join(cls, rows: Tensor) -> Tensor:
        """Merge the rows (K, W) of K books of one rank into one (W,)."""
        return cls.merge(rows)

    @classmethod
    def finish(cls, row: list[float]) -> float | None:
        """Return the number that a row with something counted stands for; None where it is not defined."""
        raise NotImplementedError

    def update(self, *data: Any) -> None:
        """Merge new data, the arguments of `row`, into the state."""
        self.packed = self.merge(stack_rows([self.packed, self.row(*data)]))

    def compute(self) -> float | None:
        """Return the number, NaN or infinite if the data make it so, None if nothing was counted."""
        row = self.packed.tolist()
        return self.finish(row) if row[-2] > 0 else None

    def _apply(self, fn: Callable[[Tensor], Tensor], exclude_state: Any = "") -> torch.nn.Module:
        """Follow a move to another device, not a change of dtype."""
        return super()._apply(lambda tensor: tensor.to(fn(tensor).device), exclude_state)


class MeanValue(Value):
    """MEAN: (sum, count), so that a mean over micro-batches and ranks is the mean over the data."""

    reduction = "MEAN"
    initial = (0.0, 0.0, 0.0)

    @classmethod
    def row(cls, total: Scalar, count: Scalar = 1.0) -> Row:
        """Return the row of a sum over `count` things."""
        return as_row(total, count, nonfinite(total))

    @classmethod
    def entries_row(cls, entries: Entries) -> Row:
        """Return the row of the entries of a tensor."""
        total = entries.total()
        return as_row(total, entries.count(), entries.nonfinite(total))

    @classmethod
    def finish(cls, row: list[float]) -> float:
        """Return sum / count."""
        return row[0] / row[1]


class SumValue(Value):
    """SUM over updates and ranks; float64, so that counting does not stop at 2**24."""

    reduction = "SUM"
    initial = (0.0, 0.0, 0.0)

    @classmethod
    def row(cls, value: Scalar) -> Row:
        """Return the row of one number or of every entry of a tensor."""
        if not isinstance(value, Tensor):
            return as_row(value, 1.0, nonfinite(value))
        total = (entries := Entries(value)).total()
        return as_row(total, 1.0, entries.nonfinite(total))

    @classmethod
    def finish(cls, row: list[float]) -> float:
        """Return the sum."""
        return row[0]


class MaxValue(Value):
    """MAX over updates and ranks."""

    reduction = "MAX"
    initial = (-math.inf, 0.0, 0.0)

    @classmethod
    def row(cls, values: Scalar, mask: Tensor | None = None) -> Row:
        """Return the row of one number, or of the entries of a tensor where `mask` (same shape) is true; maybe none."""
        if not isinstance(values, Tensor):
            return as_row(values, 1.0, nonfinite(values))
        return cls.entries_row(Entries(values, mask))

    @classmethod
    def entries_row(cls, entries: Entries) -> Row:
        """Return the row of the entries of a tensor; an infinity on the far side of other values is not counted."""
        extreme = entries.largest()
        return as_row(extreme, entries.count(), entries.nonfinite(extreme))

    @classmethod
    def merge(cls, rows: Tensor) -> Tensor:
        """Take the largest of the first column (NaN wins), and add up the counts."""
        return torch.cat([rows[..., :1].amax(0), rows[..., 1:].sum(0)], dim=-1)

    @classmethod
    def finish(cls, row: list[float]) -> float:
        """Return the largest value."""
        return row[0]


class MinValue(MaxValue):
    """MIN over updates and ranks, kept as the MAX of the negated values."""

    reduction = "MIN"

    @classmethod
    def row(cls, values: Scalar, mask: Tensor | None = None) -> Row:
        """Return the row of one number, or of the entries of a tensor where `mask` (same shape) is true; maybe none."""
        return super().row(-values, mask) if not isinstance(values, Tensor) else super().row(values, mask)

    @classmethod
    def entries_row(cls, entries: Entries) -> Row:
        """Return the row of the entries of a tensor."""
        extreme = entries.smallest()
        return as_row(-extreme, entries.count(), entries.nonfinite(extreme))

    @classmethod
    def finish(cls, row: list[float]) -> float:
        """Return the smallest value."""
        return -row[0]


class LossValue(Value):
    """LOSS, for losses that carry the factor dp_size: SUM over micro-batches, MEAN over mini-batches and ranks.

    The row is (sum, ranks, mini-batches, non-finite). One book holds one mini-batch; joining books adds mini-batches.
    A rank that had no micro-batch still counts as a rank.
    """

    reduction = "LOSS"
    initial = (0.0, 1.0, 0.0, 0.0)
    neutral = False

    @classmethod
    def row(cls, value: Scalar) -> Row:
        """Return the row of one more micro-batch of the same mini-batch."""
        return as_row(value, 0.0, 1.0, nonfinite(value))

    @classmethod
    def merge(cls, rows: Tensor) -> Tensor:
        """Merge updates or ranks: sums and ranks add up, mini-batches are the same ones everywhere."""
        total, ranks, minibatches, bad = rows.unbind(-1)
        return torch.stack([total.sum(0), ranks.sum(0), minibatches.amax(0), bad.sum(0)], dim=-1)

    @classmethod
    def join(cls, rows: Tensor) -> Tensor:
        """Merge mini-batches of one rank."""
        return torch.stack([rows[:, 0].sum(), rows[:, 1].amax(), rows[:, 2].sum(), rows[:, 3].sum()])

    @classmethod
    def finish(cls, row: list[float]) -> float:
        """Return sum / (ranks x mini-batches)."""
        return row[0] / (row[1] * row[2])
