"""Rollout correction of a batch: stage 7 before the estimator, or in bypass mode every mini-batch of stage 8."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from ppo_lightning.algorithms.masked import Reduce, identity
from ppo_lightning.algorithms.rollout_correction.ledger import Ledger, Measurements
from ppo_lightning.algorithms.rollout_correction.mismatch import measure_mismatch
from ppo_lightning.algorithms.rollout_correction.rejection import reject
from ppo_lightning.algorithms.rollout_correction.settings import Settings
from ppo_lightning.algorithms.rollout_correction.weights import importance_weights, measure_weights
from ppo_lightning.algorithms.tables import PolicyLoss

PREFIX = "rollout_corr/"


@dataclass(frozen=True)
class Correction:
    """What the correction gives.

    Attributes:
        weights: importance weights (B, R), 0 at masked positions; None when they are off.
        response_mask: the mask without rejected tokens (B, R): all counts are to be taken after it.
        metrics: rollout_corr/*.
    """

    weights: Float[Tensor, "B R"] | None
    response_mask: Shaped[Tensor, "B R"]
    metrics: Measurements


def correct(
    log_prob: Float[Tensor, "B R"],
    rollout_log_prob: Float[Tensor, "B R"],
    response_mask: Shaped[Tensor, "B R"],
    settings: Settings,
    all_reduce: Reduce = identity,
) -> Correction:
    """Compute weights, the new mask and the metrics of this rank's rows; batch-wide numbers are over all ranks.

    Weights and rejection both start from the mask given; their metrics are over it. One collective, whatever is on.

    Args:
        log_prob: log-probabilities of the trainer's policy: old_log_probs, or in bypass mode those of the policy being
            trained, before the mini-batch's first backward.
        rollout_log_prob: log-probabilities that the engine sampled with.
        response_mask: nonzero where a token counts; no rows and no tokens are allowed.
        settings: what is on.
        all_reduce: sums a float64 tensor over ranks.
    """
    ledger = Ledger()
    log_ratio = keep_detached(log_prob, response_mask) - keep_detached(rollout_log_prob, response_mask)
    weights = None
    if settings.level != "off":
        weights, raw = importance_weights(log_ratio, response_mask, settings)
        measure_weights(ledger, weights, raw, log_ratio, response_mask, settings)
    mask = reject(ledger, log_ratio, response_mask, settings.rules) if settings.rules else response_mask
    measure_mismatch(ledger, log_prob, rollout_log_prob, response_mask)
    metrics = ledger.finish(all_reduce, PREFIX)
    if weights is not None and settings.normalize:
        factor = _factor(ledger.mean("rollout_is" if settings.level == "token" else "rollout_is_seq"))
        metrics.means[f"{PREFIX}rollout_is_batch_norm_factor"] = (factor, 1.0)
        weights = weights / factor
    return Correction(weights, mask, metrics)


def needs_minibatch(settings: Settings, loss: PolicyLoss) -> bool:
    """Tell whether bypass mode needs the policy's log-probabilities of a whole mini-batch before its first backward.

    Rejection changes the counts of the loss, and normalised weights need their mean. Otherwise the weights of a
    micro-batch follow from its own forward by `importance_weights`, and a loss that holds the ratio needs none.
    """
    return bool(settings.rules) or (not loss.ratio and not settings.row_local)


def keep_detached(values: Tensor, mask: Tensor) -> Tensor:
    """Return the values at valid tokens, 0 elsewhere, without gradient."""
    return torch.where(mask.bool(), values.detach(), 0.0)


def _factor(mean_weight: float | None) -> float:
    return mean_weight if mean_weight is not None and mean_weight > 1e-8 else 1.0
