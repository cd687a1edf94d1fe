"""The book of one step's metrics: what every stage writes into, synced over ranks in one collective."""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ppo_lightning.metrics.entries import Entries, Scalar
from ppo_lightning.metrics.reductions import (
    LossValue,
    MaxValue,
    MeanValue,
    MinValue,
    Row,
    SumValue,
    Value,
    common_device,
    stack_rows,
)

__all__ = ["LossValue", "MaxValue", "MeanValue", "MetricBook", "MinValue", "SumValue", "reduce_metrics"]

Schema = list[tuple[str, type[Value]]]
Gather = Callable[[Any], list[Any]]
NONFINITE_KEY = "training/nonfinite_values"


class MetricBook:
    """The metrics of one step (or one mini-batch) on one rank, by key; every key has exactly one reduction.

    Writing never waits for an accelerator: rows stay where the data are until `compute`.
    """

    def __init__(self) -> None:
        self.kinds: dict[str, type[Value]] = {}
        self._rows: dict[str, list[Row]] = {}

    def __contains__(self, key: str) -> bool:
        return key in self.kinds

    def add(self, key: str, kind: type[Value], row: Row) -> None:
        """Add a row of data, as `kind.row(...)` makes it; a second reduction under one key is a bug."""
        known = self.kinds.setdefault(key, kind)
        assert known is kind, f"metric {key} must have one reduction: it is {known.reduction}, not {kind.reduction}"
        self._rows.setdefault(key, [kind.initial]).append(row)

    def mean(self, key: str, total: Scalar, count: Scalar = 1.0) -> None:
        """Add `total`, a sum over `count` things, to a MEAN."""
        self.add(key, MeanValue, MeanValue.row(total, count))

    def masked_mean(self, key: str, values: Tensor, mask: Tensor) -> None:
        """Add the entries of `values` where `mask` (same shape) is true to a MEAN."""
        self.add(key, MeanValue, MeanValue.entries_row(Entries(values, mask)))

    def sum(self, key: str, value: Scalar) -> None:
        """Add a number or all entries of a tensor to a SUM."""
        self.add(key, SumValue, SumValue.row(value))

    def min(self, key: str, values: Scalar, mask: Tensor | None = None) -> None:
        """Take a number or the (masked) entries of a tensor into a MIN."""
        self.add(key, MinValue, MinValue.row(values, mask))

    def max(self, key: str, values: Scalar, mask: Tensor | None = None) -> None:
        """Take a number or the (masked) entries of a tensor into a MAX."""
        self.add(key, MaxValue, MaxValue.row(values, mask))

    def loss(self, key: str, value: Scalar) -> None:
        """Add one micro-batch's loss, already scaled by dp_size: SUM over micro-batches, MEAN over the rest.

        Use one book per mini-batch and `update` the step's book with it; then the logged loss is the mean over
        mini-batches of the exact global loss of each.
        """
        self.add(key, LossValue, LossValue.row(value))

    def spread(self, key: str, values: Tensor | Entries, mask: Tensor | None = None) -> None:
        """Write `key`/mean, /max and /min of the entries of `values` where `mask` (same shape; None: all) is true."""
        entries = values if isinstance(values, Entries) else Entries(values, mask)
        for name, kind in (("mean", MeanValue), ("max", MaxValue), ("min", MinValue)):
            self.add(f"{key}/{name}", kind, kind.entries_row(entries))

    def update(self, other: "MetricBook") -> None:
        """Join another book of this rank: of another stage, or of the next mini-batch."""
        for key, kind in other.kinds.items():
            mine, theirs = self._rows.pop(key, [kind.initial]), other._rows[key]
            joined = kind.join(stack_rows([kind.merge(stack_rows(mine)), kind.merge(stack_rows(theirs))]))
            self.add(key, kind, joined)
            self._rows[key] = [joined]

    def reset(self) -> None:
        """Forget everything."""
        self.kinds.clear()
        self._rows.clear()

    def compute(self, gather: Gather | None = None) -> dict[str, float | None]:
        """Return every metric over all ranks, with one collective for all of them.

        Args:
            gather: `gather(object) -> [object of rank 0, object of rank 1, ...]`, the same list on every rank, called
                exactly once; the object is (list of (key, class), float64 array). None: one rank.
                `torch.distributed.all_gather_object` wrapped in a function does it. Every rank must call `compute`,
                with whatever keys it has: keys are agreed here, and one may exist on one rank only.

        Returns:
            {key: number}. A metric that nothing was counted for, or that is not defined (the deviation of one value),
            is absent; one that is not finite is None. The number of non-finite values that went in stands under
            `training/nonfinite_values` when there are any.
        """
        mine = self._pack()
        packs = [mine] if gather is None else gather(mine)
        kinds = agree_on_kinds(schema for schema, _ in packs)
        tables = [unpack(schema, numbers) for schema, numbers in packs]
        found: dict[str, float | None] = {}
        bad = 0.0
        for key, kind in kinds.items():
            rows = [table.get(key, kind.initial) for table in tables]
            row = list(rows[0]) if len(rows) == 1 else kind.merge(torch.tensor(np.stack(rows))).tolist()
            bad += row[-1]
            number = kind.finish(row) if row[-2] > 0 else None
            if number is not None:
                found[key] = float(number) if math.isfinite(number) else None
        return found | ({NONFINITE_KEY: bad} if bad else {})

    def _pack(self) -> tuple[Schema, np.ndarray]:
        """Return ([(key, class)], all rows one after the other): one transfer from the device, however many keys."""
        if not self.kinds:
            return [], np.empty(0)
        alike: dict[tuple[type[Value], int], list[str]] = {}
        for key, kind in self.kinds.items():
            alike.setdefault((kind, len(self._rows[key])), []).append(key)
        merged: dict[str, Tensor] = {}
        for (kind, updates), keys in alike.items():
            if updates == 2 and kind.neutral:  # nothing but the first row and one of data, as in most steps
                merged |= zip(keys, stack_rows([self._rows[key][1] for key in keys]), strict=True)
                continue
            rows = stack_rows([row for key in keys for row in self._rows[key]])
            rows = rows.unflatten(0, (len(keys), updates)).transpose(0, 1)
            merged |= zip(keys, kind.merge(rows), strict=True)
        device = common_device(list(merged.values()))
        return list(self.kinds.items()), torch.cat([merged[key].to(device) for key in self.kinds]).cpu().numpy()


def agree_on_kinds(schemas: Iterable[Schema]) -> dict[str, type[Value]]:
    """Return the class of every key that any rank has, in the order of the ranks."""
    kinds: dict[str, type[Value]] = {}
    for schema in schemas:
        for key, kind in schema:
            known = kinds.setdefault(key, kind)
            assert known is kind, (
                f"metric {key} must have one reduction: {known.reduction} here, {kind.reduction} there"
            )
    return kinds


def unpack(schema: Schema, numbers: np.ndarray) -> dict[str, np.ndarray]:
    """Cut a packed array into {key: row}."""
    table, start = {}, 0
    for key, kind in schema:
        end = start + len(kind.initial)
        table[key], start = numbers[start:end], end
    return table


def reduce_metrics(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Reduce foreign, unwrapped lists by their key, the fallback that verl's users know.

    "max" anywhere in the key takes the maximum, else "min" anywhere the minimum, else the mean: `minerva_acc` becomes
    its minimum. Nothing of this package goes through here; a `MetricBook` declares reductions.
    """
    reduced = {}
    for key, values in metrics.items():
        pick = np.max if "max" in key else np.min if "min" in key else np.mean
        reduced[key] = float(pick(values))
    return reduced
