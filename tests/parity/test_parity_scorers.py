"""verl's two GSM8K rules against golden values of verl 0.9.1, and why `gsm8k` itself is another one."""

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))
from inputs_scorers import GOLDS, digest, responses

from ppo_lightning.rewards.scorers.gsm8k import gsm8k, gsm8k_flexible, gsm8k_strict

GOLDEN = Path(__file__).parent / "golden" / "scorers.npz"
_V = "reward_score.gsm8k.compute_score"


def compare(scorer: Callable, method: str) -> Callable[[], float]:
    """Return a callable that gives 1.0 if any verdict differs, else 0.0."""

    def differ() -> float:
        ours = [[scorer(text, gold)["score"] == 1.0 for gold in GOLDS] for text in responses()]
        with np.load(GOLDEN) as golden:
            return float(not np.array_equal(np.packbits(ours), golden[method]))

    return differ


COMPARISONS = [
    ("rewards.scorers: gsm8k_strict", f"{_V} (strict)", compare(gsm8k_strict, "strict")),
    ("rewards.scorers: gsm8k_flexible", f"{_V} (flexible)", compare(gsm8k_flexible, "flexible")),
]
DIFFERENCES = [
    (
        "rewards.scorers: gsm8k",
        "reads the last 300 characters and compares text",
        "reads the whole response and compares numbers",
        "`#### 5.`, `#### $5`, `####5`, `#### 5` before a long tail are right answers",
    ),
]


def test_the_golden_file_belongs_to_the_inputs():
    with np.load(GOLDEN) as golden:
        assert str(golden["digest"]) == digest()


@pytest.mark.parametrize(("ours", "theirs", "compare"), COMPARISONS, ids=[entry[0] for entry in COMPARISONS])
def test_parity(ours, theirs, compare):
    assert compare() == 0.0


def test_difference_01_right_answers_that_verls_rules_miss():
    for text in ("#### 5.", "#### $5.00", "#### 5" + " and so on" * 40):
        assert gsm8k(text, "5")["score"] == 1.0
        assert gsm8k_strict(text, "5")["score"] == 0.0
