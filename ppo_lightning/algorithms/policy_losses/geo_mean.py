"""Geometric-mean policy optimization: a row's ratio is the geometric mean of its clipped token ratios."""

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from ppo_lightning.algorithms.policy_losses.ratio import LOG_RATIO_LIMIT, keep, log_ratio


def geo_mean(
    old_log_prob: Float[Tensor, "b R"],
    log_prob: Float[Tensor, "b R"],
    advantages: Float[Tensor, "b R"],
    response_mask: Shaped[Tensor, "b R"],
    rollout_is_weights: Float[Tensor, "b R"] | None = None,
    *,
    clip_ratio_low: float,
    clip_ratio_high: float,
) -> tuple[Float[Tensor, "b R"], dict[str, Float[Tensor, "b R"]]]:
    """Return the row's `-mean(A) exp(mean of clipped log-ratios)` at each of its valid tokens.

    Zhao et al. 2025 (arXiv:2507.20673). Token log-ratios are bounded by `high` from above where A > 0 and by `-low`
    from below where A < 0, then averaged over the row; the average is limited to 20 from above. It is meant for
    advantages that are constant in a row; others are averaged. To be aggregated with seq-mean-token-mean, which makes
    it the mean over rows. Weights enter by their geometric mean over the row.

    Args:
        old_log_prob: log-probabilities of the policy that the update starts from.
        log_prob: log-probabilities of the policy being trained; the gradient flows here.
        advantages: A.
        response_mask: nonzero where a token counts.
        rollout_is_weights: weights of the rollout correction, or None.
        clip_ratio_low: bound of the log-ratio from below.
        clip_ratio_high: bound of the log-ratio from above.

    Returns:
        The loss before aggregation and token numerators of actor/pg_clipfrac (bounded from above), pg_clipfrac_lower
        (bounded from below) and ppo_kl.
    """
    difference = log_ratio(old_log_prob, log_prob, response_mask)
    kept = keep(advantages, response_mask)
    tokens = response_mask.bool().sum(-1).clamp(min=1)
    above = (kept > 0) & (difference.detach() > clip_ratio_high)
    below = (kept < 0) & (difference.detach() < -clip_ratio_low)
    # With A = 0 the log-ratio counts as 0, as the sign of A in the paper's formula has it.
    free = (kept != 0) & ~above & ~below
    fixed = above.to(kept.dtype) * clip_ratio_high - below.to(kept.dtype) * clip_ratio_low
    bounded = torch.where(free, difference, fixed)
    row = -kept.sum(-1) / tokens * (bounded.sum(-1) / tokens).clamp(max=LOG_RATIO_LIMIT).exp()
    if rollout_is_weights is not None:
        logs = torch.where(response_mask.bool(), rollout_is_weights + 1e-10, 1.0).log()
        row = row * (logs.sum(-1) / tokens).exp()
    metrics = {
        "actor/pg_clipfrac": above.to(kept.dtype),
        "actor/pg_clipfrac_lower": below.to(kept.dtype),
        "actor/ppo_kl": -difference.detach(),
    }
    return keep(row.unsqueeze(-1).expand_as(kept), response_mask), metrics
