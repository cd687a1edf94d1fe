"""Sums, means, variances and whitening over the valid entries of a batch; what stands under the mask never counts.

A mask is 1 (or True) at entries that are kept. Values are selected with `torch.where` before any product, so a NaN or
an infinity under the mask reaches neither the result nor its gradient. Statistics of the whole batch take `all_reduce`,
which sums a float64 tensor over the data-parallel ranks; on one rank it is the identity.

Where speed counts and no gradient is needed, a mask is held as bits (`keep_bits`): a bitwise and clears what is masked
exactly, NaN included, at a fifth of what `torch.where` takes on a CPU; and long computations go over a batch in blocks
of rows (`row_blocks`) that stay in a core's cache from one operation to the next.
"""

from collections.abc import Callable, Iterator

import numpy as np
import torch
from jaxtyping import Float, Float64, Int, Shaped
from torch import Tensor

Reduce = Callable[[Tensor], Tensor]
VARIANCE_EPSILON = 1e-8
# A spread below float32's resolution of the mean is rounding and not signal.
RESOLUTION = 2.0**-24
BLOCK_ENTRIES = 2**17
SAME_WIDTH = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def identity(values: Tensor) -> Tensor:
    """Sum over the ranks of a run that has one."""
    return values


def masked_sum(
    values: Float[Tensor, "*shape"], mask: Shaped[Tensor, "*shape"], dim: int | None = None
) -> Float[Tensor, "..."]:
    """Sum the kept entries, over everything or along one dimension."""
    kept = torch.where(mask.bool(), values, 0.0)
    return kept.sum() if dim is None else kept.sum(dim)


def masked_mean(
    values: Float[Tensor, "*shape"],
    mask: Shaped[Tensor, "*shape"],
    dim: int | None = None,
    all_reduce: Reduce = identity,
) -> Float[Tensor, "..."]:
    """Average the kept entries, over everything or along one dimension; a mean of nothing is 0."""
    kept = mask.bool()
    count = kept.sum() if dim is None else kept.sum(dim)
    total = masked_sum(values, mask, dim)
    if all_reduce is not identity:
        total, count = all_reduce(torch.stack([total.double(), count.double()]))
    return (total / count.clamp(min=1)).to(values.dtype)


def _centre(
    cleared: Float[Tensor, "B *shape"], bits: Int[Tensor, "B *shape"], all_reduce: Reduce
) -> tuple[Float[Tensor, "B *shape"], Float[Tensor, ""]]:
    """Return values less their mean, and their sample variance; values are and stay 0 under the mask.

    Two passes, two collectives: the variance of nearly equal values must not drown in the square of their mean. For
    the same reason the float64 mean is subtracted in two parts of the values' own precision.
    """
    count, total = all_reduce(torch.stack([token_counts(bits).sum(), exact_sums(cleared).sum()]))
    mean = total / count.clamp(min=1)
    coarse = mean.to(cleared.dtype)
    fine = (mean - coarse).to(cleared.dtype)
    centred, squares = torch.empty_like(cleared), torch.zeros_like(total)
    for rows in row_blocks(cleared):
        block = clear_masked(torch.sub(cleared[rows], coarse, out=centred[rows]).sub_(fine), bits[rows])
        squares += torch.linalg.vector_norm(block, dim=-1).double().square().sum()
    return centred, _variance(all_reduce(squares), count, mean)


def _variance(squares: Float[Tensor, ""], count: Float[Tensor, ""], mean: Float[Tensor, ""]) -> Float[Tensor, ""]:
    """Return the sample variance from the sum of squares about the mean; 0 if it is no more than rounding."""
    variance = squares.clamp(min=0) / (count - 1).clamp(min=1)
    return torch.where(variance <= (RESOLUTION * mean).square(), 0.0, variance)


def _scale(variance: Float[Tensor, ""]) -> Float[Tensor, ""]:
    return torch.where(variance > 0, torch.rsqrt(variance + VARIANCE_EPSILON), 0.0)


def row_blocks(values: Shaped[Tensor, "B *shape"]) -> Iterator[slice]:
    """Yield slices of rows, in order, each with so few entries that some tensors of them fit into a CPU's cache."""
    entries = BLOCK_ENTRIES if values.device.type == "cpu" else max(1, values.numel())
    rows = max(1, entries * len(values) // max(1, values.numel()))
    return (slice(start, start + rows) for start in range(0, len(values), rows))


def keep_bits(mask: Shaped[Tensor, "B *shape"], dtype: torch.dtype = torch.float32) -> Int[Tensor, "B *shape"]:
    """Return integers as wide as `dtype`, -1 (all bits set) where the mask is 1 and 0 where it is 0."""
    bits = torch.empty(mask.shape, dtype=SAME_WIDTH[dtype.itemsize], device=mask.device)
    for rows in row_blocks(mask):
        bits[rows].copy_(mask[rows]).neg_()
    return bits


def clear_masked(values: Float[Tensor, "*shape"], bits: Int[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Set the entries under the mask to 0, in place."""
    values.view(bits.dtype).bitwise_and_(bits)
    return values


def kept_or_zero(values: Float[Tensor, "..."], bits: Int[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Return the values, 0 under the mask, in a new tensor; values broadcast."""
    return torch.bitwise_and(values.view(bits.dtype), bits).view(values.dtype)


def token_counts(mask: Shaped[Tensor, "*shape R"]) -> Float64[Tensor, "*shape"]:
    """Count the kept entries along the last dimension, of a mask or of its bits."""
    # PyTorch adds up booleans ten times slower than numbers on a CPU, and integers faster if it need not widen them.
    if mask.dtype in (torch.int32, torch.int64):
        return mask.sum(-1, dtype=mask.dtype).double().abs()
    return exact_sums(mask) if mask.dtype == torch.bool else mask.sum(-1, dtype=torch.float64).abs()


def exact_sums(values: Shaped[Tensor, "*shape R"]) -> Float64[Tensor, "*shape"]:
    """Add up along the last dimension in float64."""
    if values.device.type != "cpu":
        return values.sum(-1, dtype=torch.float64)
    # PyTorch converts all values first on a CPU, NumPy a few at a time.
    return torch.as_tensor(np.einsum("...t->...", values.detach().numpy(), dtype=np.float64))


@torch.no_grad()
def masked_var(
    values: Float[Tensor, "*shape"], mask: Shaped[Tensor, "*shape"], all_reduce: Reduce = identity
) -> Float[Tensor, ""]:
    """Return the sample variance (ddof = 1) of the kept entries; 0 for fewer than two of them, or equal ones."""
    cleared = torch.where(mask.bool(), values, 0.0)
    return _centre(cleared, keep_bits(mask, values.dtype), all_reduce)[1].to(values.dtype)


@torch.no_grad()
def whiten(
    values: Float[Tensor, "*shape"], mask: Shaped[Tensor, "*shape"], all_reduce: Reduce = identity
) -> Float[Tensor, "*shape"]:
    """Shift and scale the kept entries to mean 0 and variance 1; entries under the mask become 0.

    `(x - mean) / sqrt(variance + 1e-8)` with the sample variance. A batch with one kept entry, or with equal ones, has
    nothing to tell apart: its entries become exactly 0.
    """
    return whiten_cleared(torch.where(mask.bool(), values, 0.0), keep_bits(mask, values.dtype), all_reduce)


@torch.no_grad()
def whiten_cleared(
    values: Float[Tensor, "B *shape"], bits: Int[Tensor, "B *shape"], all_reduce: Reduce = identity
) -> Float[Tensor, "B *shape"]:
    """Do what `whiten` does with values that are 0 under the mask already."""
    centred, variance = _centre(values, bits, all_reduce)
    return centred.mul_(_scale(variance).to(values.dtype))


@torch.no_grad()
def whiten_rows(
    values: Float64[Tensor, "B"], tokens: Float64[Tensor, "B"], all_reduce: Reduce = identity
) -> Float64[Tensor, "B"]:
    """Do what `whiten` does when all tokens of a row have the row's value: each row counts `tokens` times."""
    count, total = all_reduce(torch.stack([tokens.sum(), (tokens * values).sum()]))
    mean = total / count.clamp(min=1)
    squares = all_reduce((tokens * (values - mean).square()).sum())
    return (values - mean) * _scale(_variance(squares, count, mean))
