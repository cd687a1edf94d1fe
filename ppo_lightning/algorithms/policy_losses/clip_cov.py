"""Clip-Cov: PPO's clip, and a few tokens of high covariance leave the loss so that the entropy lasts."""

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor

from ppo_lightning.algorithms.policy_losses.covariance import WHOLE, Scope, covariance, draw
from ppo_lightning.algorithms.policy_losses.ratio import clip_by_sign, clipped, limited, log_ratio, positive, weigh


def selection(  # noqa: PLR0913 - the call that every selection shares, and five options by verl's names
    old_log_prob: Float[Tensor, "B R"],
    log_prob: Float[Tensor, "B R"],
    advantages: Float[Tensor, "B R"],
    response_mask: Shaped[Tensor, "B R"],
    scope: Scope = WHOLE,
    *,
    clip_ratio_low: float,
    clip_ratio_high: float,
    clip_cov_ratio: float = 0.0002,
    clip_cov_lb: float = 1.0,
    clip_cov_ub: float = 5.0,
) -> Bool[Tensor, "B R"]:
    """Draw the tokens that leave the loss: a share of those whose covariance lies between two bounds.

    Cui et al. 2025 (arXiv:2505.22617). Tokens that PPO's clip stops already are no candidates. Tensors are of this
    rank's rows of the mini-batch; means, share and draw are over all ranks.

    Args:
        old_log_prob: log-probabilities of the policy that the update starts from.
        log_prob: log-probabilities of the policy before the mini-batch's first backward.
        advantages: A.
        response_mask: nonzero where a token counts.
        scope: the mini-batch over all ranks.
        clip_ratio_low: width of PPO's band below 1.
        clip_ratio_high: width of PPO's band above 1.
        clip_cov_ratio: share of the valid tokens drawn, at least one token.
        clip_cov_lb: lower bound of the covariance, exclusive.
        clip_cov_ub: upper bound of the covariance, exclusive.

    Raises:
        ConfigError: the share is not positive.
    """
    positive(clip_cov_ratio, "actor.loss_options.clip_cov_ratio")
    with torch.no_grad():
        ratio = limited(log_ratio(old_log_prob, log_prob, response_mask)).exp()
        stopped = clipped(ratio, advantages, clip_ratio_low, clip_ratio_high)
        value, tokens = covariance(advantages, log_prob, response_mask, scope)
        candidates = (value > clip_cov_lb) & (value < clip_cov_ub) & ~stopped
        return draw(candidates, max(int(clip_cov_ratio * tokens), 1), scope)


def clip_cov(
    old_log_prob: Float[Tensor, "b R"],
    log_prob: Float[Tensor, "b R"],
    advantages: Float[Tensor, "b R"],
    response_mask: Shaped[Tensor, "b R"],
    rollout_is_weights: Float[Tensor, "b R"] | None = None,
    *,
    selection: Bool[Tensor, "b R"],
    clip_ratio_low: float,
    clip_ratio_high: float,
) -> tuple[Float[Tensor, "b R"], dict[str, Float[Tensor, "b R"]]]:
    """Return PPO's clipped loss (no dual clip), 0 at the selected tokens.

    Args:
        old_log_prob: log-probabilities of the policy that the update starts from.
        log_prob: log-probabilities of the policy being trained; the gradient flows here.
        advantages: A.
        response_mask: nonzero where a token counts.
        rollout_is_weights: weights of the rollout correction, or None.
        selection: these rows of the mini-batch's selection.
        clip_ratio_low: width of the band below 1.
        clip_ratio_high: width of the band above 1.

    Returns:
        The loss before aggregation and token numerators of actor/pg_clipfrac (selected) and ppo_kl.
    """
    raw = log_ratio(old_log_prob, log_prob, response_mask)
    ratio = clip_by_sign(limited(raw).exp(), advantages, clip_ratio_low, clip_ratio_high)
    metrics = {"actor/pg_clipfrac": selection.to(raw.dtype), "actor/ppo_kl": -raw.detach()}
    return -weigh(advantages, rollout_is_weights, response_mask.bool() & ~selection) * ratio, metrics
