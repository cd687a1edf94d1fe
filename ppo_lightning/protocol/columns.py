"""Per-sample columns of a batch (`non_tensor_batch`): building, copying, selecting and comparing rows of objects."""

import copy
import functools
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor

ATOMIC = frozenset({str, int, float, bool, bytes, complex, type(None)})
"""Types whose objects cannot change, so that rows may share them."""

EXACT = frozenset({str, int, bool, bytes, type(None)})
"""Types for which `==` answers at once and no value differs from itself."""

PLAIN = EXACT | {list, dict}
"""Types whose objects are compared by one `==` first; arrays of one element inside them count as that element."""


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


def copier(value: Any) -> Callable[[], Any] | None:
    """Return a function that makes copies of `value` which share no mutable part, None if `value` cannot change.

    What there is to copy is looked up once, however many copies are made.
    """
    kind = type(value)
    if kind in ATOMIC or (kind is tuple and ATOMIC.issuperset(map(type, value))):
        return None
    if kind is list and ATOMIC.issuperset(map(type, value)):
        return value.copy
    if kind is dict and ATOMIC.issuperset(map(type, value.values())):
        return value.copy
    if kind is list:
        parts = [(item, copier(item)) for item in value]
        return lambda: [item if make is None else make() for item, make in parts]
    if kind is dict:
        entries = [(key, item, copier(item)) for key, item in value.items()]
        return lambda: {key: item if make is None else make() for key, item, make in entries}
    return value.clone if isinstance(value, Tensor) else functools.partial(copy.deepcopy, value)


def take(column: np.ndarray, index: np.ndarray, again: np.ndarray | None) -> np.ndarray:
    """Select rows by integer `index`; rows that `again` marks are copied, so that no two share a mutable object."""
    taken = column[index]
    if column.dtype == object and again is not None:
        taken[again] = _owned(taken[again], taken[again], lambda makers: makers)
    return taken


def taken_again(index: np.ndarray) -> np.ndarray | None:
    """Mark every entry of `index` that stood there before; None if all are different."""
    if len(set(index.tolist())) == len(index):
        return None
    again = np.ones(len(index), dtype=bool)
    again[np.unique(index, return_index=True)[1]] = False
    return again


def repeat(column: np.ndarray, times: int, interleave: bool) -> np.ndarray:
    """Repeat rows `a a b b` (interleave) or `a b a b`; every repeated row owns its objects."""

    def again(rows: np.ndarray) -> np.ndarray:
        return np.repeat(rows, times, axis=0) if interleave else np.concatenate([rows] * times)

    return again(column) if column.dtype != object else _owned(again(column), column, again)


def _owned(column: np.ndarray, once: np.ndarray, again: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """Return an object column of copies which share no mutable object with anything.

    `once` holds the objects of `column` before `again` repeated them: what there is to copy is found out there.
    """
    values = once.ravel().tolist()
    if ATOMIC.issuperset(map(type, values)):
        return column
    objects = column.ravel().tolist()
    alike = _flat_copier(values)
    if alike is not None:
        copies = list(map(alike, objects))
    else:
        makers = again(_as_array([copier(value) for value in values], once.shape)).ravel().tolist()
        copies = [value if make is None else make() for value, make in zip(objects, makers, strict=True)]
    return _as_array(copies, column.shape)


def _flat_copier(values: list[Any]) -> Callable[[Any], Any] | None:
    """Return what copies every one of `values` if all are lists, or all dicts, of objects that cannot change."""
    kinds = set(map(type, values))
    if kinds == {list} and ATOMIC.issuperset(map(type, chain.from_iterable(values))):
        return list.copy
    if kinds == {dict} and ATOMIC.issuperset(map(type, chain.from_iterable(map(dict.values, values)))):
        return dict.copy
    return None


def _as_array(objects: list[Any], shape: tuple[int, ...]) -> np.ndarray:
    return np.fromiter(objects, dtype=object, count=len(objects)).reshape(shape)


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
    ours, theirs = left.tolist(), right.tolist()
    differs = [
        not (one is other or _plainly_equal(one, other) or deep_equal(one, other))
        for one, other in zip(ours, theirs, strict=True)
    ]
    return np.flatnonzero(differs)


def _plainly_equal(left: Any, right: Any) -> bool:
    """Tell quickly, by one `==`, that two plain objects are equal; False only means that it takes a closer look."""
    if type(left) not in PLAIN or type(right) is not type(left):
        return False
    try:
        return bool(left == right)
    except (ValueError, RuntimeError):  # an array inside: its truth value is ambiguous
        return False


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
