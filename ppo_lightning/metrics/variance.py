"""Proxies for the variance of the policy gradient, from the score-norm approximation. Stage settle.

W(row) = sum over tokens of 1 - 2 pi(token) + sum over the vocabulary of pi**2 stands in for the squared norm of the
row's score function; the squared advantage times W for the squared norm of its gradient. Legend: B rows, R width.
"""

from typing import Any

import torch
from torch import Tensor

from ppo_lightning.metrics.reductions import Row, Value, as_double, as_row, nonfinite
from ppo_lightning.metrics.values import MetricBook
from ppo_lightning.protocol.data_proto import DataProto
from ppo_lightning.protocol.padding import without_padding


class PureNoiseValue(Value):
    """(mean of the squared gradients' norms - squared norm of the mean gradient) / (rows - 1), at least 0.

    The row is (sum of powers, signal, rows, non-finite); the signal is the same on every rank.
    """

    reduction = "PURE_NOISE"
    initial = (0.0, 0.0, 0.0, 0.0)

    @classmethod
    def row(cls, *data: Any) -> Row:
        """Return the row of `(powers (B,), signal, rows that count (B,))`."""
        powers, signal, rows = data
        chosen = torch.where(rows, as_double(powers), 0.0)
        return as_row(chosen.sum(), signal, rows.sum(), nonfinite(chosen))

    @classmethod
    def merge(cls, rows: Tensor) -> Tensor:
        """Add up powers and rows; keep the signal."""
        powers, signal, count, bad = rows.unbind(-1)
        return torch.stack([powers.sum(0), signal.amax(0), count.sum(0), bad.sum(0)], dim=-1)

    @classmethod
    def finish(cls, row: list[float]) -> float | None:
        """Return the noise; not defined for one row."""
        return max((row[0] / row[2] - row[1]) / (row[2] - 1), 0.0) if row[2] > 1 else None


def variance_metrics(batch: DataProto, book: MetricBook, gradient_norm: float | None = None) -> None:
    """Write variance_proxy/*, over rows with at least one valid token; nothing without `sum_pi_squared`.

    Reads: sum_pi_squared, old_log_probs, advantages, response_mask, and rollout_is_weights if there (B, R).

    Args:
        batch: this rank's rows.
        book: taken the numbers into.
        gradient_norm: norm of the actor's gradient in this step; None leaves out what depends on it.
    """
    tensors = without_padding(batch).tensors()
    if "sum_pi_squared" not in tensors:
        return
    mask = tensors["response_mask"].bool()
    rows = mask.any(-1)
    score_norm = 1.0 - 2.0 * tensors["old_log_probs"].double().exp() + tensors["sum_pi_squared"].double()
    advantage = _row_mean(tensors["advantages"], mask)
    weight, weighted_norm = torch.ones_like(advantage), score_norm
    if "rollout_is_weights" in tensors:
        weights = tensors["rollout_is_weights"].double()
        weight, weighted_norm = _row_mean(weights, mask), score_norm * weights.square()
    power = weight.square() * advantage.square() * _row_sum(score_norm, mask).clamp(min=0.0)
    book.masked_mean("variance_proxy/proxy2_total_power", power, rows)
    book.masked_mean("variance_proxy/expected_a_squared", advantage.square(), rows)
    book.masked_mean("variance_proxy/expected_w", _row_sum(weighted_norm, mask), rows)
    if gradient_norm is not None:
        signal = float(gradient_norm) ** 2
        book.mean("variance_proxy/proxy1_signal_strength", signal)
        row = PureNoiseValue.row(power, signal, rows)
        book.add("variance_proxy/proxy3_pure_noise", PureNoiseValue, row)


def _row_sum(values: Tensor, mask: Tensor) -> Tensor:
    """Sum the valid entries of each row: (B, R) -> (B,)."""
    return torch.where(mask, values.double(), 0.0).sum(-1)


def _row_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Average the valid entries of each row, 0 for a row without any: (B, R) -> (B,)."""
    return _row_sum(values, mask) / mask.sum(-1).clamp(min=1)
