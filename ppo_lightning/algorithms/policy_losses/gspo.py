"""Group sequence policy optimization: one ratio per sequence."""

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from ppo_lightning.algorithms.policy_losses.ratio import clip_by_sign, clipped, keep, log_ratio, weigh

LOG_RATIO_LIMIT = 10.0


def gspo(
    old_log_prob: Float[Tensor, "b R"],
    log_prob: Float[Tensor, "b R"],
    advantages: Float[Tensor, "b R"],
    response_mask: Shaped[Tensor, "b R"],
    rollout_is_weights: Float[Tensor, "b R"] | None = None,
    *,
    clip_ratio_low: float,
    clip_ratio_high: float,
) -> tuple[Float[Tensor, "b R"], dict[str, Float[Tensor, "b R"]]]:
    """Return PPO's clipped loss with the geometric mean of a row's token ratios in place of each.

    Zheng et al. 2025 (arXiv:2507.18071), token form of section 4.3: `s = exp(mean over tokens of the log-ratio)`
    in value, with the gradient of each token's own log-probability, so that token advantages may differ. The log
    of `s` is limited to 10 from above. The paper aggregates with seq-mean-token-mean and uses bands of about 3e-4.

    Args:
        old_log_prob: log-probabilities of the policy that the update starts from.
        log_prob: log-probabilities of the policy being trained; the gradient flows here.
        advantages: A.
        response_mask: nonzero where a token counts.
        rollout_is_weights: weights of the rollout correction, or None.
        clip_ratio_low: width of the band below 1.
        clip_ratio_high: width of the band above 1.

    Returns:
        The loss before aggregation and token numerators of actor/pg_clipfrac, pg_clipfrac_lower (always 0) and
        ppo_kl.
    """
    difference = log_ratio(old_log_prob, log_prob, response_mask)
    plain = difference.detach()
    row = plain.sum(-1, keepdim=True) / response_mask.bool().sum(-1, keepdim=True).clamp(min=1)
    ratio = (difference - plain + row).clamp(max=LOG_RATIO_LIMIT).exp()
    kept = keep(advantages, response_mask)
    bounded = clip_by_sign(ratio, kept, clip_ratio_low, clip_ratio_high)
    metrics = {
        "actor/pg_clipfrac": clipped(ratio, kept, clip_ratio_low, clip_ratio_high).to(kept.dtype),
        "actor/pg_clipfrac_lower": torch.zeros_like(kept),
        "actor/ppo_kl": -plain,
    }
    return -weigh(advantages, rollout_is_weights, response_mask) * bounded, metrics
