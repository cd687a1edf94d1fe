"""Statistics of groups: the rollouts of one prompt draw. All in float64, without a loop over rows or groups.

Group ids are int64 in 0..G-1, one per row, in any order. A group is whole on one rank.
"""

from collections.abc import Hashable, Iterable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor


def group_ids(uid: Iterable[Hashable]) -> Int64[Tensor, "B"]:
    """Number the groups in order of first appearance: one id per row from its `uid`."""
    rows = list(uid)
    numbers = {name: number for number, name in enumerate(dict.fromkeys(rows))}
    return torch.tensor(list(map(numbers.__getitem__, rows)), dtype=torch.int64)


def group_total(number: int, group: Int64[Tensor, "B"], values: Float[Tensor, "B *R"]) -> Float[Tensor, "G *R"]:
    """Add up the rows of each of `number` groups."""
    return values.new_zeros(number, *values.shape[1:]).index_add_(0, group, values)


def group_largest(number: int, group: Int64[Tensor, "B"], values: Float[Tensor, "B"]) -> Float[Tensor, "G"]:
    """Return the largest value of each of `number` groups, -inf for one without rows."""
    lowest = values.new_full((number,), -torch.inf)
    return lowest.scatter_reduce_(0, group, values, "amax", include_self=True)


@dataclass(frozen=True)
class Groups:
    """The groups of a batch with the statistics of one score per row.

    Attributes:
        of_row: group id of each row (B,).
        count: rows per group (G,).
        mean: mean score per group (G,).
        largest: largest score per group (G,).
        signal: whether a group's scores differ (G,): at least two rows, largest != smallest. It decides which groups a
            filter keeps and which advantages are exactly 0.
        scores: the scores themselves (B,).
    """

    of_row: Int64[Tensor, "B"]
    count: Float64[Tensor, "G"]
    mean: Float64[Tensor, "G"]
    largest: Float64[Tensor, "G"]
    signal: Bool[Tensor, "G"]
    scores: Float64[Tensor, "B"]

    def centred(self) -> Float64[Tensor, "B"]:
        """Return each score less its group's mean, exactly 0 where the group has no signal."""
        return torch.where(self.signal[self.of_row], self.scores - self.mean[self.of_row], 0.0)

    def std(self) -> Float64[Tensor, "G"]:
        """Return the sample standard deviation (ddof = 1) of each group's scores; 0 without signal."""
        squares = group_total(len(self.count), self.of_row, self.centred().square())
        return (squares / (self.count - 1).clamp(min=1)).sqrt()

    def lone(self) -> Bool[Tensor, "B"]:
        """Mark the rows that have no companion in their group."""
        return self.count[self.of_row] == 1


def compare(scores: Float64[Tensor, "B"], group: Int64[Tensor, "B"]) -> Groups:
    """Gather the statistics of one score per row over groups."""
    number = int(group.max()) + 1 if len(group) else 0
    count = group_total(number, group, torch.ones_like(scores))
    largest = group_largest(number, group, scores)
    smallest = -group_largest(number, group, -scores)
    return Groups(
        of_row=group,
        count=count,
        mean=group_total(number, group, scores) / count.clamp(min=1),
        largest=largest,
        signal=(count > 1) & (largest != smallest),
        scores=scores,
    )
