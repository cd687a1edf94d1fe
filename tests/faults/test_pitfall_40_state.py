"""Every value that changes from step to step is in a checkpoint, or is made anew for a reason that is written down."""

import copy
import random

import lightning as L
import numpy as np
import pytest
import torch
from fault_rigs import EXTRAS, MOVING, start
from transformers import AutoModelForCausalLM

from ppo_lightning.callbacks.metrics import MetricsCallback
from ppo_lightning.callbacks.rollout import RolloutCallback
from ppo_lightning.callbacks.schedule import ScheduleCallback
from ppo_lightning.callbacks.warnings import WarningsCallback
from ppo_lightning.checkpoint.state import KEPT, REMADE
from ppo_lightning.checkpoint.weights import optimizers_of
from ppo_lightning.errors import CheckpointError, EngineError

OPTIONS = [*EXTRAS["ppo"], *MOVING, "data.workers=0", "rollout.dtype=bfloat16"]
ELSEWHERE = {"context"}
"""Walked last: it lasts for a step and points at what lasts longer, which is to be found under its own name."""
LIGHTNINGS = {"trainer", "_trainer", "_fabric", "_metric_attributes", "_current_fx_name", "_modules"}
DEPTH = 4


def roots(trainer, module):
    """Return the objects of a run that live longer than a step, and last the step's own."""
    owners = {type(c): c for c in trainer.callbacks if type(c).__module__.startswith("ppo_lightning.")}
    schedule = owners[ScheduleCallback]
    names = {MetricsCallback: "metrics", RolloutCallback: "rollouts", WarningsCallback: "warned"}
    return {
        "module": module,
        "data": trainer.datamodule,
        "store": schedule.store,
        **{names.get(kind, kind.__name__): owner for kind, owner in owners.items()},
        **{f"optimizer.{name}": optimizer for name, optimizer in optimizers_of(module).items()},
        **{f"schedule.{place}": scheduler for place, scheduler in enumerate(module.schedulers())},
        "module.context": module.context,
    }


def walk(value, path, found, seen, depth=0):
    """Note every plain value that can be reached from an object through its attributes, by path."""
    plain = value is None or isinstance(value, bool | int | float | str | bytes)
    if plain or isinstance(value, torch.Tensor):
        found[path] = value if plain else value.detach().clone()
    elif id(value) in seen or depth > DEPTH or (callable(value) and not isinstance(value, torch.nn.Module)):
        return
    elif isinstance(value, dict | list | tuple | set):
        seen.add(id(value))
        found[f"{path}#"] = len(value)
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            walk(item, f"{path}.{key}", found, seen, depth + 1)
    elif isinstance(value, torch.nn.Module) and depth:
        found |= {f"{path}.{name}": tensor.detach().clone() for name, tensor in value.state_dict().items()}
    elif type(value).__module__.startswith(("ppo_lightning", "torch.optim")) or not depth:
        seen.add(id(value))
        own = vars(value)
        own = {name: item for name, item in own.items() if name not in LIGHTNINGS | ELSEWHERE} | own.get("_modules", {})
        for name, item in own.items():
            walk(item, f"{path}.{name}", found, seen, depth + 1)


class Walk(L.Callback):
    """Notes every value after each step."""

    def __init__(self):
        self.noted, self.mine = [], 0

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.mine += 1
        if not hasattr(pl_module, "hidden_counter") or isinstance(pl_module.hidden_counter, int):
            pl_module.hidden_counter = self.mine  # the negative control: state that nobody has declared
        found, seen = {}, set()
        for name, root in roots(trainer, pl_module).items():
            walk(root, name, found, seen)
        generators = (torch.get_rng_state(), np.random.get_state()[1].tobytes(), random.getstate())
        found |= {"random.torch": generators[0], "random.numpy": generators[1], "random.python": str(generators[2])}
        self.noted.append(copy.copy(found))


def changed(before, after):
    """Return the paths whose value differs, or that come or go."""
    both = before.keys() & after.keys()
    return {path for path in both if not _same(before[path], after[path])} | (before.keys() ^ after.keys())


def _same(left, right):
    if isinstance(left, torch.Tensor) and isinstance(right, torch.Tensor):
        return left.shape == right.shape and torch.equal(left, right)
    return type(left) is type(right) and left == right


def undeclared(paths):
    """Return the paths that neither list covers."""
    declared = [*KEPT, *REMADE]
    return sorted(
        path
        for path in paths
        if not any(path == name or path.startswith((f"{name}.", f"{name}#")) for name in declared)
    )


@pytest.fixture(scope="module")
def walked(model, tmp_path_factory):
    """Paths of what changed between two steps, and the run directory."""
    walker = Walk()
    folder = tmp_path_factory.mktemp("walk")
    _, run = start(model, folder, *OPTIONS, "trainer.steps=3", callbacks=[walker])
    return changed(*walker.noted[1:]), run


def test_pitfall_40_all_that_changes_is_declared(walked):
    paths, _ = walked
    assert undeclared(paths - {"module.hidden_counter"}) == []
    kept = {name for name in KEPT for path in paths if path == name or path.startswith((f"{name}.", f"{name}#"))}
    assert {"module.step", "data.drawn", "module.kl_controller", "optimizer.actor", "optimizer.critic"} <= kept


def test_pitfall_40_undeclared_state_is_found(walked):
    paths, _ = walked
    assert undeclared(paths) == ["module.hidden_counter"]


class Nudge(L.Callback):
    """Changes one weight after it was restored."""

    def on_train_start(self, trainer, pl_module):
        with torch.no_grad():
            next(pl_module.actor.parameters())[0, 0] += 1e-3


class Deaf(L.Callback):
    """Has an engine that takes no weights."""

    def on_train_start(self, trainer, pl_module):
        owner = next(callback for callback in trainer.callbacks if isinstance(callback, RolloutCallback))
        owner.engine.sync_weights = lambda weights, version: setattr(owner.engine, "version", version)


@pytest.mark.parametrize(
    ("wrong", "error", "says"),
    [(Nudge, CheckpointError, "something changed them after"), (Deaf, EngineError, "would sample from other weights")],
)
def test_pitfall_34_no_rollout_from_other_weights_than_the_checkpoint_s(walked, model, wrong, error, says):
    _, run = walked
    with pytest.raises(error, match=says):
        start(model, run.parent, *OPTIONS, "trainer.steps=4", resume="auto", callbacks=[wrong()])


class Keep(L.Callback):
    """Keeps the module."""

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.module = pl_module


def test_pitfall_41_the_reference_is_the_original_model(walked, model):
    _, run = walked
    keep = Keep()
    start(model, run.parent, *OPTIONS, "trainer.steps=4", resume="auto", callbacks=[keep])
    original = AutoModelForCausalLM.from_pretrained(model).state_dict()
    resumed = AutoModelForCausalLM.from_pretrained(run / "checkpoints" / "step_000003" / "actor").state_dict()
    reference = keep.module.reference.state_dict()
    assert all(torch.equal(reference[name], original[name]) for name in original)
    assert not all(torch.equal(resumed[name], original[name]) for name in original)


def test_pitfall_41_another_reference_is_refused(walked, model, tmp_path):
    """The original folder has been written over with trained weights."""
    _, run = walked
    trained = run / "checkpoints" / "step_000003"
    with pytest.raises(CheckpointError, match="KL would be measured from other weights"):
        start(trained / "actor", tmp_path, *OPTIONS, "trainer.steps=4", resume=str(trained))
