"""Per-sample columns of a batch (`non_tensor_batch`): building, copying, selecting and comparing rows of objects."""

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

ATOMIC = frozenset({str, int, float, bool, bytes, complex, type(None)})
"""Types whose objects cannot change, so that rows may share them."""

EXACT = frozenset({str, int, bool, bytes, type(None)})
"""Types for which `==` answers at once and no value differs from itself."""


def as_column(values: np.ndarray | Sequence[Any]) -> np.ndarray:
    """Return `values` as a column: an array as it is, anything else as a one-dimensional object array.

    Rows that are lists or dicts stay single objects, also when all of them have the same length.
    """
    if isinstance(values, np.ndarray):
        return values
    column = np.empty(len(values), dtype=object)
    for row, value in enumerate(values):
        column[row] = value
    return column


def own(value: Any) -> Any:
    """Return `value` with every mutable part copied; strings and numbers are returned as they are."""
    kind = type(value)
    if kind in ATOMIC:
        return value
    if kind is list:
        return value.copy() if ATOMIC.issuperset(map(type, value)) else [own(item) for item in value]
    if kind is dict:
        if ATOMIC.issuperset(map(type, value.values())):
            return value.copy()
        return {key: own(item) for key, item in value.items()}
    if isinstance(value, Tensor):
        return value.clone()
    return copy.deepcopy(value)


def own_rows(column: np.ndarray, rows: np.ndarray | None = None) -> np.ndarray:
    """Give `rows` (all if None) of an object column, changed in place, their own copy of what they hold."""
    if column.dtype != object:
        return column
    for row in range(len(column)) if rows is None else rows.tolist():
        if column.ndim == 1:
            column[row] = own(column[row])
            continue
        for place in np.ndindex(column.shape[1:]):
            column[row][place] = own(column[row][place])
    return column


def take(column: np.ndarray, index: np.ndarray) -> np.ndarray:
    """Select rows by integer `index`; a row taken twice is copied, so that no two rows share a mutable object."""
    taken = column[index]
    if column.dtype != object:
        return taken
    first = np.unique(index, return_index=True)[1]
    if len(first) == len(index):
        return taken
    again = np.ones(len(index), dtype=bool)
    again[first] = False
    return own_rows(taken, np.flatnonzero(again))


def repeat(column: np.ndarray, times: int, interleave: bool) -> np.ndarray:
    """Repeat rows `a a b b` (interleave) or `a b a b`; every repeated row owns its objects."""
    if interleave:
        return own_rows(np.repeat(column, times, axis=0))
    return own_rows(np.concatenate([column] * times))


def deep_equal(left: Any, right: Any) -> bool:
    """Compare two objects deeply; NaN equals NaN, arrays compare by shape and elements."""
    if left is right:
        return True
    if type(left) in EXACT and type(right) in EXACT:
        return left == right
    if isinstance(left, np.ndarray) or isinstance(right, np.ndarray):
        return (
            _same_kind(left, right, np.ndarray) and left.shape == right.shape and not differing_rows(left, right).size
        )
    if isinstance(left, Tensor) or isinstance(right, Tensor):
        return _same_kind(left, right, Tensor) and tensors_equal(left, right)
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(deep_equal(left[key], right[key]) for key in left)
    if isinstance(left, list | tuple) and isinstance(right, list | tuple):
        same = type(left) is type(right) and len(left) == len(right)
        return same and all(deep_equal(one, other) for one, other in zip(left, right, strict=True))
    # Only NaN differs from itself.
    return bool(left == right) or bool(left != left and right != right)


def differing_rows(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Return the rows at which two arrays of one shape differ (deeply; NaN equals NaN)."""
    if left.ndim == 0:
        return np.flatnonzero([not deep_equal(left.item(), right.item())])
    if not left.size:
        return np.zeros(0, dtype=np.int64)
    if left.dtype == right.dtype and left.dtype != object:
        same = left == right
        if left.dtype.kind in "fcmM":
            same |= np.isnan(left) & np.isnan(right) if left.dtype.kind in "fc" else np.isnat(left) & np.isnat(right)
        return np.flatnonzero(~same.reshape(len(left), -1).all(axis=1))
    return np.array(
        [
            row
            for row, (one, other) in enumerate(zip(left.tolist(), right.tolist(), strict=True))
            if one is not other and not deep_equal(one, other)
        ],
        dtype=np.int64,
    )


def tensors_equal(left: Tensor, right: Tensor) -> bool:
    """Compare shape, dtype and elements; NaN at the same places is equal."""
    if left.shape != right.shape or left.dtype != right.dtype:
        return False
    right = right.to(left.device)
    if torch.equal(left, right):
        return True
    return left.dtype.is_floating_point and not bool(tensor_differences(left, right).any())


def tensor_differences(left: Tensor, right: Tensor) -> Tensor:
    """Mark (bool, same shape) the elements that differ; NaN equals NaN."""
    differs = left != right
    if left.dtype.is_floating_point or left.dtype.is_complex:
        differs &= ~(left.isnan() & right.isnan())
    return differs


def _same_kind(left: Any, right: Any, kind: type) -> bool:
    return isinstance(left, kind) and isinstance(right, kind)
