"""Checkpoints: written beside, synced, renamed, marked whole last; then older ones are pruned.

checkpoints/step_000040/
  actor/               Hugging Face folder: AutoModelForCausalLM.from_pretrained reads it
  critic.safetensors   value model
  optimizer_*.pt       tensors and plain numbers only
  state.json           every other mutable value of the run
  COMPLETE             written last; a folder without it is not a checkpoint
"""

import json
import os
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from ppo_lightning.config.schema import CheckpointConfig
from ppo_lightning.data.datamodule import PromptDataModule
from ppo_lightning.errors import CheckpointError
from ppo_lightning.module import PPOModule

MARKER, STATE = "COMPLETE", "state.json"


@dataclass
class RunState:
    """Every mutable value of a run besides weights and optimizers.

    Attributes:
        step: training steps done.
        drawn: training draws consumed.
        kl_controller: the KL coefficient in force.
        schedulers: learning-rate schedules, in the order of the optimizers.
        wandb_id: run to continue in W&B.
        best: best value of checkpoint.best_metric and its step.
    """

    step: int
    drawn: int
    kl_controller: dict[str, float]
    schedulers: list[dict[str, Any]]
    wandb_id: str | None
    best: dict[str, float] | None


class CheckpointStore:
    """Writes, finds, reads and prunes the checkpoints of one run directory."""

    def __init__(self, folder: Path, config: CheckpointConfig, wandb_id: str | None = None) -> None:
        self.folder, self.config, self.wandb_id = folder, config, wandb_id
        self.best: dict[str, float] | None = None

    def save(self, module: PPOModule, data: PromptDataModule, validation: dict[str, float]) -> Path:
        """Write a checkpoint of the step just finished, then prune.

        Raises:
            CheckpointError: it could not be written; earlier checkpoints are as they were.
        """
        target = self.folder / f"step_{module.step:06d}"
        if not module.ranks.first:
            return target
        self._note_best(module.step, validation)
        partial = self.folder / f".partial_{target.name}"
        try:
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
            _write(partial, module, self._state(module, data))
            _sync_tree(partial)
            if target.exists():
                shutil.rmtree(target)
            partial.rename(target)
            _sync(self.folder)
            (target / MARKER).touch()
            _sync(target)
        except OSError as error:
            shutil.rmtree(partial, ignore_errors=True)
            raise CheckpointError(
                f"checkpoint {target}: not written: {error.strerror or error}; earlier ones are intact"
            ) from error
        self._prune(module.step)
        return target

    def complete(self) -> list[Path]:
        """Return the whole checkpoints, oldest first."""
        return sorted(path.parent for path in self.folder.glob(f"step_*/{MARKER}"))

    def find(self, resume: str) -> Path | None:
        """Return the checkpoint that `--resume auto|never|PATH` means, or None to start fresh.

        Raises:
            CheckpointError: an explicit path is no whole checkpoint.
        """
        if resume == "never":
            return None
        if resume == "auto":
            whole = self.complete()
            return whole[-1] if whole else None
        path = Path(resume)
        if not (path / MARKER).is_file():
            raise CheckpointError(f"--resume {resume}: not a whole checkpoint (no {MARKER} file in it)")
        return path

    def restore(self, path: Path, module: PPOModule, data: PromptDataModule) -> None:
        """Put a checkpoint's state into the run; optimizers and schedules must be configured already.

        Raises:
            CheckpointError: a file is damaged or belongs to another model.
        """
        try:
            state = RunState(**json.loads((path / STATE).read_text(encoding="utf-8")))
            weights: dict[str, torch.Tensor] = {}
            for file in sorted((path / "actor").glob("*.safetensors")):
                weights |= load_file(file)
            _load(module.actor, weights, path / "actor")
            if module.critic is not None:
                _load(module.critic, load_file(path / "critic.safetensors"), path / "critic.safetensors")
            for name, optimizer in _optimizers(module).items():
                optimizer.load_state_dict(torch.load(path / f"optimizer_{name}.pt", weights_only=True))
        except CheckpointError:
            raise
        except Exception as error:
            raise CheckpointError(f"checkpoint {path} is damaged: {str(error).splitlines()[0]}") from error
        module.step, data.drawn = state.step, state.drawn
        module.kl_controller.load_state_dict(state.kl_controller)
        for scheduler, saved in zip(module.schedulers(), state.schedulers, strict=True):
            scheduler.load_state_dict(saved)
        self.best = state.best

    def _state(self, module: PPOModule, data: PromptDataModule) -> RunState:
        schedulers = [scheduler.state_dict() for scheduler in module.schedulers()]
        plain = [{k: v for k, v in saved.items() if k != "lr_lambdas"} | {"lr_lambdas": [None]} for saved in schedulers]
        return RunState(module.step, data.drawn, module.kl_controller.state_dict(), plain, self.wandb_id, self.best)

    def _note_best(self, step: int, validation: dict[str, float]) -> None:
        value = validation.get(self.config.best_metric) if self.config.best_metric else None
        if value is None:
            return
        sign = 1 if self.config.best_mode == "max" else -1
        if self.best is None or sign * value > sign * self.best["value"]:
            self.best = {"value": value, "step": step}

    def _prune(self, step: int) -> None:
        whole = self.complete()
        best = f"step_{int(self.best['step']):06d}" if self.best else None
        for path in whole[: -self.config.keep] if self.config.keep else []:
            if path.name != best and path.name != f"step_{step:06d}":
                (path / MARKER).unlink()
                shutil.rmtree(path, ignore_errors=True)


def wandb_id_of(path: Path) -> str | None:
    """Return the W&B run that a checkpoint belongs to."""
    return json.loads((path / STATE).read_text(encoding="utf-8"))["wandb_id"]


def _write(folder: Path, module: PPOModule, state: RunState) -> None:
    module.actor.save_pretrained(folder / "actor")
    module.tokenizer.save_pretrained(folder / "actor")
    if module.critic is not None:
        save_file({k: v.contiguous() for k, v in module.critic.state_dict().items()}, folder / "critic.safetensors")
    for name, optimizer in _optimizers(module).items():
        torch.save(optimizer.state_dict(), folder / f"optimizer_{name}.pt")
    (folder / STATE).write_text(json.dumps(asdict(state), indent=1), encoding="utf-8")


def _optimizers(module: PPOModule) -> dict[str, torch.optim.Optimizer]:
    found = module.optimizers(use_pl_optimizer=False)
    found = found if isinstance(found, list) else [found]
    return dict(zip(("actor", "critic"), found, strict=False))


def _load(model: torch.nn.Module, weights: dict[str, torch.Tensor], source: Path) -> None:
    """Load weights; tied tensors are saved once and may be missing under their second name."""
    own = model.state_dict()
    for name, tensor in weights.items():
        if name not in own or own[name].shape != tensor.shape:
            raise CheckpointError(f"{source}: `{name}` does not fit the configured model")
        own[name].copy_(tensor)
    loaded = {own[name].data_ptr() for name in weights}
    missing = [name for name, tensor in own.items() if tensor.data_ptr() not in loaded]
    if missing:
        raise CheckpointError(f"{source}: holds no `{missing[0]}`")


def _sync_tree(folder: Path) -> None:
    for path in [*folder.rglob("*"), folder]:
        _sync(path)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
