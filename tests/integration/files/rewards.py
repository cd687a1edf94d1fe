"""Reward functions for runs of a random model: they go by the text alone, so that a test can repeat them."""

import time


def size(text):
    return sum(map(ord, text))


def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    """The number of characters."""
    return float(len(solution_str))


def fragile(data_source, solution_str, ground_truth, extra_info=None):
    """Fail for about a third of all texts, never for a right answer."""
    if solution_str != ground_truth and size(solution_str) % 3 == 0:
        raise ValueError(f"cannot read {solution_str!r}")
    return {"score": float(len(solution_str)), "even": size(solution_str) % 2 == 0}


def sparse(data_source, solution_str, ground_truth, extra_info=None):
    """Give `long` for some rows only, and columns that are named like fields of a batch."""
    found = {"score": float(len(solution_str)), "uid": 7, "values": 3.0}
    return found | ({"long": float(size(solution_str))} if size(solution_str) % 2 else {})


def slow(data_source, solution_str, ground_truth, extra_info=None):
    """Take half a second."""
    time.sleep(0.5)
    return 1.0
