"""Secrets of the environment, the command line and the configuration are nowhere in what a run leaves behind."""

import dataclasses
import sys

import pytest
import wandb
import yaml

from ppo_lightning import secrets
from ppo_lightning.config.load import load, to_yaml
from ppo_lightning.config.schema import Config
from ppo_lightning.secrets import MASK

ENVIRONMENT, GIVEN, ARGUMENT, OPTION, ADDRESS = (
    f"canary-{name}-4f1c" for name in ("env", "given", "argv", "option", "url")
)
CANARIES = (ENVIRONMENT, GIVEN, ARGUMENT, OPTION, ADDRESS)
REWARD = """
import os
def compute_score(data_source, solution_str, ground_truth, extra_info, api_key):
    if len(solution_str) % 2:
        raise RuntimeError(f"401 for {api_key} at http://me:ADDRESS@host, {os.environ['JUDGE_VALUE']}")
    return {"score": float(len(solution_str) % 3), "note": "key " + os.environ["JUDGE_VALUE"]}
"""


def leaks(folder):
    """Return (file, canary) of every canary in any file, its name included."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert files
    return [(path.name, c) for path in files for c in CANARIES if c.encode() in path.read_bytes() or c in str(path)]


@pytest.fixture
def planted(monkeypatch, tmp_path):
    monkeypatch.setattr(secrets, "_learnt", set())
    monkeypatch.setenv("WANDB_API_KEY", ENVIRONMENT)
    monkeypatch.setenv("SOME_TOKEN", ENVIRONMENT)
    monkeypatch.setenv("JUDGE_VALUE", GIVEN)
    monkeypatch.setenv("WANDB_CACHE_DIR", str(tmp_path / "wandb_cache"))
    monkeypatch.setenv("WANDB_DATA_DIR", str(tmp_path / "wandb_data"))
    monkeypatch.setattr(sys, "argv", [*sys.argv, f"reward.options.api_key={ARGUMENT}", f"--token={ARGUMENT}"])


def test_nowhere_in_a_run(fit_tiny, tmp_path, planted):
    (tmp_path / "reward.py").write_text(REWARD.replace("ADDRESS", ADDRESS))
    code, folder, said = fit_tiny(
        tmp_path / "runs",
        "algorithm.adv_estimator=grpo",
        "data.val=null",
        "trainer.steps=1",
        "logging.wandb=offline",
        "logging.loggers=[tensorboard,csv]",
        "logging.samples_per_step=2",
        f"reward.path={tmp_path / 'reward.py'}",
        f"reward.options.api_key={OPTION}",
        "reward.environment=[JUDGE_VALUE]",
        "reward.on_error=drop",
    )
    assert code == 0
    assert [canary for canary in CANARIES if canary in said] == []
    assert leaks(folder) == []
    for left in ("wandb_cache", "wandb_data"):
        if (tmp_path / left).exists() and any((tmp_path / left).rglob("*.*")):
            assert leaks(tmp_path / left) == []
    dumps = "".join(path.read_text() for path in (folder / "rollouts").glob("*.jsonl"))
    assert f"401 for {MASK} at http://{MASK}@host, {MASK}" in dumps  # the fault itself is there
    assert f"key {MASK}" in dumps
    assert yaml.safe_load((folder / "config.yaml").read_text())["reward"]["options"] == {"api_key": MASK}
    assert list(folder.glob("wandb/offline-run-*/*.wandb"))
    assert list(folder.glob("tensorboard/events*"))


def test_the_naive_way_leaks(tmp_path, planted, monkeypatch):
    """W&B as it comes records the command line; a configuration as it is holds its options."""
    run = wandb.init(project="p", dir=str(tmp_path / "naive"), mode="offline", settings=wandb.Settings(silent=True))
    run.finish()
    assert {canary for _, canary in leaks(tmp_path / "naive")} == {ARGUMENT}
    config = load(None, [f"reward.options.api_key={OPTION}"]).config
    assert OPTION in to_yaml(config)
    assert dataclasses.replace(Config(), reward=config.reward) == config
