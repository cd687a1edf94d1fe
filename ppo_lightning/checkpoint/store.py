"""The checkpoints of one run directory: written whole or not at all, found, read and pruned."""

import os
import shutil
from pathlib import Path

from ppo_lightning.checkpoint.state import RunState
from ppo_lightning.checkpoint.weights import gathered, read_weights, write_weights
from ppo_lightning.config.schema import CheckpointConfig
from ppo_lightning.data.datamodule import PromptDataModule
from ppo_lightning.errors import CheckpointError
from ppo_lightning.module import PPOModule

MARKER = "COMPLETE"


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
        states = gathered(module)
        if not module.ranks.first:
            return target
        self._note_best(module.step, validation)
        partial = self.folder / f".partial_{target.name}"
        try:
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
            write_weights(partial, module, states)
            RunState.of(module, data, self.wandb_id, self.best).write(partial)
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
            state = RunState.read(path)
            read_weights(path, module)
        except CheckpointError:
            raise
        except Exception as error:
            raise CheckpointError(f"checkpoint {path} is damaged: {str(error).splitlines()[0]}") from error
        state.apply(module, data)
        self.best = state.best

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
    return RunState.read(path).wandb_id


def _sync_tree(folder: Path) -> None:
    for path in [*folder.rglob("*"), folder]:
        _sync(path)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
