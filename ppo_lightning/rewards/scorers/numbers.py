r"""Read numbers the way people and models write them, exactly: no float ever rounds a wrong answer to the right one.

Understood: signs (also the Unicode minus), thousands separators (comma, also in Indian grouping; underscore,
apostrophe, non-breaking space, LaTeX `{,}` and `\,`), decimals, fractions (`3/4`, `\frac{3}{4}`, `1 1/2`, U+00BD),
scientific notation (`1e3`, `1.2 \times 10^{3}`), currency and units around the number, bold and LaTeX wrappers,
digits of every script. A percent sign is a unit: `5%` is 5. A comma is never a decimal point.
"""

import re
import unicodedata
from fractions import Fraction

MAX_EXPONENT = 400
MAX_DIGITS = 2000

_INTEGER = r"(?:\d{1,3}(?:,\d{2,3})*,\d{3}(?!\d)|\d{1,3}(?:['_]\d{3})+(?!\d)|\d+)"
_PLAIN = rf"(?:{_INTEGER}(?:\.\d+)?|\.\d+)"
_POWER = r"(?:e(?P<e>[+-]?\d+)(?![\w.])|\s*\*\s*10\s*\^\s*[({]?\s*(?P<ten>[+-]?\d+)\s*[)}]?)"
NUMBER = re.compile(
    rf"(?:(?<![\w)\]}}])(?P<sign>[+-]))?(?<![A-Za-z\d])(?<!\d[.,])"
    rf"(?:(?:(?:USD|EUR|GBP|INR|US|CA|AU|Rs\.?)\s?[$]?|[$])\s?(?P<inner>[+-])?)?"
    rf"(?:(?P<whole>\d+)[ -](?P<top>\d+)/(?P<bottom>\d+)(?!\d)|"
    rf"(?P<number>{_PLAIN}){_POWER}?(?:\s*/\s*(?P<divisor>{_PLAIN}))?)",
    re.IGNORECASE,
)
_MAPPED = {
    **dict.fromkeys("\u20ac\u00a3\u00a5\u20b9\u20bd\u20a9\uff04", "$"),
    **dict.fromkeys("\u2212\u2013\u2012\u2010\u2011\ufe63\uff0d", "-"),
    **dict.fromkeys("\u00d7\u22c5\u00b7", "*"),
    **dict.fromkeys("\u200b\u200c\u200d\ufeff\u2060", ""),
    **dict.fromkeys("\u2009\u202f\u2007\u200a", "\u00a0"),
    "\u2044": "/",
    "\uff0e": ".",
    "\uff0c": ",",
    "\uff05": "%",
    "\uff0b": "+",
    "\uff03": "#",
}
_SUPERSCRIPTS = dict(
    zip("\u2070\u00b9\u00b2\u00b3\u2074\u2075\u2076\u2077\u2078\u2079\u207b", "0123456789-", strict=True)
)
_SUPERSCRIPT = re.compile(f"[{''.join(_SUPERSCRIPTS)}]+")
_REWRITES = [
    (re.compile(r"(\d)\{,\}(?=\d)"), r"\1,"),
    (re.compile(r"(\d)(?:\\[,;: !]|\u00a0|~)(?=\d{3}(?!\d))"), r"\1,"),
    (re.compile(r"\\(?:text|textbf|mathbf|mathrm|boldsymbol|operatorname|mbox|emph)\s*\{([^{}]*)\}"), r" \1 "),
    (re.compile(r"(\d)\s*\\[dtc]?frac\s*\{\s*([^{}]+?)\s*\}\s*\{\s*([^{}]+?)\s*\}"), r"\1 \2/\3"),
    (re.compile(r"\\[dtc]?frac\s*\{\s*([^{}]+?)\s*\}\s*\{\s*([^{}]+?)\s*\}"), r"\1/\2"),
    (re.compile(r"\\[dtc]?frac\s*(\d)\s*(\d)"), r"\1/\2"),
    (re.compile(r"\\(?:times|cdot)\b"), "*"),
    (re.compile(r"(?<=\d)\s+x\s+(?=10\s*\^)"), " * "),
    (re.compile(r"\\([$%#&_])"), r"\1"),
    (re.compile(r"(?<=[A-Za-z}])\^\{?\d+\}?"), ""),
    (re.compile(r"[*_`]{2,}|`"), " "),
    (re.compile(r"\\[,;:! ]|\\left|\\right|\u00a0|~"), " "),
]


def clean(text: str) -> str:
    """Return the text with every spelling that means the same number written one way."""
    if not text.isascii():
        text = _SUPERSCRIPT.sub(_superscript, "".join(map(_character, text)))
    for pattern, replacement in _REWRITES:
        text = pattern.sub(replacement, text)
    return text


def _character(char: str) -> str:
    if char in _MAPPED:
        return _MAPPED[char]
    if char.isascii():
        return char
    if unicodedata.category(char) == "Nd":
        return str(unicodedata.decimal(char))
    parts = unicodedata.decomposition(char)
    if parts.startswith("<fraction>") and unicodedata.numeric(char, None) is not None:
        fraction = Fraction(unicodedata.numeric(char)).limit_denominator(100)
        return f" {fraction.numerator}/{fraction.denominator}"
    return char


def _superscript(found: re.Match[str]) -> str:
    digits = "".join(_SUPERSCRIPTS[char] for char in found.group())
    return f"^{digits}" if found.string[: found.start()].endswith("10") else ""


def value_of(found: re.Match[str]) -> Fraction | None:
    """Return what a match of NUMBER is worth; None when it divides by zero or is absurdly large."""
    part = found.groupdict()
    if len(found.group()) > MAX_DIGITS:
        return None
    try:
        if part["whole"] is not None:
            value = int(part["whole"]) + Fraction(int(part["top"]), int(part["bottom"]))
        else:
            value = _plain(part["number"]) * _power(part["e"] or part["ten"])
            value = value / _plain(part["divisor"]) if part["divisor"] else value
    except (ZeroDivisionError, OverflowError):
        return None
    return -value if (part["sign"] == "-") != (part["inner"] == "-") else value


def _plain(text: str) -> Fraction:
    return Fraction(re.sub(r"[,'_]", "", text))


def _power(exponent: str | None) -> Fraction:
    if exponent is None:
        return Fraction(1)
    if len(exponent) > 5 or abs(int(exponent)) > MAX_EXPONENT:
        raise OverflowError(exponent)
    return Fraction(10) ** int(exponent)


def read_number(text: str) -> Fraction | None:
    """Return the number that the text is, nothing else around it but space; else None."""
    found = NUMBER.fullmatch(clean(text).strip())
    return value_of(found) if found else None


def first_number(text: str) -> Fraction | None:
    """Return the first number of a text that states an answer; `- 5` is negative and `1 234` one number there."""
    text = re.sub(r"^([\s$*(\[]*[+-])\s+(?=[\d.$])", r"\1", clean(text))
    if re.fullmatch(r"\D*\d{1,3}(?: \d{3})+(?:\.\d+)?\D*", text):
        text = re.sub(r"(?<=\d) (?=\d)", "", text)
    found = NUMBER.search(text)
    return value_of(found) if found else None


def all_numbers(text: str) -> list[Fraction | None]:
    """Return every number of a text, in order."""
    return [value_of(found) for found in NUMBER.finditer(clean(text))]


def last_number(text: str) -> Fraction | None:
    """Return the last number of a text, None when it holds none."""
    numbers = all_numbers(text)
    return numbers[-1] if numbers else None


def last_boxed(text: str) -> str | None:
    r"""Return what the last `\boxed{...}` holds, braces balanced; None without one."""
    start = max(text.rfind("\\boxed"), text.rfind("\\fbox"))
    if start < 0:
        return None
    opening = re.compile(r"\\(?:boxed|fbox)\s*").match(text, start)
    rest = text[opening.end() :] if opening else ""
    if not rest.startswith("{"):
        return rest.split()[0] if rest.split() else None
    depth = 0
    for index, char in enumerate(rest):
        depth += (char == "{") - (char == "}")
        if depth == 0:
            return rest[1:index]
    return None
