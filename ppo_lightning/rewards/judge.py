"""Judge what a reward function returned: a score, or a fault of a known kind. Runs inside worker processes."""

import json
import math
import traceback
from collections.abc import Mapping, Sequence
from typing import Any

DETAIL_CHARACTERS = 4000
EXTRA_CHARACTERS = 10_000


def judge(value: Any) -> dict[str, Any]:
    """Turn what a function returned for one sample into {score, extra, fault, detail}; 0.0 is a score, None is none.

    A number becomes the score and the extra column `acc`; of a dict all keys become extra columns.
    """
    if isinstance(value, Mapping):
        extra = {str(key): plain(item) for key, item in value.items()}
        if "score" not in value:
            return fault("missing_score", f"the dict has {', '.join(sorted(extra)) or 'no keys'} but no 'score'", extra)
        raw = value["score"]
    else:
        raw, extra = value, None
    if raw is None:
        return fault("none", "the score is None", extra)
    number = as_number(raw)
    if number is None:
        return fault("wrong_type", f"the score must be a number - got {type(raw).__name__} {repr(raw)[:200]}", extra)
    if not math.isfinite(number):
        return fault("nan", f"the score must be finite - got {number}", extra)
    return {
        "score": number,
        "extra": {"acc": number} if extra is None else {**extra, "score": number},
        "fault": None,
        "detail": None,
    }


def judge_batch(value: Any, count: int) -> list[dict[str, Any]]:
    """Judge a list of scores, one per sample; another number of scores makes all of them unusable."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if value is None:
        return [fault("none", "the function returned None for the batch")] * count
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        return [fault("wrong_type", f"a list of {count} scores is needed - got {type(value).__name__}")] * count
    if len(value) != count:
        return [fault("too_few", f"{count} samples need {count} scores - got {len(value)}")] * count
    return [judge(item) for item in value]


def fault(kind: str, detail: str, extra: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the outcome of a sample that has no score."""
    kept = {key: value for key, value in (extra or {}).items() if key != "score"}
    return {"score": None, "extra": kept, "fault": kind, "detail": detail[-DETAIL_CHARACTERS:]}


def raised(error: BaseException) -> dict[str, Any]:
    """Return the outcome of a call that raised, with the end of its traceback."""
    return fault("exception", "".join(traceback.format_exception(error, limit=-8)))


def as_number(value: Any) -> float | None:
    """Return a Python, NumPy or one-element tensor number as float, else None."""
    if isinstance(value, int | float):
        try:
            return float(value)
        except OverflowError:
            return math.inf
    if isinstance(value, str | bytes) or getattr(value, "size", 1) == 0:
        return None
    try:
        item = value.item()
    except (AttributeError, ValueError, TypeError, RuntimeError):
        return None
    return float(item) if isinstance(item, int | float) else None


def plain(value: Any) -> Any:
    """Return a value that JSON can carry: numbers, text, lists and dicts of them; of anything else its repr, cut."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    try:
        text = json.dumps(value)
    except (TypeError, ValueError, RecursionError):
        return repr(value)[:EXTRA_CHARACTERS]
    if len(text) <= EXTRA_CHARACTERS:
        return value
    return value[:EXTRA_CHARACTERS] if isinstance(value, str) else text[:EXTRA_CHARACTERS]
