"""`recipes get SOURCE FILE`: a recipe from a file, a Hub repository, or a W&B run or artifact. Data only. No torch.

    recipes get hf:OWNER/REPO[@REVISION][:FILE]     recipe.yaml unless another file is named
    recipes get wandb:ENTITY/PROJECT/RUN            the recipe of an online run (its configuration)
    recipes get wandb:ENTITY/PROJECT/NAME:VERSION   the recipe.yaml in an artifact
    recipes get PATH                                a file, a run directory or an offline W&B run below one

What was fetched is parsed as a recipe, its sha256 is shown, and whatever code it names is named: nothing is run.
"""

import hashlib
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ppo_lightning.config.load import compose_tree, get, load
from ppo_lightning.errors import ConfigError
from ppo_lightning.recipes.minimal import from_run, minimal
from ppo_lightning.recipes.shelf import find
from ppo_lightning.run_dir import CONFIG

HUB = re.compile(r"hf:(?P<repo>[\w.-]+/[\w.-]+)(?:@(?P<revision>[\w./-]+))?(?::(?P<file>[\w./-]+))?")
WANDB = re.compile(r"wandb:(?P<path>[\w.-]+/[\w.-]+/[\w.-]+)(?P<version>:[\w.-]+)?")
FILE, LARGEST = "recipe.yaml", 1_000_000
CODE = ("reward.path", "data.order")
"""Options that can name code of the user's own."""


def fetch(source: str, target: str, say: Callable[[str], None]) -> None:
    """Fetch a recipe into a file that does not exist yet, and say what it is.

    Raises:
        ConfigError: it cannot be fetched, is no recipe, or the file exists.
    """
    if Path(target).exists():
        raise ConfigError(f"recipes get: {target} exists already")
    text = read_source(source)
    if len(text) > LARGEST:
        raise ConfigError(f"recipes get {source}: a recipe must be below {LARGEST} bytes - got {len(text)}")
    Path(target).write_text(text, encoding="utf-8")
    try:
        loaded = load(target)
    except ConfigError:
        Path(target).unlink()
        raise
    say(f"{source} -> {target}  sha256 {hashlib.sha256(text.encode()).hexdigest()}")
    for key in CODE:
        if get(loaded.config, key):
            say(f"it names code that a run would load: {key}={get(loaded.config, key)} - read it before you train")


def read_source(source: str) -> str:
    """Return the text of a recipe.

    Raises:
        ConfigError: it cannot be read.
    """
    if source.startswith("hf:"):
        return _hub(source)
    if source.startswith("wandb:"):
        return _wandb(source)
    path = Path(source)
    if path.is_dir():
        return from_run(str(_run_of(path)))
    return find(source).read_text(encoding="utf-8")


def _run_of(path: Path) -> Path:
    """Return the run directory: itself, or the one that an offline W&B folder lies in."""
    for folder in (path, *path.resolve().parents):
        if (folder / CONFIG).is_file() and (folder / "metrics.jsonl").is_file():
            return folder
    return path


def _hub(source: str) -> str:
    found = HUB.fullmatch(source)
    if not found:
        raise ConfigError(f"recipes get {source}: must read hf:OWNER/REPO[@REVISION][:FILE]")
    from huggingface_hub import hf_hub_download

    try:
        path = hf_hub_download(
            found["repo"],
            found["file"] or FILE,
            revision=found["revision"],
            endpoint=os.environ.get("HF_ENDPOINT"),
        )
    except Exception as error:  # noqa: BLE001 - the Hub's client raises many kinds; all mean: not fetched
        raise ConfigError(f"recipes get {source}: not fetched: {str(error).strip().splitlines()[0]}") from None
    return Path(path).read_text(encoding="utf-8")


def _wandb(source: str) -> str:
    found = WANDB.fullmatch(source)
    if not found:
        raise ConfigError(f"recipes get {source}: must read wandb:ENTITY/PROJECT/RUN, or NAME:VERSION of an artifact")
    try:
        import wandb
    except ImportError:
        raise ConfigError("recipes get wandb:... needs wandb: pip install 'ppo-lightning[wandb]'") from None
    try:
        api: Any = wandb.Api()
        if found["version"]:
            folder = api.artifact(found["path"] + found["version"]).download()
            return (Path(folder) / FILE).read_text(encoding="utf-8")
        return recipe_of_wandb(dict(api.run(found["path"]).config), source)
    except ConfigError:
        raise
    except Exception as error:  # noqa: BLE001 - as above
        raise ConfigError(f"recipes get {source}: not fetched: {str(error).strip().splitlines()[0]}") from None


def recipe_of_wandb(config: dict[str, Any], source: str) -> str:
    """Return the shortest recipe of a configuration as a W&B run holds it: {option or section: value}.

    Raises:
        ConfigError: it is not one of ours.
    """
    head = f"# {source}: made from the configuration of a W&B run."
    return "\n".join([head, *minimal(compose_tree(config, source))]) + "\n"
