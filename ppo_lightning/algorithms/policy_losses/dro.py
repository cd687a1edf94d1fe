"""Direct reward optimization: a quadratic penalty on the log-ratio in place of the clip."""

from jaxtyping import Float, Shaped
from torch import Tensor

from ppo_lightning.algorithms.policy_losses.ratio import keep, log_ratio, positive, weigh


def dro(
    old_log_prob: Float[Tensor, "b R"],
    log_prob: Float[Tensor, "b R"],
    advantages: Float[Tensor, "b R"],
    response_mask: Shaped[Tensor, "b R"],
    rollout_is_weights: Float[Tensor, "b R"] | None = None,
    *,
    dro_beta: float,
) -> tuple[Float[Tensor, "b R"], dict[str, Float[Tensor, "b R"]]]:
    """Return `-(A log_prob - beta/2 (log_prob - old_log_prob)^2)` (Richemond et al. 2024, arXiv:2405.19107).

    Args:
        old_log_prob: log-probabilities of the policy that the update starts from.
        log_prob: log-probabilities of the policy being trained; the gradient flows here.
        advantages: A.
        response_mask: nonzero where a token counts.
        rollout_is_weights: weights of the rollout correction, or None.
        dro_beta: weight of the penalty, above 0; it has no default.

    Returns:
        The loss before aggregation and token numerators of actor/ppo_kl.

    Raises:
        ConfigError: beta is not positive.
    """
    positive(dro_beta, "actor.loss_options.dro_beta")
    difference = log_ratio(old_log_prob, log_prob, response_mask)
    penalty = 0.5 * dro_beta * difference.square()
    if rollout_is_weights is not None:
        penalty = penalty * keep(rollout_is_weights, response_mask)
    # A NaN of log_prob under the mask stays in the loss there, where aggregation does not look, and meets a factor 0.
    loss = penalty - weigh(advantages, rollout_is_weights, response_mask) * log_prob
    return loss, {"actor/ppo_kl": -difference.detach()}
