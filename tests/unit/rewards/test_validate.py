"""Everything wrong in the reward section is reported together, by key."""

import subprocess
import sys
from pathlib import Path

import pytest

from ppo_lightning.config.schema import RewardConfig
from ppo_lightning.rewards.managers import MANAGERS
from ppo_lightning.rewards.validate import MANAGER_NAMES, problems

VERL = str(Path(__file__).parent / "files" / "verl_reward.py")


@pytest.mark.parametrize(
    "config",
    [
        RewardConfig(),
        RewardConfig(path=VERL, name="f", parts=[{"scorer": "format", "weight": 0.1}]),
        RewardConfig(manager="dapo", overlong_buffer_tokens=64),
        RewardConfig(manager="json:loads", on_error="score:-1"),
        RewardConfig(model_server="https://rm", model_own_resources=True),
    ],
)
def test_sound_sections_have_no_problems(config):
    assert problems(config, 64) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_error_share": 10.0}, "reward.max_error_share must be at most 1 - got 10.0"),
        ({"overlong_penalty": -1.0}, "reward.overlong_penalty must be at least 0"),
        ({"path": "/nowhere.py"}, "reward.path must be a Python file - there is none at /nowhere.py"),
        ({"path": VERL, "scorer": "gsm8k"}, "exclude each other"),
        ({"model_server": "rm:8000"}, "reward.model_server must look like"),
        ({"model_own_resources": True}, "reward.model_own_resources needs"),
        ({"manager": "daop"}, "reward.manager must be one of"),
        ({"manager": "no_such_file:f"}, "reward.manager: 'no_such_file:f' must be importable"),
        ({"overlong_buffer_tokens": 8}, "reward.overlong_buffer_tokens needs reward.manager=dapo"),
        ({"manager": "dapo", "overlong_buffer_tokens": 65}, "must be between 0 and rollout.response_tokens=64"),
        ({"on_error": "ignore"}, "reward.on_error must be"),
        ({"scorer": "gsm9k"}, "reward.scorer must be auto"),
        ({"parts": [{"scorer": "gsm9k"}]}, "got 'gsm9k'"),
    ],
)
def test_each_problem_names_its_key(options, message):
    found = problems(RewardConfig(**options), 64)
    assert len(found) == 1
    assert message in found[0]


def test_all_problems_are_reported_together():
    assert len(problems(RewardConfig(max_error_share=2.0, on_error="x", scorer="y", manager="z"), 64)) == 4


def test_the_names_are_those_of_the_table():
    assert tuple(MANAGERS) == MANAGER_NAMES


def test_validation_the_pool_and_the_scorer_table_import_no_torch():
    code = (
        "import sys, ppo_lightning.rewards.validate, ppo_lightning.rewards.pool, ppo_lightning.rewards.try_out\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": ":".join(sys.path)})
