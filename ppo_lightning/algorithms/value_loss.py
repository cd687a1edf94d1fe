"""Clipped value loss of the critic, per token: stage 8."""

import torch
from jaxtyping import Float, Shaped
from torch import Tensor


def value_loss(
    value_predictions: Float[Tensor, "b R"],
    values: Float[Tensor, "b R"],
    returns: Float[Tensor, "b R"],
    response_mask: Shaped[Tensor, "b R"],
    cliprange_value: float,
) -> tuple[Float[Tensor, "b R"], dict[str, Float[Tensor, "b R"]]]:
    """Return half the larger of the squared errors of the prediction and of its clipped form.

    `0.5 * max((v - R)^2, (clip(v, v_old - c, v_old + c) - R)^2)` (Schulman et al. 2017 in the form that PPO codes
    use; the half makes the gradient `v - R`). Masked positions are 0 whatever they hold.

    Args:
        value_predictions: values of the critic being trained; the gradient flows here.
        values: values of stage 6, before the update.
        returns: regression targets.
        response_mask: nonzero where a token counts.
        cliprange_value: c.

    Returns:
        The loss before aggregation, and token numerators of critic/vf_clipfrac (the clipped error is the larger one)
        and critic/vpred_mean.
    """
    valid = response_mask.bool()
    predicted = torch.where(valid, value_predictions, 0.0)
    old = torch.where(valid, values, 0.0)
    target = torch.where(valid, returns, 0.0)
    clipped = predicted.clamp(min=old - cliprange_value, max=old + cliprange_value)
    error = (predicted - target).square()
    clipped_error = (clipped - target).square()
    metrics = {
        "critic/vf_clipfrac": (clipped_error > error).to(error.dtype).detach(),
        "critic/vpred_mean": predicted.detach(),
    }
    return 0.5 * torch.maximum(error, clipped_error), metrics
