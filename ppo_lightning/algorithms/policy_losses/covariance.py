"""Token selections by the covariance of advantage and log-probability over a whole mini-batch (clip_cov, kl_cov)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from ppo_lightning.algorithms.masked import Reduce, identity
from ppo_lightning.algorithms.policy_losses.ratio import keep

# Odd constants of the splitmix64 mixer, as signed 64-bit integers.
GOLDEN = -7046029254386353131
MIX_1 = -4658895280553007687
MIX_2 = -7723592293110705685


def alone(item: Any) -> list[Any]:
    """Gather the object of the only rank."""
    return [item]


@dataclass(frozen=True)
class Scope:
    """The mini-batch that a rank's rows belong to.

    Attributes:
        rows: an id per row (B,) that depends neither on the order of the rows nor on the ranks; None: the order.
        seed: of the draw; another one for every mini-batch.
        all_reduce: sums a float64 tensor over the ranks.
        gather: returns every rank's object.
    """

    rows: Int[Tensor, " B"] | None = None
    seed: int = 0
    all_reduce: Reduce = identity
    gather: Callable[[Any], list[Any]] = alone

    def ids(self, like: Tensor) -> Int[Tensor, " B"]:
        """Return the row ids on the device of `like` (B, R)."""
        return torch.arange(len(like), device=like.device) if self.rows is None else self.rows.to(like.device)


WHOLE = Scope()


def covariance(
    advantages: Float[Tensor, "B R"], log_prob: Float[Tensor, "B R"], mask: Shaped[Tensor, "B R"], scope: Scope
) -> tuple[Float[Tensor, "B R"], int]:
    """Return `(A - mean A)(log_prob - mean log_prob)`, -inf at masked positions, and the number of valid tokens.

    Means and number are over the whole mini-batch.
    """
    sums = [mask.bool().sum(), keep(advantages, mask).sum(), keep(log_prob, mask).sum()]
    count, advantage, log = scope.all_reduce(torch.stack([item.double() for item in sums])).tolist()
    product = (advantages - advantage / max(count, 1)) * (log_prob - log / max(count, 1))
    return torch.where(mask.bool(), product, -torch.inf), int(count)


def draw(candidates: Bool[Tensor, "B R"], number: int, scope: Scope) -> Bool[Tensor, "B R"]:
    """Pick `number` of the mini-batch's candidates at random; all of them if there are fewer.

    What is picked depends on (seed, row id, position) and on the set of candidates, not on ranks or order of the rows.
    """
    where = candidates.nonzero()
    rows = scope.ids(candidates)[where[:, 0]]
    priority = _hash(_hash(_hash(torch.full_like(rows, scope.seed)) + rows) + where[:, 1])
    mine = priority.sort().values[:number].cpu()
    every = torch.cat(scope.gather(mine)).sort().values
    last = every[min(number, len(every)) - 1] if len(every) else 0
    return _mark(candidates, where[priority <= last])


def largest(values: Float[Tensor, "B R"], number: int, scope: Scope) -> Bool[Tensor, "B R"]:
    """Pick the mini-batch's `number` largest values, never -inf; among equal ones the lowest (row id, position)."""
    local = values.flatten().topk(min(number, values.numel())).values
    least = local[-1] if len(local) else torch.inf
    where = ((values >= least) & (values > -torch.inf)).nonzero()
    mine = [-values[where[:, 0], where[:, 1]], scope.ids(values)[where[:, 0]], where[:, 1]]
    parts = zip(*scope.gather([part.cpu() for part in mine]), strict=True)
    value, row, position = _in_order([torch.cat(part) for part in parts], number)
    if value is None:
        return _mark(values, where)
    earlier = (mine[1] < row) | ((mine[1] == row) & (mine[2] <= position))
    return _mark(values, where[(mine[0] < value) | ((mine[0] == value) & earlier)])


def _in_order(keys: list[Tensor], number: int) -> tuple[float | None, int, int]:
    """Return the key that comes `number`-th in lexicographic order; (None, 0, 0) if there are no more than that."""
    if len(keys[0]) <= number:
        return None, 0, 0
    order = torch.arange(len(keys[0]))
    for key in reversed(keys):
        order = order[key[order].sort(stable=True).indices]
    value, row, position = (key[order[number - 1]].item() for key in keys)
    return value, int(row), int(position)


def _mark(like: Tensor, where: Tensor) -> Bool[Tensor, "B R"]:
    picked = torch.zeros_like(like, dtype=torch.bool)
    picked[where[:, 0], where[:, 1]] = True
    return picked


def _hash(x: Tensor) -> Tensor:
    """Mix 64-bit integers (splitmix64); shifts are made logical by masking the sign bits that they drag in."""
    x = x + GOLDEN
    x = (x ^ ((x >> 30) & ((1 << 34) - 1))) * MIX_1
    x = (x ^ ((x >> 27) & ((1 << 37) - 1))) * MIX_2
    return x ^ ((x >> 31) & ((1 << 33) - 1))
