"""KL-Cov: the tokens of highest covariance carry a KL penalty so that the entropy lasts."""

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor

from ppo_lightning.algorithms.policy_losses.covariance import WHOLE, Scope, covariance, largest
from ppo_lightning.algorithms.policy_losses.ratio import limited, log_ratio, positive, weigh


def selection(
    old_log_prob: Float[Tensor, "B R"],
    log_prob: Float[Tensor, "B R"],
    advantages: Float[Tensor, "B R"],
    response_mask: Shaped[Tensor, "B R"],
    scope: Scope = WHOLE,
    *,
    kl_cov_ratio: float = 0.0002,
) -> Bool[Tensor, "B R"]:
    """Pick the tokens that are penalised: the share of highest covariance, at least one token.

    Cui et al. 2025 (arXiv:2505.22617). Tensors are of this rank's rows of the mini-batch; means and share are over all
    ranks.

    Args:
        old_log_prob: not used; every selection is called alike.
        log_prob: log-probabilities of the policy before the mini-batch's first backward.
        advantages: A.
        response_mask: nonzero where a token counts.
        scope: the mini-batch over all ranks.
        kl_cov_ratio: share of the valid tokens.

    Raises:
        ConfigError: the share is not positive.
    """
    positive(kl_cov_ratio, "actor.loss_options.kl_cov_ratio")
    with torch.no_grad():
        value, tokens = covariance(advantages, log_prob, response_mask, scope)
        return largest(value, max(int(kl_cov_ratio * tokens), 1), scope)


def kl_cov(
    old_log_prob: Float[Tensor, "b R"],
    log_prob: Float[Tensor, "b R"],
    advantages: Float[Tensor, "b R"],
    response_mask: Shaped[Tensor, "b R"],
    rollout_is_weights: Float[Tensor, "b R"] | None = None,
    *,
    selection: Bool[Tensor, "b R"],
    ppo_kl_coef: float = 0.1,
) -> tuple[Float[Tensor, "b R"], dict[str, Float[Tensor, "b R"]]]:
    """Return `-A r`, plus `coef |log r|` at the selected tokens.

    Args:
        old_log_prob: log-probabilities of the policy that the update starts from.
        log_prob: log-probabilities of the policy being trained; the gradient flows here.
        advantages: A.
        response_mask: nonzero where a token counts.
        rollout_is_weights: weights of the rollout correction, or None.
        selection: these rows of the mini-batch's selection.
        ppo_kl_coef: weight of the penalty.

    Returns:
        The loss before aggregation and token numerators of actor/ppo_kl, which is the mean of `|log r|` here.
    """
    raw = log_ratio(old_log_prob, log_prob, response_mask)
    slope = weigh(ppo_kl_coef * raw.detach().sign(), rollout_is_weights, selection)
    loss = slope * raw - weigh(advantages, rollout_is_weights, response_mask) * limited(raw).exp()
    return loss, {"actor/ppo_kl": raw.detach().abs()}
