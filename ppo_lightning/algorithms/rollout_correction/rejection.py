"""Rejection rules: tokens or rows on which trainer and engine differ too much leave the loss."""

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor

from ppo_lightning.algorithms.policy_losses.ratio import keep, limited
from ppo_lightning.algorithms.rollout_correction.ledger import Ledger, mean, sample_std, std
from ppo_lightning.algorithms.rollout_correction.settings import Rule


def reject(
    ledger: Ledger, log_ratio: Float[Tensor, "B R"], response_mask: Shaped[Tensor, "B R"], rules: tuple[Rule, ...]
) -> Shaped[Tensor, "B R"]:
    """Return the response mask without what any rule rejects, in its own dtype, and collect rollout_rs_*.

    Note for k1: its statistic is `-log(p_trainer / p_engine)`, so the band bounds `p_engine / p_trainer`.

    Args:
        ledger: takes the metrics; all of them are over the mask before rejection.
        log_ratio: `log(p_trainer / p_engine)` per token.
        response_mask: nonzero where a token counts.
        rules: rules that a token must all pass.
    """
    valid = response_mask.bool()
    exponent = limited(keep(log_ratio.detach(), response_mask))
    kept = valid
    for rule in rules:
        passed = _apply(ledger, rule, exponent, valid)
        kept = kept & passed
    _rejected(ledger, "rollout_rs", kept, valid)
    return torch.where(kept, response_mask, torch.zeros_like(response_mask))


def _apply(ledger: Ledger, rule: Rule, exponent: Tensor, valid: Tensor) -> Bool[Tensor, "B R"]:
    token = _statistic(exponent, rule.kind)
    tokens = valid.sum(-1)
    rows = tokens > 0
    row = _over_row(token, tokens, rule.scope)
    value = token if rule.scope == "token" else row.unsqueeze(-1).expand_as(token)
    passed = value <= rule.upper
    if rule.lower is not None:
        passed = passed & (value >= rule.lower)
    key = f"rollout_rs_{rule.name}"
    ledger.add(key, value, valid, _mean=mean)
    low = 0.0 if rule.lower is None else rule.lower
    ledger.add(f"{key}_clamped", value.clamp(min=low, max=rule.upper), valid)
    ledger.derive(f"{key}_std", f"{key}_clamped", std)
    of, mask = (token, valid) if rule.scope == "token" else (row, rows)
    ledger.extremes(key, of, mask)
    _outside(ledger, key, of, mask, rule)
    if rule.lower is None:
        ledger.add(f"{key}_fraction_low", torch.zeros_like(mask), mask, **{"": mean})
    ledger.add(f"{key}_seq", row, rows, _mean=mean, _std=sample_std)
    ledger.extremes(f"{key}_seq", row, rows)
    ledger.maximum(f"{key}_seq_max_deviation", row.abs(), rows)
    _outside(ledger, f"{key}_seq", row, rows, rule)
    _rejected(ledger, key, passed & valid, valid)
    return passed


def _statistic(exponent: Tensor, kind: str) -> Tensor:
    if kind == "k1":
        return -exponent
    if kind == "k2":
        return 0.5 * exponent.square()
    return exponent.exp() - 1 - exponent


def _over_row(token: Tensor, tokens: Tensor, scope: str) -> Float[Tensor, " B"]:
    """Return the row's statistic; for token rules the row mean, which is only reported.

    Under the mask the exponent and with it every statistic is 0, and k2 and k3 are never negative.
    """
    if scope == "seq_max":
        return token.amax(-1)
    total = token.sum(-1)
    return total if scope == "seq_sum" else total / tokens.clamp(min=1)


def _outside(ledger: Ledger, key: str, values: Tensor, mask: Tensor, rule: Rule) -> None:
    ledger.add(f"{key}_fraction_high", values > rule.upper, mask, **{"": mean})
    if rule.lower is not None:
        ledger.add(f"{key}_fraction_low", values < rule.lower, mask, **{"": mean})


def _rejected(ledger: Ledger, key: str, kept: Tensor, valid: Tensor) -> None:
    lost = valid & ~kept
    ledger.add(f"{key}_masked_fraction", lost, valid, **{"": mean})
    ledger.add(f"{key}_seq_masked_fraction", lost.sum(-1) > 0, valid.sum(-1) > 0, **{"": mean})
