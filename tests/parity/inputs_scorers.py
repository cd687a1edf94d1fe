"""Responses for the GSM8K scorers, made of pieces that matter to them; from a seed, the same everywhere."""

import hashlib

import numpy as np

PIECES = (
    *("#### ", "####", "5", "-3", "1,234", "5.", "$5", "**5**", " ", "\n", "the answer is", "...", ",", "-"),
    *("0.5", "x" * 320, "18", "%"),
)
GOLDS = ("5", "-3", "1234", "18")
COUNT = 5000


def responses() -> list[str]:
    """Return texts of up to eight pieces."""
    random = np.random.RandomState(50)
    return [
        "".join(PIECES[piece] for piece in random.randint(0, len(PIECES), random.randint(0, 9))) for _ in range(COUNT)
    ]


def digest() -> str:
    """Return the sha256 of all inputs."""
    return hashlib.sha256("\0".join([*responses(), *GOLDS]).encode()).hexdigest()
