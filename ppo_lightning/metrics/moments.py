"""Statistics of second order over ranks: deviations, explained variance and correlation, merged from exact moments."""

import math
from typing import Any

import torch
from torch import Tensor

from ppo_lightning.metrics.entries import Entries
from ppo_lightning.metrics.reductions import Row, Value

EXPLAINED_VARIANCE_EPS = 1e-5
CHUNK = 1 << 16  # entries that are turned into float64 at once: they fit into a cache


class MomentsValue(Value):
    """MOMENTS of pairs (x, y): means and centred second moments, which merge without loss (Chan et al. 1979).

    The row is (mean x, mean y, sum of (x - mean x)**2, of the product, of (y - mean y)**2, pairs, non-finite).
    """

    reduction = "MOMENTS"
    initial = (0.0,) * 7

    @classmethod
    def row(cls, *data: Any) -> Row:
        """Return the row of `(x, y, mask)`: the entries of two equally shaped tensors where `mask` is true.

        Two `Entries` of the same mask do as well, without the mask.
        """
        x, y, *mask = data
        first = x if isinstance(x, Entries) else Entries(x, *mask)
        second = first if y is x else y if isinstance(y, Entries) else Entries(y, *mask)
        if first.array is None or second.array is None:
            return moments(first.values.double(), second.values.double(), first.kept)
        pieces = torch.from_numpy(first.array).split(CHUNK)
        others = pieces if second is first else torch.from_numpy(second.array).split(CHUNK)
        rows = [picked_moments(*piece) for piece in zip(pieces, others, strict=True)]
        return cls.merge(torch.stack(rows)) if len(rows) > 1 else rows[0]

    @classmethod
    def merge(cls, rows: Tensor) -> Tensor:
        """Merge K sets of pairs: centred moments gain what the distances between their means add."""
        means, squares, count = rows[..., :2], rows[..., 2:5], rows[..., 5:6]
        middle = (count * means).sum(0) / count.sum(0).clamp(min=1.0)
        x, y = (means - middle).unbind(-1)
        squares = squares + count * torch.stack([x * x, x * y, y * y], dim=-1)
        return torch.cat([middle, squares.sum(0), rows[..., 5:].sum(0)], dim=-1)


def moments(x: Tensor, y: Tensor, kept: Tensor) -> Tensor:
    """Return the row of float64 pairs where `kept`; what is not kept is never read."""
    count = kept.count_nonzero().double()
    weight = count.clamp(min=1.0)
    x, y = torch.where(kept, x, 0.0), torch.where(kept, y, 0.0)
    bad = (~(x.isfinite() & y.isfinite())).count_nonzero().double()
    mean_x, mean_y = x.sum() / weight, y.sum() / weight
    x, y = torch.where(kept, x - mean_x, 0.0), torch.where(kept, y - mean_y, 0.0)
    return torch.stack([mean_x, mean_y, (x * x).sum(), (x * y).sum(), (y * y).sum(), count, bad])


def picked_moments(x: Tensor, y: Tensor) -> Tensor:
    """Return the row of pairs that all count; `y` may be `x` itself."""
    means, parts = [], []
    for values in (x,) if y is x else (x, y):
        exact = values.double()
        means.append(float(exact.sum() / max(len(values), 1)))
        parts.append(exact.sub_(means[-1]) if exact is not values else exact - means[-1])
    first, second = parts[0], parts[-1]
    xx = float(first.dot(first))
    xy, yy = (xx, xx) if y is x else (float(first.dot(second)), float(second.dot(second)))
    bad = 0 if math.isfinite(xx + yy) else int((~(x.isfinite() & y.isfinite())).sum())
    return torch.tensor([means[0], means[-1], xx, xy, yy, len(x), bad], dtype=torch.float64)


class StdValue(MomentsValue):
    """Sample standard deviation (ddof = 1) of x; not defined for fewer than two values."""

    reduction = "STD"

    @classmethod
    def row(cls, *data: Any) -> Row:
        """Return the row of `(values, mask)`, or of `Entries`."""
        values, *mask = data
        return super().row(values, values, *mask)

    @classmethod
    def finish(cls, row: list[float]) -> float | None:
        """Return the deviation."""
        return math.sqrt(row[2] / (row[5] - 1)) if row[5] > 1 else None


class PearsonValue(MomentsValue):
    """Pearson correlation of x and y; not defined where one of them is constant."""

    reduction = "PEARSON"

    @classmethod
    def finish(cls, row: list[float]) -> float | None:
        """Return the correlation, in [-1, 1]."""
        scale = math.sqrt(row[2]) * math.sqrt(row[4])
        return max(-1.0, min(1.0, row[3] / scale)) if scale != 0 and not math.isnan(row[3]) else _undefined(row[3])


class ExplainedVarianceValue(MomentsValue):
    """1 - Var(returns - values) / (Var(returns) + 1e-5), sample variances; not defined for fewer than two tokens.

    The pairs are (returns, values).
    """

    reduction = "EXPLAINED_VARIANCE"

    @classmethod
    def finish(cls, row: list[float]) -> float | None:
        """Return the share of the variance of the returns that the values explain."""
        if row[5] <= 1:
            return None
        _, _, returns, both, values, count, _ = row
        errors = max(returns - 2.0 * both + values, 0.0) if math.isfinite(both) else math.nan
        return 1.0 - (errors / (count - 1)) / (returns / (count - 1) + EXPLAINED_VARIANCE_EPS)


def _undefined(moment: float) -> float | None:
    """Return NaN for a moment that is NaN, so that it stays visible, and None for a constant."""
    return moment if math.isnan(moment) else None
