"""DPPO: tokens leave the loss when the policy's divergence from the old one, not the ratio, is too large."""

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor

from ppo_lightning.algorithms.policy_losses.ratio import keep, limited, log_ratio, weigh

# Keeps the logarithms finite where a probability is 1.
EPSILON = 1e-8


def dppo_tv(
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
    """Return `-sg(min(r, c)) A log_prob` where the probability has not moved too far with A, else 0.

    arXiv:2602.04879, binary total variation: a token is left out when A > 0 and `p - p_old > high`, or A <= 0 and
    `p_old - p > low`.

    Args:
        old_log_prob: log-probabilities of the policy that the update starts from.
        log_prob: log-probabilities of the policy being trained; the gradient flows here.
        advantages: A.
        response_mask: nonzero where a token counts.
        rollout_is_weights: weights of the rollout correction, or None.
        clip_ratio_low: largest fall of the probability.
        clip_ratio_high: largest rise of the probability.
        clip_ratio_c: c, bound of the importance weight; the paper advises a large one such as 20.

    Returns:
        The loss before aggregation and token numerators of actor/pg_clipfrac (left out), pg_clipfrac_lower (in, with
        r > c) and ppo_kl.
    """
    with torch.no_grad():
        change = keep(log_prob.exp() - old_log_prob.exp(), response_mask)
        inside = torch.where(advantages > 0, change <= clip_ratio_high, change >= -clip_ratio_low)
    return _truncated(old_log_prob, log_prob, advantages, response_mask, rollout_is_weights, inside, clip_ratio_c)


def dppo_kl(
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
    """Return `-sg(min(r, c)) A log_prob` where the probability has not moved too far with A, else 0.

    arXiv:2602.04879, binary KL: the divergence is `KL(old, new)` of "this token or another"; a token is left out when
    it exceeds the bound and the probability has moved in the direction of A.

    Args:
        old_log_prob: log-probabilities of the policy that the update starts from.
        log_prob: log-probabilities of the policy being trained; the gradient flows here.
        advantages: A.
        response_mask: nonzero where a token counts.
        rollout_is_weights: weights of the rollout correction, or None.
        clip_ratio_low: largest divergence of a fall, in nats.
        clip_ratio_high: largest divergence of a rise, in nats.
        clip_ratio_c: c, bound of the importance weight; the paper advises a large one such as 20.

    Returns:
        As `dppo_tv`.
    """
    with torch.no_grad():
        new, old = keep(log_prob, response_mask), keep(old_log_prob, response_mask)
        p, p_old = new.exp(), old.exp()
        divergence = p_old * (old - new) + (1 - p_old) * torch.log((1 - p_old + EPSILON) / (1 - p + EPSILON))
        rise = (divergence <= clip_ratio_high) | (p <= p_old)
        fall = (divergence <= clip_ratio_low) | (p >= p_old)
        inside = torch.where(advantages > 0, rise, fall)
    return _truncated(old_log_prob, log_prob, advantages, response_mask, rollout_is_weights, inside, clip_ratio_c)


def _truncated(
    old_log_prob: Tensor,
    log_prob: Tensor,
    advantages: Tensor,
    mask: Tensor,
    weights: Tensor | None,
    inside: Bool[Tensor, "b R"],
    ceiling: float,
) -> tuple[Tensor, dict[str, Tensor]]:
    difference = limited(log_ratio(old_log_prob, log_prob.detach(), mask))
    ratio = difference.exp()
    factor = torch.where(inside, ratio.clamp(max=ceiling), 0.0)
    # A NaN of log_prob under the mask stays in the loss there, where aggregation does not look, and meets a factor 0.
    loss = -factor * weigh(advantages, weights, mask) * log_prob
    metrics = {
        "actor/pg_clipfrac": (~inside).to(loss.dtype),
        "actor/pg_clipfrac_lower": ((ratio > ceiling) & inside).to(loss.dtype),
        "actor/ppo_kl": -difference,
    }
    return loss, metrics
