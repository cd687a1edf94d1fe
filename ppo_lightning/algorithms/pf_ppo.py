"""PF-PPO: draw the rows of a batch again, the telling ones more often."""

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from ppo_lightning.errors import ConfigError

METHODS = ("pow", "max_min", "max_random")
SMALLEST_WEIGHT = 1e-8


def row_weights(
    scores: Float[Tensor, "B"], method: str, weight_pow: float = 2.0, extremes: tuple[float, float] | None = None
) -> Float[Tensor, "B"]:
    """Weigh rows for the draw; weights are positive and need not add up to 1.

    `pow`: |score| ** weight_pow. `max_min`: 1 for the best and the worst score of the batch, 0 between. `max_random`:
    0.4 for the best, 0.1 for the rest. 1e-8 is added to each, so that a batch of zero scores is drawn evenly.

    Args:
        scores: row sums of `token_level_scores`.
        method: one of `METHODS`.
        weight_pow: exponent of `pow`.
        extremes: smallest and largest score over all ranks; None takes them from these rows.

    Raises:
        ConfigError: unknown method.

    Source: PF-PPO, https://arxiv.org/abs/2409.06957.
    """
    if method not in METHODS:
        raise ConfigError(
            f"algorithm.pf_ppo_reweight must be one of {', '.join(METHODS)} - got {method!r} - pick one, or off"
        )
    if method == "pow":
        return scores.abs().pow(weight_pow) + SMALLEST_WEIGHT
    low, high = extremes or (scores.min().item(), scores.max().item())
    if method == "max_min":
        return ((scores == high) | (scores == low)).to(scores.dtype) + SMALLEST_WEIGHT
    return torch.where(scores == high, 0.4, 0.1).to(scores.dtype) + SMALLEST_WEIGHT


def resample(weights: Float[Tensor, "B"], generator: torch.Generator | None = None) -> Int64[Tensor, "B"]:
    """Draw as many row indices as there are rows, with replacement, in proportion to their weights."""
    if not len(weights):
        return torch.empty(0, dtype=torch.int64, device=weights.device)
    return torch.multinomial(weights, len(weights), replacement=True, generator=generator)
