"""Group policy gradient: the plain policy gradient on group-relative advantages."""

from jaxtyping import Float, Shaped
from torch import Tensor

from ppo_lightning.algorithms.policy_losses.ratio import log_ratio, weigh


def gpg(
    old_log_prob: Float[Tensor, "b R"],
    log_prob: Float[Tensor, "b R"],
    advantages: Float[Tensor, "b R"],
    response_mask: Shaped[Tensor, "b R"],
    rollout_is_weights: Float[Tensor, "b R"] | None = None,
) -> tuple[Float[Tensor, "b R"], dict[str, Float[Tensor, "b R"]]]:
    """Return `-A log_prob` (Chu et al. 2025, arXiv:2504.02546).

    Args:
        old_log_prob: log-probabilities of the policy that the update starts from, for actor/ppo_kl only.
        log_prob: log-probabilities of the policy being trained; the gradient flows here.
        advantages: A.
        response_mask: nonzero where a token counts.
        rollout_is_weights: weights of the rollout correction, or None.

    Returns:
        The loss before aggregation and token numerators of actor/ppo_kl.
    """
    # A NaN of log_prob under the mask stays in the loss there, where aggregation does not look, and meets a factor 0.
    loss = -weigh(advantages, rollout_is_weights, response_mask) * log_prob
    metrics = {"actor/ppo_kl": -log_ratio(old_log_prob, log_prob.detach(), response_mask)}
    return loss, metrics
