"""docs/extending.md, executed: every file of the page in one run, every command checked as `fit` checks it."""

import functools
import importlib
import json
import re
import shlex
import sys
from pathlib import Path

import pytest
import torch

from ppo_lightning.build import quiet
from ppo_lightning.config.load import load
from ppo_lightning.config.validate import validate
from ppo_lightning.errors import ConfigError
from ppo_lightning.recipes import find

PAGE = (Path(__file__).parents[2] / "docs" / "extending.md").read_text()
FILES = dict(re.findall(r"```python\n# (\w+\.py)\n(.*?)```", PAGE, flags=re.DOTALL))
COMMANDS = [shlex.split(line) for line in re.findall(r"```sh\n(.*?)\n```", PAGE)]
OPTIONS = [option for command in COMMANDS for option in command[6:]]
CALLED_HERE = {"my_estimator": "centred", "my_loss": "leaky", "my_engine": "build", "my_data": "problems",
               "my_order": "shortest_first", "my_manager": "halves"}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the page's files, importable; their modules are forgotten afterwards."""
    place = tmp_path_factory.mktemp("extending")
    for name, text in FILES.items():
        (place / name).write_text(text)
    sys.path.insert(0, str(place))
    yield place
    sys.path.remove(str(place))
    for name in FILES:
        sys.modules.pop(name.removesuffix(".py"), None)


@pytest.fixture(scope="module")
def ran(folder, small, tiny_model):
    """Run train.py with the options of all commands; return (its names, run directory, calls by module)."""
    quiet()
    torch.set_num_threads(1)
    calls = dict.fromkeys(CALLED_HERE, 0)

    def counted(module, function):
        @functools.wraps(function)
        def call(*given, **named):
            calls[module] += 1
            return function(*given, **named)

        return call

    for module, name in CALLED_HERE.items():
        found = importlib.import_module(module)
        setattr(found, name, counted(module, getattr(found, name)))
    given = [*small, *OPTIONS, f"reward.path={folder}/my_reward.py", f"model.path={tiny_model}", f"output_dir={folder}"]
    given += ["trainer.steps=2", "data.val=null", "checkpoint.every_steps=0", "validation.before_train=false"]
    script = FILES["train.py"]
    assert script.count('"trainer.steps=2"') == 1
    names = {}
    exec(script.replace('"trainer.steps=2"', ", ".join(map(repr, given))), names)
    return names, folder / "quickstart", calls


def test_every_command_of_the_page_is_one_that_the_command_line_takes(folder, monkeypatch):
    monkeypatch.chdir(folder)
    assert len(COMMANDS) == 8
    for command in COMMANDS:
        assert command[:5] == ["python", "-m", "ppo_lightning", "fit", "--config"]
        validate(load(find(command[5]), command[6:]).config)


@pytest.mark.parametrize(
    "option",
    [
        "rollout.engine=my_engine:biuld",
        "rollout.engine=vlm",
        "actor.policy_loss=my_lost:leaky",
        "algorithm.adv_estimator=my_estimator:centered",
        "reward.manager=my_manager:thirds",
        "data.order=my_order:longest_first",
    ],
)
def test_a_name_that_does_not_exist_is_refused_before_any_model_loads(folder, option):
    """The negative control: what the page names is looked up, not taken on trust."""
    with pytest.raises(ConfigError, match=option.split("=")[0]):
        validate(load(find("quickstart"), [option]).config)


def test_everything_took_part(ran):
    names, run_dir, calls = ran
    assert names["code"] == 0
    assert min(calls.values()) >= 1, calls
    assert calls["my_loss"] >= 4
    assert len(names["longest"].lengths) == 2
    steps = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    for step in steps:
        assert step["training/rollout_probs_diff_max"] < 1e-4
        assert {"reward/characters/mean", "reward/brevity/mean", "actor/pg_clipfrac"} <= set(step)


def test_the_numbers_are_those_of_the_page(ran):
    """Score = match + 0.1 x brevity; the advantage is half of what it is above its group's mean."""
    _, run_dir, _ = ran
    text = (run_dir / "rollouts" / "step_000001.jsonl").read_text()
    rows = [json.loads(line) for line in text.split("\n") if line]
    assert len(rows) == 16
    for row in rows:
        brevity = max(0.0, 1 - len(row["output"]) / 20)
        assert row["characters"] == len(row["output"])
        assert row["score"] == pytest.approx(float(row["gts"] in row["output"]) + 0.1 * brevity, abs=1e-5)
        group = [other["score"] for other in rows if other["uid"] == row["uid"]]
        assert row["advantage"] == pytest.approx(0.5 * (row["score"] - sum(group) / len(group)), abs=1e-5)
        assert " x " in row["input"][-1]["content"]
