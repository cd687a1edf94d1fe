r"""GSM8K answers, compared as numbers over the whole response; verl's strict and flexible rules by name beside it.

Which number is the answer (rule of `gsm8k`):
1. the first number after the last `####` marker that has one on its line (or, if that is empty, on the next line);
   headings such as `#### Step 2` are no answers; of `#### 3 + 2 = 5` the result counts;
2. without such a marker the last `\boxed{}`; 3. else what follows the last "answer is" or "answer:";
4. else, when there was no marker at all, the last number of the text.
How numbers are read: `numbers.py`.
"""

import re
from fractions import Fraction
from typing import Any

from ppo_lightning.rewards.scorers.numbers import clean, first_number, last_boxed, last_number, read_number

MARKER = re.compile(r"[#\uff03]{4,}")
HEADING = re.compile(r"[\s*_]*(?:step|part|case|section|example|option|question|method|day|week|note)\b", re.IGNORECASE)
ANSWER_IS = re.compile(r"answer\**\s*(?:is|:|=|would be|will be)[\s:=]*", re.IGNORECASE)
EQUATION = re.compile(r"(?:[\d\s.,+*/$()%-]+|[A-Za-z_ ]{1,40})=\s*")
STRICT = re.compile(r"#### (-?[0-9.,]+)")
STRICT_WINDOW = 300
FLEXIBLE = re.compile(r"-?[0-9.,]+")


def extract(text: str) -> Fraction | None:
    """Return the number that a response gives as its answer, None when it gives none."""
    marked = MARKER.split(text)[1:]
    for stated in reversed(marked):
        number = None if HEADING.match(stated) else _stated(stated)
        if number is not None:
            return number
    boxed = last_boxed(text)
    if boxed is not None:
        return _stated(boxed)
    for stated in reversed(ANSWER_IS.split(text)[1:]):
        number = _stated(stated)
        if number is not None:
            return number
    return None if marked else last_number(text)


def _stated(text: str) -> Fraction | None:
    """Return the number stated by the first line that is not empty; of an equation its right side."""
    line = clean(text.lstrip().split("\n", 1)[0])
    while equation := EQUATION.match(line):
        line = line[equation.end() :]
    return first_number(line)


def gsm8k(solution_str: str, ground_truth: Any) -> dict[str, Any]:
    """Score 1.0 when the response's answer equals the ground truth as a number, else 0.0.

    Args:
        solution_str: the response.
        ground_truth: the number, or a GSM8K solution that ends in `#### <number>`.
    """
    gold = read_gold(ground_truth)
    answer = extract(solution_str)
    score = float(answer is not None and answer == gold)
    return {"score": score, "acc": score, "pred": None if answer is None else shown(answer)}


def read_gold(ground_truth: Any) -> Fraction:
    """Return the ground truth as a number.

    Raises:
        ValueError: it is none.
    """
    text = str(ground_truth)
    number = extract(text) if "####" in text else read_number(text)
    if number is None:
        raise ValueError(f"the ground truth must be a number - got {text[:200]!r}: set data.answer_pattern")
    return number


def shown(number: Fraction) -> str:
    """Return a number the short way: 5, 2.5, 1/3."""
    if number.denominator == 1:
        return (
            str(number.numerator) if abs(number) < 10**30 else f"{float(number):g}" if abs(number) < 10**300 else "huge"
        )
    decimal = f"{float(number):.12g}" if abs(number) < 10**300 else "huge"
    return decimal if decimal == "huge" or Fraction(decimal) == number else f"{number.numerator}/{number.denominator}"


def gsm8k_strict(solution_str: str, ground_truth: Any) -> dict[str, Any]:
    """Score by verl's strict rule: the last `#### <number>` of the last 300 characters, compared as text."""
    found = STRICT.findall(solution_str[-STRICT_WINDOW:])
    return _as_text(found[-1].replace(",", "").replace("$", "") if found else None, ground_truth)


def gsm8k_flexible(solution_str: str, ground_truth: Any) -> dict[str, Any]:
    """Score by verl's flexible rule: the last number of the last 300 characters, compared as text."""
    found = [text for text in FLEXIBLE.findall(solution_str[-STRICT_WINDOW:]) if text not in ("", ".")]
    return _as_text(found[-1] if found else None, ground_truth)


def _as_text(answer: str | None, ground_truth: Any) -> dict[str, Any]:
    score = float(answer is not None and answer == str(ground_truth))
    return {"score": score, "acc": score, "pred": answer}


def gsm8k_format(solution_str: str) -> float:
    """Score 1.0 for form alone: the last line is `#### <number>` and no other line has the marker; else 0.0."""
    lines = solution_str.rstrip().split("\n")
    marked = [line for line in lines if "####" in line]
    last = re.fullmatch(r"####\s*(.+?)\s*", lines[-1]) if lines else None
    return float(len(marked) == 1 and last is not None and read_number(last.group(1)) is not None)
