"""A gap between engine and trainer that rounding does not explain is said, and above a bound stops the run."""

import dataclasses

import pytest

from ppo_lightning.config.schema import Config
from ppo_lightning.errors import EngineError
from ppo_lightning.metrics.mismatch import raise_alarm

MEAN, ALARM = "training/rollout_probs_diff_mean", "training/rollout_probs_diff_alarm"


def config(**rollout):
    return dataclasses.replace(Config(), rollout=dataclasses.replace(Config().rollout, **rollout))


@pytest.mark.parametrize(
    ("gap", "dtype", "alarm"),
    [(1e-5, "model", 0.0), (0.011, "model", 1.0), (0.011, "bfloat16", 0.0), (0.051, "bfloat16", 1.0)],
)
def test_alarm(gap, dtype, alarm):
    metrics = {MEAN: gap}
    said = raise_alarm(metrics, config(dtype=dtype))
    assert metrics[ALARM] == alarm
    assert (said is not None) == bool(alarm)
    if said:
        assert "more than rounding explains" in said
        assert "\n" not in said


def test_without_tokens_there_is_none():
    metrics = {"x": 1.0}
    assert raise_alarm(metrics, config()) is None
    assert metrics == {"x": 1.0}


def test_bound():
    assert raise_alarm({MEAN: 0.02}, config(max_probs_diff=0.02)) is not None
    with pytest.raises(EngineError, match=r"mean=2.10e-02 must not exceed rollout.max_probs_diff=0.02"):
        raise_alarm({MEAN: 0.021}, config(max_probs_diff=0.02))
