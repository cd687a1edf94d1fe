"""REINFORCE with importance weights from outside, for updates straight from the engine's log-probabilities."""

from jaxtyping import Float, Shaped
from torch import Tensor

from ppo_lightning.algorithms.policy_losses.gpg import gpg


def reinforce(
    old_log_prob: Float[Tensor, "b R"],
    log_prob: Float[Tensor, "b R"],
    advantages: Float[Tensor, "b R"],
    response_mask: Shaped[Tensor, "b R"],
    rollout_is_weights: Float[Tensor, "b R"] | None = None,
) -> tuple[Float[Tensor, "b R"], dict[str, Float[Tensor, "b R"]]]:
    """Return `-w A log_prob` with the weight w held constant (Williams 1992, off-policy form).

    In bypass mode `old_log_prob` is the engine's, and w are the weights of the current policy against it. The token
    loss is that of `gpg`; the two differ in which advantages and weights they are meant for.

    Args:
        old_log_prob: log-probabilities of the policy that sampled, for actor/ppo_kl only.
        log_prob: log-probabilities of the policy being trained; the gradient flows here.
        advantages: A.
        response_mask: nonzero where a token counts.
        rollout_is_weights: w, or None for 1.

    Returns:
        The loss before aggregation and token numerators of actor/ppo_kl.
    """
    return gpg(old_log_prob, log_prob, advantages, response_mask, rollout_is_weights)
