"""Rewards for the form of a response: format, length, repetition. Meant for `reward.parts`, with a weight."""

import re

THINK_ANSWER = r"\s*<think>.*?</think>\s*<answer>.*?</answer>\s*"


def format_reward(solution_str: str, pattern: str = THINK_ANSWER) -> float:
    """Score 1.0 when the whole response matches the pattern (`.` matches line breaks too), else 0.0."""
    return float(re.fullmatch(pattern, solution_str, flags=re.DOTALL) is not None)


def length_penalty(solution_str: str, free_characters: int, full_characters: int) -> float:
    """Score 0 up to `free_characters`, then linearly less, -1 from `full_characters` on.

    Raises:
        ValueError: `full_characters` is not above `free_characters`.
    """
    if full_characters <= free_characters:
        raise ValueError(f"full_characters={full_characters} must be above free_characters={free_characters}")
    over = len(solution_str) - free_characters
    return -min(1.0, max(0.0, over / (full_characters - free_characters)))


def repetition_penalty(solution_str: str, words: int = 3) -> float:
    """Score minus the share of runs of so many words that occurred before; 0 for a text too short to repeat one."""
    tokens = solution_str.split()
    runs = [tuple(tokens[start : start + words]) for start in range(len(tokens) - words + 1)]
    return -(1.0 - len(set(runs)) / len(runs)) if runs else 0.0
