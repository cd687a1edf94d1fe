"""The clipped surrogate of PPO with dual clip; `vanilla` in the table."""

from jaxtyping import Float, Shaped
from torch import Tensor

from ppo_lightning.algorithms.policy_losses.ratio import clip_by_sign, clipped, keep, limited, log_ratio, weigh
from ppo_lightning.errors import ConfigError


def ppo_clip(
    old_log_prob: Float[Tensor, "b R"],
    log_prob: Float[Tensor, "b R"],
    advantages: Float[Tensor, "b R"],
    response_mask: Shaped[Tensor, "b R"],
    rollout_is_weights: Float[Tensor, "b R"] | None = None,
    *,
    clip_ratio_low: float,
    clip_ratio_high: float,
    clip_ratio_c: float,
) -> tuple[Float[Tensor, "b R"], dict[str, Float[Tensor, "b R"]]]:
    """Return `max(-A r, -A clip(r, 1 - low, 1 + high))`, for A < 0 at most `-A c`.

    Schulman et al. 2017 (arXiv:1707.06347, eq. 7) with the dual clip of Ye et al. 2020 (arXiv:1912.09729, eq. 5).
    `r = exp(log_prob - old_log_prob)`, the exponent limited to +-20.

    Args:
        old_log_prob: log-probabilities of the policy that PPO starts from.
        log_prob: log-probabilities of the policy being trained; the gradient flows here.
        advantages: A.
        response_mask: nonzero where a token counts.
        rollout_is_weights: weights of the rollout correction, or None.
        clip_ratio_low: width of the band below 1.
        clip_ratio_high: width of the band above 1.
        clip_ratio_c: dual-clip bound c, above 1.

    Returns:
        The loss before aggregation and token numerators of actor/pg_clipfrac, pg_clipfrac_lower and ppo_kl.

    Raises:
        ConfigError: c is not above 1.
    """
    if not clip_ratio_c > 1:
        raise ConfigError(f"actor.clip_ratio_c must be above 1 - got {clip_ratio_c} - 3.0 is usual")
    difference = limited(log_ratio(old_log_prob, log_prob, response_mask))
    kept = keep(advantages, response_mask)
    ratio = difference.exp()
    bounded = clip_by_sign(ratio, kept, clip_ratio_low, clip_ratio_high, clip_ratio_c)
    metrics = {
        "actor/pg_clipfrac": clipped(ratio, kept, clip_ratio_low, clip_ratio_high).to(kept.dtype),
        "actor/pg_clipfrac_lower": ((ratio > clip_ratio_c) & (kept < 0)).to(kept.dtype),
        "actor/ppo_kl": -difference.detach(),
    }
    return -weigh(advantages, rollout_is_weights, response_mask) * bounded, metrics
