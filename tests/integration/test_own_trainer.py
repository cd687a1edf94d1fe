"""The parts in a Trainer of one's own: the README's lines, run as they stand."""

import re
from pathlib import Path

import lightning as L
import pytest
import torch

from ppo_lightning.build import build_parts, quiet
from ppo_lightning.config.load import load
from ppo_lightning.errors import ConfigError

README = Path(__file__).parents[2] / "README.md"
SHORT = [
    "trainer.steps=2",
    "algorithm.adv_estimator=grpo",
    "checkpoint.every_steps=0",
    "validation.before_train=false",
    "validation.samples_per_prompt=1",
    "validation.temperature=0.0",
]


def readme_block():
    """Return the README's Python lines."""
    (block,) = re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.DOTALL)
    return block


def test_the_readme_lines_train_and_give_the_numbers_of_fit(small, tiny_model, tmp_path, monkeypatch, run, lines):
    quiet()
    torch.set_num_threads(1)
    monkeypatch.chdir(tmp_path)
    given = [*small, f"model.path={tiny_model}", *SHORT]
    block = readme_block()
    assert block.count('"trainer.steps=12"') == 1
    names = {}
    exec(block.replace('"trainer.steps=12"', ", ".join(map(repr, given))), names)
    module, trainer = names["module"], names["trainer"]
    assert len([line for line in block.splitlines() if line.strip()]) <= 12
    assert module.step == 2
    assert (tmp_path / "trained" / "config.json").is_file()
    logged = next(callback for callback in trainer.callbacks if hasattr(callback, "metrics")).metrics
    assert "val-core/arithmetic/acc/mean@1" in trainer.callback_metrics
    _, folder, _ = run(*SHORT)
    theirs = lines(folder)[-1]
    assert len(logged) > 40
    for key in ("actor/pg_loss", "actor/grad_norm", "critic/score/mean", "response_length/mean"):
        assert logged[key] == theirs[key], key
    assert trainer.callback_metrics["val-core/arithmetic/acc/mean@1"] == theirs["val-core/arithmetic/acc/mean@1"]


def test_without_the_rollouts_a_trainer_says_what_is_missing(small, tiny_model):
    """The negative control of the list of callbacks: the module alone cannot train."""
    torch.set_num_threads(1)
    module, data, callbacks = build_parts(
        load(None, [*small, f"model.path={tiny_model}", *SHORT, "data.val=null"]).config
    )
    trainer = L.Trainer(max_epochs=1, callbacks=callbacks[1:], logger=False, enable_checkpointing=False)
    with pytest.raises(AssertionError, match="RolloutCallback"):
        trainer.fit(module, datamodule=data)


def test_a_mistake_is_said_before_any_model_loads():
    with pytest.raises(ConfigError, match="rollouts_per_prompt=1 must be at least 2"):
        build_parts(load(None, ["algorithm.adv_estimator=grpo", "model.path=none"]).config)
