"""The checkpoints of one run directory: written whole or not at all, found, read and pruned."""

import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from ppo_lightning.checkpoint.files import MARKER, PARTIAL, REPLACED, Sealing, damage, discard, publish, put_back
from ppo_lightning.checkpoint.state import RunState
from ppo_lightning.checkpoint.weights import gathered, read_weights, write_weights
from ppo_lightning.config.schema import CheckpointConfig
from ppo_lightning.data.datamodule import PromptDataModule
from ppo_lightning.errors import CheckpointError
from ppo_lightning.module import PPOModule

STEP = "step_"


class CheckpointStore:
    """Writes, finds, reads and prunes the checkpoints of one run directory.

    Attributes:
        best: best value of checkpoint.best_metric so far and its step.
        saved: step whose state is on disk, by this process.
        passed_over: a line for each damaged checkpoint that `find` left aside.
    """

    def __init__(self, folder: Path, config: CheckpointConfig, wandb_id: str | None = None) -> None:
        self.folder, self.config, self.wandb_id = folder, config, wandb_id
        self.best: dict[str, float] | None = None
        self.saved: int | None = None
        self.passed_over: list[str] = []

    def save(self, module: PPOModule, data: PromptDataModule, validation: dict[str, float] | None = None) -> Path:
        """Write a checkpoint of the step just finished, then prune.

        Args:
            module: the models, their optimizers and schedules.
            data: the position in the prompts.
            validation: metrics of these very weights, if they were validated.

        Raises:
            CheckpointError: it could not be written; earlier checkpoints are as they were.
        """
        target = self.folder / f"{STEP}{module.step:06d}"
        self.saved = module.step
        states = gathered(module)
        self._note_best(module.step, validation or {})
        state = partial(RunState.of, module, data, self.wandb_id, self.best)  # reads every weight
        if not module.ranks.first:
            state()  # ranks with sharded models add up together
            return target
        made = self.folder / f"{PARTIAL}{target.name}"
        try:
            for old in self.folder.glob(f"{REPLACED}{STEP}*"):
                put_back(old.with_name(old.name.removeprefix(REPLACED)))
            shutil.rmtree(made, ignore_errors=True)
            made.mkdir(parents=True)
            with Sealing(made) as sealing:
                for _ in write_weights(made, module, states):
                    sealing.take()
                state().write(made)  # while the disk is at work
                sealing.finish()
            publish(made, target)
        except Exception as error:
            self.saved = None
            shutil.rmtree(made, ignore_errors=True)
            raise CheckpointError(
                f"checkpoint {target}: not written: {_reason(error)}; earlier ones are intact"
            ) from error
        try:
            self._prune(module.step)
        except OSError as error:
            raise CheckpointError(
                f"checkpoint {target} is whole, but an older one cannot be removed: {error.strerror or error}"
            ) from error
        return target

    def complete(self) -> list[Path]:
        """Return the checkpoints that were written to their end, oldest first (`damage` tells if they still are)."""
        return [path for path in self._folders() if (path / MARKER).is_file()]

    def find(self, resume: str) -> Path | None:
        """Return the checkpoint that `--resume auto|never|PATH` means, or None to start fresh.

        `auto` takes the newest whole one; `passed_over` names those that it left aside.

        Raises:
            CheckpointError: an explicit path is no whole checkpoint, or there are some and none of them is whole.
        """
        if resume == "never":
            return None
        if resume != "auto":
            path = Path(resume)
            wrong = damage(path)
            if wrong is not None:
                raise CheckpointError(f"--resume {resume}: not a whole checkpoint ({wrong})")
            return path
        self.passed_over = []
        for path in reversed(self._folders()):
            wrong = damage(path)
            if wrong is None:
                return path
            self.passed_over.append(f"checkpoint {path} is passed over: {wrong}")
        if self.passed_over:
            raise CheckpointError(
                "--resume auto: no whole checkpoint is left, and a run is not begun anew over damaged ones: "
                "move them away, or give another name=\n" + "\n".join(self.passed_over)
            )
        return None

    def restore(self, path: Path, module: PPOModule, data: PromptDataModule) -> None:
        """Put a checkpoint's state into the run; optimizers and schedules must be configured already.

        Raises:
            CheckpointError: a file is damaged or belongs to another model or run.
        """
        try:
            state = RunState.read(path)
            read_weights(path, module)
        except CheckpointError:
            raise
        except Exception as error:
            raise CheckpointError(f"checkpoint {path} is damaged: {_reason(error)}") from error
        state.check(module, path)
        state.apply(module, data)
        self.best = state.best

    def _folders(self) -> list[Path]:
        """Return everything that is or was a checkpoint, oldest first."""
        found: dict[int, Path] = {}
        for prefix in (f"{REPLACED}{STEP}", STEP):  # one being replaced counts until the new one has its name
            for path in self.folder.glob(f"{prefix}*"):
                number = path.name.removeprefix(prefix)
                if number.isdecimal() and path.is_dir():
                    found[int(number)] = path
        return [found[step] for step in sorted(found)]

    def without_best(self, validation: dict[str, float]) -> str | None:
        """Say that no best checkpoint can be found in what a validation gives; None: it can, or none is wanted."""
        wanted = self.config.best_metric
        if wanted is None or wanted in validation:
            return None
        near = ", ".join(sorted(key for key in validation if key.startswith("val-core/")))
        return f"checkpoint.best_metric={wanted} is no validation metric of this run: use one of {near}"

    def _note_best(self, step: int, validation: dict[str, float]) -> None:
        value = validation.get(self.config.best_metric) if self.config.best_metric else None
        if value is None:
            return
        sign = 1 if self.config.best_mode == "max" else -1
        if self.best is None or sign * value > sign * self.best["value"]:
            self.best = {"value": value, "step": step}

    def _prune(self, step: int) -> None:
        """Remove what is beyond checkpoint.keep, and remains of broken-off saves; never the newest or the best."""
        for path in self._leftovers():
            discard(path)
        whole = self.complete()
        names = {f"{STEP}{kept:06d}" for kept in (step, int(self.best["step"]) if self.best else step)}
        for path in whole[: -self.config.keep]:
            if path.name not in names:
                discard(path)

    def _leftovers(self) -> Iterator[Path]:
        yield from self.folder.glob(f"{PARTIAL}{STEP}*")
        yield from (path for path in self.folder.glob(f"{STEP}*") if not (path / MARKER).exists())


def wandb_id_of(path: Path) -> str | None:
    """Return the W&B run that a checkpoint belongs to."""
    return RunState.read(path).wandb_id


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return (str(error).strip() or type(error).__name__).splitlines()[0]
