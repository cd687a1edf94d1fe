"""Scorers that compare an answer with the ground truth: as a number, as text, by pattern, by letter."""

import re
from fractions import Fraction
from typing import Any

from ppo_lightning.rewards.scorers.gsm8k import read_gold, shown
from ppo_lightning.rewards.scorers.numbers import last_boxed, last_number, read_number

STATED_CHOICE = re.compile(
    r"(?:answer|option|choice)\W{0,4}(?:is|:|=)?[\s:*_(\[{$]*(?:\\(?:text|boxed|mathrm)\{)*\(?(?P<letter>[A-Za-z])(?![A-Za-z'])",
    re.IGNORECASE,
)
BARE_CHOICE = re.compile(r"(?<![A-Za-z'])\(?([A-Z])(?:[).:]|(?![A-Za-z' ]))")


def outcome(right: bool, pred: str | None) -> dict[str, Any]:
    """Return the columns of an answer that is right or wrong."""
    return {"score": float(right), "acc": float(right), "pred": pred}


def numeric(solution_str: str, ground_truth: Any, tolerance: float = 0.0, only: bool = False) -> dict[str, Any]:
    """Score 1.0 when the last number of the response is the answer.

    Args:
        solution_str: the response.
        ground_truth: the number.
        tolerance: largest difference that still counts as equal.
        only: the response must be the number and nothing else.
    """
    answer = read_number(solution_str) if only else last_number(solution_str)
    if answer is None:
        return outcome(False, None)
    return outcome(abs(answer - read_gold(ground_truth)) <= Fraction(tolerance), shown(answer))


def exact(solution_str: str, ground_truth: Any, ignore_case: bool = False) -> dict[str, Any]:
    """Score 1.0 when the response is the ground truth, or one of a list of them, outer space aside."""
    golds = ground_truth if isinstance(ground_truth, list | tuple) else [ground_truth]
    answer, accepted = solution_str.strip(), [str(gold).strip() for gold in golds]
    if ignore_case:
        return outcome(answer.casefold() in [gold.casefold() for gold in accepted], answer)
    return outcome(answer in accepted, answer)


def regex(solution_str: str, ground_truth: Any, pattern: str) -> dict[str, Any]:
    """Score 1.0 when what the pattern finds last is the ground truth, as a number if both are numbers, else as text.

    Args:
        solution_str: the response.
        ground_truth: the answer.
        pattern: regular expression; its first group, if it has one, is the answer.
    """
    found = list(re.finditer(pattern, solution_str))
    if not found:
        return outcome(False, None)
    answer = (found[-1].group(1) if found[-1].re.groups else found[-1].group()) or ""
    numbers = read_number(answer), read_number(str(ground_truth))
    if None not in numbers:
        return outcome(numbers[0] == numbers[1], answer)
    return outcome(answer.strip() == str(ground_truth).strip(), answer)


def choice(solution_str: str, ground_truth: Any, letters: str = "ABCDEFGHIJ") -> dict[str, Any]:
    r"""Score 1.0 for the right letter: of the last `\boxed{}`, else of "answer is X", else the last bare letter."""
    picked = _picked(solution_str, letters.upper())
    gold = str(ground_truth).strip().strip("().").upper()
    if gold not in letters.upper() or len(gold) != 1:
        raise ValueError(f"the ground truth must be one of {letters} - got {ground_truth!r}")
    return outcome(picked == gold, picked)


def _picked(text: str, letters: str) -> str | None:
    boxed = last_boxed(text)
    if boxed is not None:
        bare = re.sub(r"\\\w+|[^A-Za-z]", "", boxed).upper()
        return bare if len(bare) == 1 and bare in letters else None
    stated = [found["letter"].upper() for found in STATED_CHOICE.finditer(text)]
    stated = stated or BARE_CHOICE.findall(text) or [text.strip().upper()]
    allowed = [letter for letter in stated if len(letter) == 1 and letter in letters]
    return allowed[-1] if allowed else None
