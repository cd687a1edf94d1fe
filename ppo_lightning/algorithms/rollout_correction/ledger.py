"""Sums behind the correction's metrics: collected on the rank, reduced over ranks in one collective, then divided."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from jaxtyping import Shaped
from torch import Tensor

from ppo_lightning.algorithms.masked import Reduce

# (count, sum, sum of squares) -> (numerator, denominator)
Derived = Callable[[float, float, float], tuple[float, float]]


@dataclass
class Measurements:
    """Metrics of the whole batch.

    Attributes:
        means: key -> (numerator, denominator), already global and equal on every rank; (0, 0) where nothing counts.
        maxima: key -> largest value on this rank; no key where there is none.
        minima: key -> smallest value on this rank; no key where there is none.
    """

    means: dict[str, tuple[float, float]] = field(default_factory=dict)
    maxima: dict[str, float] = field(default_factory=dict)
    minima: dict[str, float] = field(default_factory=dict)


class Ledger:
    """Collects named moments and extremes; `finish` turns them into `Measurements`."""

    def __init__(self) -> None:
        self._moments: dict[str, Tensor] = {}
        self._derived: list[tuple[str, str, Derived]] = []
        self._extremes: list[tuple[str, Tensor]] = []
        self._totals: dict[str, list[float]] = {}

    def add(self, name: str, values: Tensor, mask: Shaped[Tensor, "..."], **keys: Derived) -> None:
        """Collect the moments of the values where the mask is set; each of `keys` is a metric derived from them.

        Args:
            name: of the moments; also the prefix of the metrics.
            values: any shape; booleans count as 1 and 0.
            mask: of the same shape, nonzero where a value counts.
            keys: suffix of a metric -> how it follows from count, sum and sum of squares.
        """
        valid = mask.bool()
        if values.dtype == torch.bool:
            true = (values & valid).sum()
            moments = [valid.sum(), true, true]
        else:
            kept = torch.where(valid, values.detach(), 0.0).double().flatten()
            moments = [valid.sum(), kept.sum(), kept.dot(kept)]
        self._moments[name] = torch.stack([moment.double() for moment in moments])
        self._derived += [(f"{name}{suffix}", name, how) for suffix, how in keys.items()]

    def derive(self, key: str, name: str, how: Derived) -> None:
        """Derive one more metric from moments that are collected already."""
        self._derived.append((key, name, how))

    def extremes(self, key: str, values: Tensor, mask: Shaped[Tensor, "..."]) -> None:
        """Collect `key_max` and `key_min` of the values where the mask is set."""
        self.maximum(f"{key}_max", values, mask)
        if values.numel():
            self._extremes.append((f"{key}_min", torch.where(mask.bool(), values.detach(), math.inf).amin().double()))

    def maximum(self, key: str, values: Tensor, mask: Shaped[Tensor, "..."]) -> None:
        """Collect the largest of the values where the mask is set."""
        if values.numel():
            self._extremes.append((key, torch.where(mask.bool(), values.detach(), -math.inf).amax().double()))

    def finish(self, all_reduce: Reduce, prefix: str) -> Measurements:
        """Reduce everything and return the metrics, their keys with `prefix`."""
        reduced = all_reduce(torch.stack(list(self._moments.values()))).tolist()
        self._totals = dict(zip(self._moments, reduced, strict=True))
        result = Measurements()
        for key, name, how in self._derived:
            result.means[prefix + key] = how(*self._totals[name])
        local = torch.stack([value for _, value in self._extremes]).tolist() if self._extremes else []
        for (key, _), value in zip(self._extremes, local, strict=True):
            side = result.minima if key.endswith("_min") else result.maxima
            if not math.isinf(value):
                side[prefix + key] = value
        return result

    def mean(self, name: str) -> float | None:
        """Return the global mean of finished moments; None where nothing counts."""
        count, total, _ = self._totals[name]
        return total / count if count else None


def mean(count: float, total: float, squares: float) -> tuple[float, float]:
    """Return the mean."""
    return total, count


def mean_minus_one(count: float, total: float, squares: float) -> tuple[float, float]:
    """Return the mean, less 1."""
    return total - count, count


def std(count: float, total: float, squares: float) -> tuple[float, float]:
    """Return the standard deviation of the population."""
    if count <= 1:
        return 0.0, count
    return math.sqrt(max(squares / count - (total / count) ** 2, 0.0)), 1.0


def sample_std(count: float, total: float, squares: float) -> tuple[float, float]:
    """Return the standard deviation of the sample (ddof = 1); 0 for a single value."""
    if count <= 1:
        return 0.0, count
    return math.sqrt(max(squares - total**2 / count, 0.0) / (count - 1)), 1.0


def effective_share(count: float, total: float, squares: float) -> tuple[float, float]:
    """Return the effective sample size as a share of the sample, `(sum w)^2 / (count * sum w^2)`; 0 if all w are 0."""
    return (total**2 / squares if squares else 0.0), count
