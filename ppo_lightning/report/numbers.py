"""Numbers as they are printed: the same digits on the console and on the page. Imports no torch."""

import math
from decimal import ROUND_HALF_UP, Decimal
from typing import Any

DIGITS = 6


def printed(value: float | None) -> str:
    """Return a number with at most six significant digits, halves rounded away from zero, thousands separated.

    `ledger.js` prints by the same rule. Python's own formatting rounds an exact half to the even digit, which
    JavaScript does not: 1000.125 would differ.
    """
    if value is None:
        return "-"
    if not math.isfinite(value):
        return str(value)
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    exact = Decimal(value)
    last = exact.adjusted() - DIGITS + 1
    cut = exact.quantize(Decimal(1).scaleb(last), rounding=ROUND_HALF_UP).normalize()
    if -5 <= cut.adjusted() < 15:
        return f"{cut:,f}"
    digits = "".join(map(str, cut.as_tuple().digits))
    mantissa = digits[0] + (f".{digits[1:]}" if len(digits) > 1 else "")
    return f"{'-' if cut < 0 else ''}{mantissa}e{cut.adjusted()}"


def rounded(value: Any, digits: int = DIGITS) -> float | None:
    """Return a number cut to some significant digits, for embedding; None for what is none or not finite."""
    if not isinstance(value, int | float) or not math.isfinite(value):
        return None
    short = float(f"{value:.{digits}g}")
    return int(short) if short == int(short) and abs(short) < 1e15 else short


def seconds(value: float) -> str:
    """Return a duration in words: 12 s, 3 min 20 s, 2 h 05 min."""
    if value < 60:
        return f"{value:.1f} s" if value < 10 else f"{value:.0f} s"
    whole = round(value)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
