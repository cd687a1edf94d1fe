"""Bring a trained policy out of a run: the whole model as a Hugging Face folder, or its adapter as a peft folder."""

import shutil
from collections.abc import Callable
from pathlib import Path

from ppo_lightning.checkpoint.store import MARKER
from ppo_lightning.checkpoint.weights import ACTOR, ADAPTER
from ppo_lightning.errors import CheckpointError, ConfigError


def export(source: str, target: str, adapter: bool, say: Callable[[str], None]) -> Path:
    """Copy the policy of a run's newest whole checkpoint, or of a given checkpoint, to a new folder.

    Args:
        source: a run directory or one of its checkpoints.
        target: folder that does not exist yet, or is empty.
        adapter: the LoRA adapter alone instead of the whole model, which has it merged in.
        say: told what was copied and how it is loaded.

    Raises:
        CheckpointError: `source` holds no whole checkpoint, or no adapter.
        ConfigError: `target` is not free.
    """
    checkpoint = newest(Path(source))
    folder = checkpoint / (ADAPTER if adapter else ACTOR)
    if not folder.is_dir():
        raise CheckpointError(f"{checkpoint}: holds no adapter: the run was not trained with model.lora_rank")
    place = Path(target)
    if place.exists() and (not place.is_dir() or any(place.iterdir())):
        raise ConfigError(f"--to {target}: must be a folder that does not exist yet, or is empty")
    partial = place.with_name(f".partial_{place.name}")
    try:
        shutil.rmtree(partial, ignore_errors=True)
        shutil.copytree(folder, partial)
        if place.exists():
            place.rmdir()
        partial.rename(place)
    except OSError as error:
        shutil.rmtree(partial, ignore_errors=True)
        raise ConfigError(f"--to {target}: could not be written: {error.strerror or error}") from error
    reader = "peft.PeftModel.from_pretrained(model, ...)" if adapter else "AutoModelForCausalLM.from_pretrained(...)"
    say(f"{checkpoint} -> {place}: load it with {reader}")
    return place


def newest(path: Path) -> Path:
    """Return a checkpoint: the path itself, or the newest whole one of a run directory.

    Raises:
        CheckpointError: there is none.
    """
    if (path / MARKER).is_file():
        return path
    whole = sorted(found.parent for found in path.glob(f"checkpoints/step_*/{MARKER}"))
    if not whole:
        raise CheckpointError(f"{path}: neither a run directory with a whole checkpoint nor a checkpoint")
    return whole[-1]
