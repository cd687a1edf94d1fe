"""A model of two layers with the real tokenizer and chat template, and a way to run a recipe on it."""

import json
import subprocess
import sys
from pathlib import Path

import lightning as L
import pytest
import torch

from ppo_lightning.build import quiet
from ppo_lightning.config.load import load
from ppo_lightning.config.validate import validate
from ppo_lightning.models import packaged
from ppo_lightning.run import fit

sys.path.insert(0, str(Path(__file__).parent))
from small_models import save_small

SMALL = [
    "data.train=arithmetic:rows=40,digits=1,seed=1",
    "data.val=arithmetic:rows=6,digits=1,seed=2",
    "data.max_prompt_tokens=64",
    "data.prompts_per_step=4",
    "rollout.rollouts_per_prompt=4",
    "rollout.response_tokens=8",
    "update.sequences_per_minibatch=8",
    "update.sequences_per_microbatch=4",
    "actor.lr=1e-3",
    "critic.lr=1e-3",
    "trainer.steps=3",
    "reward.workers=1",
    "reward.max_error_share=1.0",
    "logging.samples_per_step=0",
]


@pytest.fixture(scope="session")
def small():
    """Options of a run that takes seconds on the tiny model."""
    return list(SMALL)


@pytest.fixture(scope="session")
def real_model():
    """Folder of the packaged model."""
    return str(packaged.get("smollm2-135m-instruct"))


@pytest.fixture(scope="session")
def tiny_model(real_model, tmp_path_factory):
    """Folder of a random model of two layers that shares the real tokenizer."""
    return save_small(tmp_path_factory.mktemp("tiny"), real_model)


class Record(L.Callback):
    """Keeps what the steps of a run did."""

    def __init__(self):
        self.stages, self.batches, self.modules, self.validated = [], [], [], []

    def on_validation_end(self, trainer, pl_module):
        self.validated.append(pl_module.step)

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.stages.append(list(pl_module.context.recorded))
        self.batches.append(batch)
        self.modules.append(pl_module)


@pytest.fixture
def run(tiny_model, tmp_path):
    """Return a function that runs overrides on the tiny model and returns (exit code, run directory, record)."""

    def go(*overrides, name="run", resume="never", callbacks=()):
        quiet()
        torch.set_num_threads(1)
        loaded = load(None, [*SMALL, f"model.path={tiny_model}", f"output_dir={tmp_path}", f"name={name}", *overrides])
        validate(loaded.config)
        record = Record()
        code = fit(loaded, resume, [*callbacks, record])
        return code, tmp_path / name, record

    return go


@pytest.fixture
def lines():
    """Return a function that reads metrics.jsonl of a run directory."""
    return lambda folder: [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture
def cli():
    """Return a function that runs `python -m ppo_lightning` in a process of its own."""

    def go(*arguments):
        command = [sys.executable, "-m", "ppo_lightning", *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)

    return go
