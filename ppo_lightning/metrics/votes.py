"""Which answers of a prompt agree: as they are written, or after normalising what is only spelling. Torch-free."""

import re
from collections.abc import Callable, Hashable
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from typing import Any

import numpy as np

_MARKUP = re.compile(r"\\(?:text|mathrm|textbf|boxed)\s*\{([^{}]*)\}")
_GROUPED = re.compile(r"(?<=\d)[,_ ](?=\d{3}(?!\d))")


@lru_cache(maxsize=1 << 16)
def normalise(answer: Any) -> Hashable:
    """Return what stands for an answer in a vote: a number by its value, other text without case, space and markup.

    "5", "5.0", " $5 ", "5." and "**5**" agree, and so do "1,234" and "1234".
    """
    text = _MARKUP.sub(r"\1", str(answer)).strip().strip("*$ \t\n").rstrip(".").removesuffix("%").removesuffix("\\")
    try:
        number = Decimal(_GROUPED.sub("", text).strip("$ "))
    except InvalidOperation:
        return " ".join(text.casefold().split())
    return number if number.is_finite() else text.casefold()


def vote_codes(answers: list[list[Any]], key: Callable[[Any], Hashable] | None = None) -> np.ndarray:
    """Return codes (U, N): equal where two answers of one prompt agree under `key` (None: as they are).

    The type is the smallest that counts to N.
    """
    samples = len(answers[0])
    codes = np.empty((len(answers), samples), dtype=np.min_scalar_type(samples))
    for row, given in enumerate(answers):
        seen: dict[Hashable, int] = {}
        codes[row] = [seen.setdefault(answer if key is None else key(answer), len(seen)) for answer in given]
    return codes
