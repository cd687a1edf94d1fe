"""Importance weights of the trainer's policy against the engine's, truncated or masked outside a band."""

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from ppo_lightning.algorithms.policy_losses.ratio import keep, limited
from ppo_lightning.algorithms.rollout_correction.ledger import Ledger, effective_share, mean, sample_std, std
from ppo_lightning.algorithms.rollout_correction.settings import Settings


def importance_weights(
    log_ratio: Float[Tensor, "B R"], response_mask: Shaped[Tensor, "B R"], settings: Settings
) -> tuple[Float[Tensor, "B R"], Float[Tensor, "B R"]]:
    """Return (weights, weights before truncation), both 0 at masked positions and without gradient.

    Token level: `exp(x)`; sequence level: `exp(sum over the row of x)` at each of its tokens; exponents limited to
    +-20. With an upper bound alone weights are truncated at it (TIS, https://fengyao.notion.site/off-policy-rl); with
    a band, weights outside become 0 (IcePop, https://ringtech.notion.site/icepop).

    Args:
        log_ratio: `x = log(p_trainer / p_engine)` per token.
        response_mask: nonzero where a token counts.
        settings: level and bounds.
    """
    exponent = keep(log_ratio.detach(), response_mask)
    if settings.level == "sequence":
        exponent = exponent.sum(-1, keepdim=True)
    raw = keep(limited(exponent).exp().expand_as(log_ratio), response_mask)
    if settings.lower is None:
        return raw.clamp(max=settings.upper), raw
    return torch.where((raw >= settings.lower) & (raw <= settings.upper), raw, 0.0), raw


def measure_weights(
    ledger: Ledger,
    weights: Float[Tensor, "B R"],
    raw: Float[Tensor, "B R"],
    log_ratio: Float[Tensor, "B R"],
    mask: Shaped[Tensor, "B R"],
    settings: Settings,
) -> None:
    """Collect rollout_is_*: the weights as applied (before normalisation), and how often the raw ones leave the band.

    Without a lower bound the shares of low weights are counted below 1 / upper. Row metrics are over rows with tokens.
    """
    lower = 1 / settings.upper if settings.lower is None else settings.lower
    tokens = mask.bool().sum(-1)
    rows = tokens > 0
    ledger.add("rollout_is", weights, mask, _mean=mean, _std=std, _eff_sample_size=effective_share)
    if settings.level == "sequence":
        exponent = keep(log_ratio.detach(), mask).sum(-1)
        _shares(
            ledger, "rollout_is_ratio", exponent.clamp(min=-700, max=700).double().exp(), rows, lower, settings.upper
        )
        ledger.extremes("rollout_is", exponent.double().clamp(max=20.0).exp(), rows)
    else:
        _shares(ledger, "rollout_is_ratio", raw, mask, lower, settings.upper)
        ledger.extremes("rollout_is", weights, mask)
    row_weights = weights.sum(-1) / tokens.clamp(min=1)
    ledger.add("rollout_is_seq", row_weights, rows, _mean=mean, _std=sample_std)
    ledger.extremes("rollout_is_seq", row_weights, rows)
    ledger.maximum("rollout_is_seq_max_deviation", (row_weights - 1).abs(), rows)
    _shares(ledger, "rollout_is_seq", raw.sum(-1) / tokens.clamp(min=1), rows, lower, settings.upper)
    if settings.lower is not None:
        ledger.add("rollout_is_oob", (raw < lower) | (raw > settings.upper), mask, _ratio=mean)


def _shares(ledger: Ledger, key: str, values: Tensor, mask: Tensor, lower: float, upper: float) -> None:
    ledger.add(f"{key}_fraction_high", values > upper, mask, **{"": mean})
    ledger.add(f"{key}_fraction_low", values < lower, mask, **{"": mean})
