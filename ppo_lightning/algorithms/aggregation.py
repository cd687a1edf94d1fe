"""From per-token losses to one number with global denominators: stage 8, every backward of actor and critic."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Float64, Shaped
from torch import Tensor

from ppo_lightning.errors import ConfigError

MODES = ("token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-sum-norm", "seq-mean-token-mean")


@dataclass(frozen=True)
class LossCounts:
    """Global counts of one mini-batch: all its micro-batches on all ranks, after every masking.

    Attributes:
        tokens: valid response tokens.
        sequences: rows with at least one valid token.
        dp_size: ranks whose gradients are averaged afterwards.
    """

    tokens: float | int
    sequences: float | int
    dp_size: int = 1


def count(mask: Shaped[Tensor, "b R"]) -> Float[Tensor, "2"]:
    """Return (valid tokens, rows with a valid token) in float64: sum it over ranks to fill `LossCounts`."""
    tokens = mask.bool().sum(-1)
    return torch.stack([tokens.sum(), (tokens > 0).sum()]).double()


def aggregate(
    loss: Float[Tensor, "b R"],
    mask: Shaped[Tensor, "b R"],
    mode: str,
    counts: LossCounts,
    horizon: float | int | None = None,
) -> Float64[Tensor, ""]:
    """Reduce the token losses of one micro-batch to its share of the mini-batch loss.

    Summed over micro-batches and averaged over ranks the shares are the exact global value, and so are their
    gradients. Masked losses may be NaN or infinite; rows without a valid token count nowhere. When the count is zero
    the result is a zero that is still connected to the graph.

    Args:
        loss: per-token losses.
        mask: nonzero where a token counts.
        mode: one of `MODES`.
        counts: counts of the whole mini-batch over all ranks.
        horizon: the constant of `seq-mean-token-sum-norm`; must not depend on how a micro-batch was trimmed.

    Returns:
        The share, multiplied by `counts.dp_size`; added up in float64, so that it hardly depends on the split.

    Raises:
        ConfigError: `mode` is unknown.
    """
    if mode not in MODES:
        raise ConfigError(f"update.loss_agg_mode must be one of {', '.join(MODES)} - got {mode!r} - pick one of them")
    valid = mask.bool()
    kept = torch.where(valid, loss, 0.0)
    if mode == "token-sum":
        return kept.sum(dtype=torch.float64) * counts.dp_size
    if mode == "token-mean":
        return kept.sum(dtype=torch.float64) * _scale(counts.tokens, counts.dp_size)
    rows = kept.sum(-1, dtype=torch.float64)
    if mode == "seq-mean-token-mean":
        rows = rows / valid.sum(-1).clamp(min=1)
    scale = _scale(counts.sequences, counts.dp_size)
    if mode == "seq-mean-token-sum-norm":
        assert horizon is not None, "seq-mean-token-sum-norm needs its horizon: loss_scale_factor or response_tokens"
        scale /= horizon
    return rows.sum() * scale


def _scale(total: float | int, dp_size: int) -> float:
    return dp_size / total if total > 0 else 0.0
