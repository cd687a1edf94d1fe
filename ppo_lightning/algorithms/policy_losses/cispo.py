"""CISPO: the importance weight is clipped, the gradient never is."""

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from ppo_lightning.algorithms.policy_losses.ratio import limited, log_ratio, weigh


def cispo(
    old_log_prob: Float[Tensor, "b R"],
    log_prob: Float[Tensor, "b R"],
    advantages: Float[Tensor, "b R"],
    response_mask: Shaped[Tensor, "b R"],
    rollout_is_weights: Float[Tensor, "b R"] | None = None,
    *,
    clip_ratio_low: float,
    clip_ratio_high: float,
) -> tuple[Float[Tensor, "b R"], dict[str, Float[Tensor, "b R"]]]:
    """Return `-sg(clip(r, 1 - low, 1 + high)) A log_prob` (MiniMax-M1, arXiv:2506.13585, eq. 4).

    Args:
        old_log_prob: log-probabilities of the policy that the update starts from.
        log_prob: log-probabilities of the policy being trained; the gradient flows here.
        advantages: A.
        response_mask: nonzero where a token counts.
        rollout_is_weights: weights of the rollout correction, or None.
        clip_ratio_low: width of the band below 1; 1 or more: no lower bound.
        clip_ratio_high: width of the band above 1.

    Returns:
        The loss before aggregation and token numerators of actor/pg_clipfrac (ratio outside the band: here both sides
        are clipped for either sign of A), pg_clipfrac_lower (always 0) and ppo_kl.
    """
    difference = limited(log_ratio(old_log_prob, log_prob.detach(), response_mask))
    ratio = difference.exp()
    clipped = ratio.clamp(min=1 - clip_ratio_low, max=1 + clip_ratio_high)
    # A NaN of log_prob under the mask stays in the loss there, where aggregation does not look, and meets a factor 0.
    loss = -clipped * weigh(advantages, rollout_is_weights, response_mask) * log_prob
    metrics = {
        "actor/pg_clipfrac": (ratio != clipped).to(loss.dtype),
        "actor/pg_clipfrac_lower": torch.zeros_like(ratio),
        "actor/ppo_kl": -difference,
    }
    return loss, metrics
