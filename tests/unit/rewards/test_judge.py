"""What a function returns: a score, or a fault of a known kind; 0.0 is a score and None is none."""

import json
import math

import numpy as np
import pytest
import torch

from ppo_lightning.rewards.judge import judge, judge_batch, plain


@pytest.mark.parametrize(
    ("value", "score"),
    [
        (0.0, 0.0),
        (0, 0.0),
        (False, 0.0),
        (True, 1.0),
        (-2, -2.0),
        (np.float32(0.5), 0.5),
        (np.bool_(True), 1.0),
        (np.array([0.25]), 0.25),
        (torch.tensor(0.0), 0.0),
        ({"score": 0.0, "acc": 1}, 0.0),
    ],
)
def test_numbers_of_every_make_are_scores(value, score):
    outcome = judge(value)
    assert (outcome["score"], outcome["fault"]) == (score, None)


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (None, "none"),
        ({"score": None}, "none"),
        (float("nan"), "nan"),
        (float("inf"), "nan"),
        (10**400, "nan"),
        (torch.tensor(math.nan), "nan"),
        ("1.0", "wrong_type"),
        ([1.0], "wrong_type"),
        (np.array([1.0, 2.0]), "wrong_type"),
        (np.array([]), "wrong_type"),
        (object(), "wrong_type"),
        ({"score": "high"}, "wrong_type"),
        ({}, "missing_score"),
        ({"acc": 1.0}, "missing_score"),
    ],
)
def test_everything_else_is_a_fault_by_kind(value, kind):
    outcome = judge(value)
    assert (outcome["score"], outcome["fault"]) == (None, kind)
    assert outcome["detail"]


def test_a_float_becomes_acc_and_a_dict_its_keys():
    assert judge(0.5)["extra"] == {"acc": 0.5}
    assert judge({"score": 1, "pred": "5"})["extra"] == {"score": 1.0, "pred": "5"}


def test_batches_must_have_one_score_per_sample():
    assert [item["score"] for item in judge_batch([0.0, 1.0], 2)] == [0.0, 1.0]
    assert [item["score"] for item in judge_batch(np.array([0.0, 1.0]), 2)] == [0.0, 1.0]
    assert [item["fault"] for item in judge_batch([1.0], 2)] == ["too_few", "too_few"]
    assert [item["fault"] for item in judge_batch([1.0] * 3, 2)] == ["too_few", "too_few"]
    assert [item["fault"] for item in judge_batch(None, 2)] == ["none", "none"]
    assert [item["fault"] for item in judge_batch("10", 2)] == ["wrong_type", "wrong_type"]
    assert [item["fault"] for item in judge_batch([None, 0.0], 2)] == ["none", None]


def test_the_naive_test_for_missing_scores_loses_zero():
    """Negative control: `score or default` takes 0.0 for missing."""
    scores = [0.0, None]
    assert [score or 1.0 for score in scores] == [1.0, 1.0]
    assert [judge(score)["fault"] for score in scores] == [None, "none"]


def test_columns_can_always_be_sent():
    for value in (np.arange(3), np.float64(1.5), torch.ones(2), {1, 2}, object(), "x" * 10**6, list(range(10**5))):
        assert len(json.dumps(plain(value))) < 11_000
    assert plain(np.arange(3)) == [0, 1, 2]
    assert plain(np.float64(1.5)) == 1.5
