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
    raise_alarm(metrics, config(dtype=dtype))
    assert metrics[ALARM] == alarm


def test_without_tokens_there_is_none():
    metrics = {"x": 1.0}
    raise_alarm(metrics, config())
    assert metrics == {"x": 1.0}


def test_bound():
    at_bound = {MEAN: 0.02}
    raise_alarm(at_bound, config(max_probs_diff=0.02))
    assert at_bound[ALARM] == 1.0
    with pytest.raises(EngineError, match=r"mean=2.10e-02 must not exceed rollout.max_probs_diff=0.02"):
        raise_alarm({MEAN: 0.021}, config(max_probs_diff=0.02))
