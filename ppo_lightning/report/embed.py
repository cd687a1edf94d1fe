"""Data inside a page: JSON, compressed, as text that no browser reads as markup. Imports no torch."""

import base64
import gzip
import hashlib
import json
import math
from typing import Any


def packed(text: str) -> str:
    """Return text compressed, in base64; the same text gives the same result."""
    return base64.b64encode(gzip.compress(text.encode("utf-8", errors="replace"), compresslevel=6, mtime=0)).decode()


def as_json(value: Any) -> str:
    """Return a value as JSON; NaN and infinities, which JSON has not, become null."""
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False, default=str)
    except ValueError:
        return json.dumps(_finite(value), ensure_ascii=False, separators=(",", ":"), allow_nan=False, default=str)


def unpacked(text: str) -> Any:
    """Return the JSON that was packed."""
    return json.loads(gzip.decompress(base64.b64decode(text)))


def script_hash(text: str) -> str:
    """Return the source expression that allows one inline script and no other."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list | tuple) else value
