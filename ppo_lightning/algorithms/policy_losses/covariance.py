"""Token selections by the covariance of advantage and log-probability over a whole mini-batch (clip_cov, kl_cov)."""

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from ppo_lightning.algorithms.policy_losses.ratio import keep

# Odd constants of the splitmix64 mixer, as signed 64-bit integers.
GOLDEN = -7046029254386353131
MIX_1 = -4658895280553007687
MIX_2 = -7723592293110705685


def covariance(
    advantages: Float[Tensor, "B R"], log_prob: Float[Tensor, "B R"], mask: Shaped[Tensor, "B R"]
) -> Float[Tensor, "B R"]:
    """Return `(A - mean A)(log_prob - mean log_prob)`, means over the valid tokens; -inf at masked positions."""
    count = mask.bool().sum().clamp(min=1)
    kept, logs = keep(advantages, mask), keep(log_prob, mask)
    product = (kept - kept.sum() / count) * (logs - logs.sum() / count)
    return torch.where(mask.bool(), product, -torch.inf)


def draw(candidates: Bool[Tensor, "B R"], number: int, rows: Int[Tensor, " B"], seed: int) -> Bool[Tensor, "B R"]:
    """Pick `number` of the candidates at random; all of them if there are fewer.

    What is picked depends on (seed, row id, position) and on the set of candidates, not on the order of the rows.
    """
    where = candidates.nonzero()
    if len(where) <= number:
        return candidates.clone()
    priority = _hash(_hash(_hash(torch.full_like(where[:, 0], seed)) + rows[where[:, 0]]) + where[:, 1])
    return _mark(candidates, where[priority.topk(number, largest=False).indices])


def largest(values: Float[Tensor, "B R"], number: int, rows: Int[Tensor, " B"] | None) -> Bool[Tensor, "B R"]:
    """Pick the `number` largest values, never -inf; among equal ones the lowest (row id, position)."""
    if not values.numel():
        return torch.zeros_like(values, dtype=torch.bool)
    order = slice(None) if rows is None else rows.argsort()
    ordered = values[order]
    least = ordered.flatten().topk(min(number, ordered.numel())).values[-1]
    picked = ordered > least
    ties = (ordered == least).nonzero()[: number - int(picked.sum())]
    picked[ties[:, 0], ties[:, 1]] = True
    result = torch.zeros_like(picked)
    result[order] = picked
    return result & (values > -torch.inf)


def _mark(like: Tensor, where: Tensor) -> Tensor:
    picked = torch.zeros_like(like, dtype=torch.bool)
    picked[where[:, 0], where[:, 1]] = True
    return picked


def _hash(x: Tensor) -> Tensor:
    """Mix 64-bit integers (splitmix64); shifts are made logical by masking the sign bits that they drag in."""
    x = x + GOLDEN
    x = (x ^ ((x >> 30) & ((1 << 34) - 1))) * MIX_1
    x = (x ^ ((x >> 27) & ((1 << 37) - 1))) * MIX_2
    return x ^ ((x >> 31) & ((1 << 33) - 1))
