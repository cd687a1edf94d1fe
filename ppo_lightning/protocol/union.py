"""Merging one layer of a batch into another without ever overwriting: equal values pass, others are an error."""

from typing import Any

import numpy as np
from torch import Tensor

from ppo_lightning.errors import DataError
from ppo_lightning.protocol.columns import deep_equal, differing_rows, tensor_differences, tensors_equal

SHOWN_ROWS = 5
SHOWN_TEXT = 80
REMEDY = "union never overwrites: pop the key from one side first"


def check_tensors(left: dict[str, Tensor], right: dict[str, Tensor]) -> None:
    """Check that keys of both tensor layers hold equal tensors (NaN at the same places is equal).

    Raises:
        DataError: names the key, the first rows and elements that differ, and both values.
    """
    for key in left.keys() & right.keys():
        if not tensors_equal(left[key], right[key]):
            raise DataError(f"key {key!r} of batch {_tensor_text(left[key], right[key])}: {REMEDY}")


def check_columns(left: dict[str, np.ndarray], right: dict[str, np.ndarray]) -> None:
    """Check that keys of both column layers hold deeply equal columns.

    Raises:
        DataError: names the key, the rows that differ and both values of the first.
    """
    for key in left.keys() & right.keys():
        ours, theirs = left[key], right[key]
        if ours is theirs:
            continue
        if ours.shape != theirs.shape:
            raise DataError(
                f"key {key!r} of non_tensor_batch has shape {ours.shape} on the left and {theirs.shape} on the right: "
                f"{REMEDY}"
            )
        rows = differing_rows(ours, theirs)
        if rows.size:
            values = _values_text(ours[rows[0]], theirs[rows[0]])
            raise DataError(f"key {key!r} of non_tensor_batch differs at {rows_text(rows)}{values}: {REMEDY}")


def check_layers_apart(tensors: dict[str, Tensor], columns: dict[str, np.ndarray]) -> None:
    """Raise DataError if a key is a tensor on one side and a column on the other."""
    mixed = sorted(tensors.keys() & columns.keys())
    if mixed:
        raise DataError(
            f"keys {mixed} are in batch on one side and in non_tensor_batch on the other: rename or pop them"
        )


def check_meta(left: dict[str, Any], right: dict[str, Any]) -> None:
    """Check that keys of both `meta_info` are equal by `==` (deeply where `==` has no single answer).

    Raises:
        DataError: names the key and both values.
    """
    if left is right:
        return
    for key in left.keys() & right.keys():
        if not meta_equal(left[key], right[key]):
            raise DataError(f"key {key!r} of meta_info differs{_values_text(left[key], right[key])}: {REMEDY}")


def add_missing(left: dict[str, Any], right: dict[str, Any]) -> None:
    """Add to `left`, in place and in their order, the entries of `right` whose keys it lacks."""
    for key, value in right.items():
        left.setdefault(key, value)


def meta_equal(left: Any, right: Any) -> bool:
    """Compare two per-step values by `==`, deeply where that has no single answer (arrays and tensors)."""
    try:
        answer = left == right
        return answer if isinstance(answer, bool) else deep_equal(left, right)
    except (ValueError, RuntimeError):  # an array somewhere inside: its truth value is ambiguous
        return deep_equal(left, right)


def rows_text(rows: np.ndarray) -> str:
    """Name rows for an error message: `row 3`, or `rows 0, 1, 2, 3, 4, ... (17 rows)`."""
    if len(rows) == 1:
        return f"row {int(rows[0])}"
    shown = ", ".join(str(int(row)) for row in rows[:SHOWN_ROWS])
    return f"rows {shown}" if len(rows) <= SHOWN_ROWS else f"rows {shown}, ... ({len(rows)} rows)"


def _tensor_text(left: Tensor, right: Tensor) -> str:
    if left.shape != right.shape or left.dtype != right.dtype:
        return f"is {left.dtype} {tuple(left.shape)} on the left and {right.dtype} {tuple(right.shape)} on the right"
    right = right.to(left.device)
    where = tensor_differences(left, right).nonzero()
    rows = where[:, 0].unique().cpu().numpy()
    first = tuple(where[0].tolist())
    place = f" (first at index {list(first)})" if len(first) > 1 else ""
    return f"differs at {rows_text(rows)}{place}{_values_text(left[first].item(), right[first].item())}"


def _values_text(left: Any, right: Any) -> str:
    return f": left {_short(left)}, right {_short(right)}"


def _short(value: Any) -> str:
    text = repr(value.item() if isinstance(value, np.generic) else value)
    return text if len(text) <= SHOWN_TEXT else f"{text[:SHOWN_TEXT]}..."
