"""What every batch must satisfy, checked on construction and around every operation."""

from typing import Any, cast

import numpy as np
from tensordict import TensorDict
from torch import Tensor

from ppo_lightning.errors import DataError


def rows_of(batch: TensorDict | None, columns: dict[str, np.ndarray]) -> int:
    """Return B: from the tensors if there are any, else from the first column, else 0."""
    if batch is not None:
        return int(batch.batch_size[0]) if len(batch.batch_size) else 0
    for column in columns.values():
        return len(column) if np.ndim(column) else 0
    return 0


def check_layers(batch: TensorDict | None, columns: dict[str, np.ndarray], meta_info: dict[str, Any]) -> None:
    """Check that the three layers belong together.

    Raises:
        DataError: not exactly one batch dim, a value that is no tensor, a column that is no array or whose first
            axis is not B, or a key that is in both row layers.
    """
    tensors = {} if batch is None else _checked_tensors(batch)
    rows = rows_of(batch, columns)
    for key, column in columns.items():
        if not isinstance(column, np.ndarray):
            raise DataError(
                f"non_tensor_batch[{key!r}] must be a numpy array with one entry per row, got {type(column).__name__}: "
                "build it with columns.as_column"
            )
        if column.ndim == 0 or len(column) != rows:
            raise DataError(
                f"non_tensor_batch[{key!r}] must have as many rows as the batch ({rows}), got shape {column.shape}"
            )
        if key in tensors:
            raise DataError(f"key {key!r} is both in batch and in non_tensor_batch: rename or pop one of them")
    if not isinstance(meta_info, dict):
        raise DataError(f"meta_info must be a dict, got {type(meta_info).__name__}")


def _checked_tensors(batch: TensorDict) -> dict[str, Tensor]:
    if len(batch.batch_size) != 1:
        raise DataError(f"batch must have exactly one batch dim, got batch_size {tuple(batch.batch_size)}")
    tensors = cast(dict[str, Tensor], dict(batch.items()))
    for key, value in tensors.items():
        if not isinstance(value, Tensor):
            raise DataError(
                f"batch[{key!r}] must be a tensor, got {type(value).__name__}: put objects into non_tensor_batch"
            )
    return tensors
