"""Soft adaptive policy optimization: a smooth gate in place of the clip."""

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from ppo_lightning.algorithms.policy_losses.ratio import limited, log_ratio, positive, weigh


def sapo(
    old_log_prob: Float[Tensor, "b R"],
    log_prob: Float[Tensor, "b R"],
    advantages: Float[Tensor, "b R"],
    response_mask: Shaped[Tensor, "b R"],
    rollout_is_weights: Float[Tensor, "b R"] | None = None,
    *,
    tau_pos: float = 1.0,
    tau_neg: float = 1.05,
) -> tuple[Float[Tensor, "b R"], dict[str, Float[Tensor, "b R"]]]:
    """Return `-A * sigmoid(tau (r - 1)) * 4 / tau`, with tau by the sign of A (arXiv:2511.20347).

    Args:
        old_log_prob: log-probabilities of the policy that the update starts from.
        log_prob: log-probabilities of the policy being trained; the gradient flows here.
        advantages: A.
        response_mask: nonzero where a token counts.
        rollout_is_weights: weights of the rollout correction, or None.
        tau_pos: sharpness of the gate where A > 0.
        tau_neg: sharpness elsewhere; above tau_pos it damps negative tokens more.

    Returns:
        The loss before aggregation and token numerators of actor/pg_clipfrac, pg_clipfrac_lower (both always 0: no
        ratio is clipped) and ppo_kl.

    Raises:
        ConfigError: a temperature is not positive.
    """
    positive(tau_pos, "actor.loss_options.tau_pos")
    positive(tau_neg, "actor.loss_options.tau_neg")
    difference = limited(log_ratio(old_log_prob, log_prob, response_mask))
    tau = torch.where(advantages > 0, advantages.new_tensor(tau_pos), advantages.new_tensor(tau_neg))
    gate = torch.sigmoid(tau * (difference.exp() - 1)) * (4 / tau)
    zero = torch.zeros_like(tau)
    metrics = {"actor/pg_clipfrac": zero, "actor/pg_clipfrac_lower": zero, "actor/ppo_kl": -difference.detach()}
    return -gate * weigh(advantages, rollout_is_weights, response_mask), metrics
