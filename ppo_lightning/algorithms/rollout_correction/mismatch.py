"""Diagnostics of how far the trainer's policy is from the one that sampled: KL, perplexities, chi-square."""

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from ppo_lightning.algorithms.policy_losses.ratio import keep, limited
from ppo_lightning.algorithms.rollout_correction.ledger import Ledger, mean, mean_minus_one


def measure_mismatch(
    ledger: Ledger,
    log_prob: Float[Tensor, "B R"],
    rollout_log_prob: Float[Tensor, "B R"],
    response_mask: Shaped[Tensor, "B R"],
) -> None:
    """Collect the off-policy metrics, with `x = log_prob - rollout_log_prob` and row means over the row's tokens.

    Token means: kl `-x`, k3_kl `exp(x) - x - 1`, chi2_token `exp(x)^2 - 1`. Means over rows with tokens: perplexities
    `exp(-mean log-prob)` and their logarithms, log_ppl_diff (also absolute, max and min), ppl_ratio, and chi2_seq
    `exp(sum x)^2 - 1`. Exponents are limited to +-20.

    Args:
        ledger: takes the metrics.
        log_prob: log-probabilities of the trainer's policy.
        rollout_log_prob: log-probabilities that the engine sampled with.
        response_mask: nonzero where a token counts.
    """
    trainer, engine = keep(log_prob.detach(), response_mask), keep(rollout_log_prob.detach(), response_mask)
    difference = trainer - engine
    tokens = response_mask.bool().sum(-1)
    rows = tokens > 0
    count = tokens.clamp(min=1)
    ratio = limited(difference).exp()
    ledger.add("kl", -difference, response_mask, **{"": mean})
    ledger.add("k3_kl", ratio - difference - 1, response_mask, **{"": mean})
    ledger.add("chi2_token", ratio.square(), response_mask, **{"": mean_minus_one})
    trainer_log, engine_log = -trainer.sum(-1) / count, -engine.sum(-1) / count
    change = trainer_log - engine_log
    by_row = {
        "training_ppl": trainer_log.exp(),
        "training_log_ppl": trainer_log,
        "rollout_ppl": engine_log.exp(),
        "rollout_log_ppl": engine_log,
        "log_ppl_diff": change,
        "log_ppl_abs_diff": change.abs(),
        "ppl_ratio": change.exp(),
    }
    for key, values in by_row.items():
        ledger.add(key, values, rows, **{"": mean})
    ledger.extremes("log_ppl_diff", change, rows)
    squared = (2 * limited(difference.sum(-1)).to(torch.float64)).exp()
    ledger.add("chi2_seq", squared, rows, **{"": mean_minus_one})
