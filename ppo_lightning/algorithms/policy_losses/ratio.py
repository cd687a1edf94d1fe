"""What the policy losses share: the probability ratio made safe under the mask, the clip band, and outside weights."""

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor

from ppo_lightning.errors import ConfigError

LOG_RATIO_LIMIT = 20.0


def keep(values: Float[Tensor, "b R"], mask: Shaped[Tensor, "b R"]) -> Float[Tensor, "b R"]:
    """Return the values at valid tokens and 0 elsewhere, so that junk under the mask reaches no value or gradient."""
    return torch.where(mask.bool(), values, 0.0)


def log_ratio(
    old_log_prob: Float[Tensor, "b R"], log_prob: Float[Tensor, "b R"], mask: Shaped[Tensor, "b R"]
) -> Float[Tensor, "b R"]:
    """Return `log_prob - old_log_prob` at valid tokens, 0 elsewhere."""
    return keep(log_prob - old_log_prob, mask)


def limited(values: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Clamp log-ratios to +-`LOG_RATIO_LIMIT`, where `exp` is far from overflow."""
    return values.clamp(min=-LOG_RATIO_LIMIT, max=LOG_RATIO_LIMIT)


def weigh(
    values: Float[Tensor, "b R"], weights: Float[Tensor, "b R"] | None, mask: Shaped[Tensor, "b R"]
) -> Float[Tensor, "b R"]:
    """Return the values at valid tokens, times the rollout correction's weights if there are any; 0 elsewhere."""
    return keep(values if weights is None else values * weights, mask)


def clip_by_sign(
    ratio: Float[Tensor, "b R"],
    advantages: Float[Tensor, "b R"],
    low: float,
    high: float,
    ceiling: float = float("inf"),
) -> Float[Tensor, "b R"]:
    """Return the ratio as the pessimistic PPO objective uses it.

    `max(-A r, -A clip(r, 1 - low, 1 + high))` is `-A` times the ratio bounded on the side where moving further would
    pay: from above by `1 + high` when A > 0, from below by `1 - low` when A < 0; there `ceiling` bounds it from above
    (dual clip).
    """
    with torch.no_grad():
        bounded = torch.where(advantages < 0, ratio.clamp(min=1 - low, max=ceiling), ratio.clamp(max=1 + high))
        free = bounded == ratio
    return torch.where(free, ratio, bounded)


@torch.no_grad()
def clipped(
    ratio: Float[Tensor, "b R"], advantages: Float[Tensor, "b R"], low: float, high: float
) -> Bool[Tensor, "b R"]:
    """Tell where the band bounds the ratio in `clip_by_sign`.

    A ratio outside the band on the side that its advantage does not bound is not clipped.
    """
    return ((ratio < 1 - low) & (advantages < 0)) | ((ratio > 1 + high) & (advantages > 0))


def positive(value: float, key: str) -> None:
    """Require a positive option.

    Raises:
        ConfigError: it is not positive.
    """
    if not value > 0:
        raise ConfigError(f"{key} must be positive - got {value} - set a value above 0")
