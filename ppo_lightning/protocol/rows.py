"""Rows of a batch: a single one, what selections mean, and the tensor side of repeating them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tensordict import TensorDict
from torch import Tensor

from ppo_lightning.errors import DataError

Index = Sequence[int] | Sequence[bool] | np.ndarray | Tensor


@dataclass
class DataProtoItem:
    """One row: its tensors (without the batch dim), its objects, and the per-step values of its batch."""

    batch: TensorDict | None
    non_tensor_batch: dict[str, Any]
    meta_info: dict[str, Any]


def as_indices(idxs: Index, rows: int) -> np.ndarray:
    """Return a selection of `rows` rows as int64 indices from 0; negative ones count from the end.

    Raises:
        DataError: neither integers nor one boolean per row, or a row outside the batch.
    """
    index = idxs.detach().cpu().numpy() if isinstance(idxs, Tensor) else np.asarray(idxs)
    if index.dtype == bool and index.shape == (rows,):
        return np.flatnonzero(index)
    if index.shape == (0,) and index.dtype != bool:
        return np.zeros(0, dtype=np.int64)
    if index.ndim != 1 or index.dtype.kind not in "iu":
        raise DataError(
            f"rows are chosen by integers or by one boolean for each of {rows} rows, "
            f"got {index.dtype} of shape {index.shape}"
        )
    outside = index[(index < -rows) | (index >= rows)]
    if outside.size:
        raise DataError(f"row {int(outside[0])} is outside a batch of {rows} rows")
    return np.where(index < 0, index + rows, index).astype(np.int64)


def repeat_tensor(value: Tensor, times: int, interleave: bool) -> Tensor:
    """Repeat rows of (B, ...) into a new (B * times, ...): `a a b b` if interleaved, else `a b a b`."""
    if interleave:
        return value.repeat_interleave(times, dim=0)
    return value.repeat(times, *[1] * (value.ndim - 1))
