"""The recipes that ship with the package: find, list, show, copy."""

from pathlib import Path

from ppo_lightning.config.load import nearest
from ppo_lightning.errors import ConfigError
from ppo_lightning.shipped import shipped

EDITOR = "# yaml-language-server: $schema="
"""Begins the line that tells editors which schema a recipe follows."""


def find(name: str) -> Path:
    """Return a recipe file: the path itself, or the shipped recipe of that name or file name.

    Raises:
        ConfigError: neither exists.
    """
    path = Path(name)
    if path.is_file():
        return path
    inside = shipped("recipes") / (path.name if path.suffix == ".yaml" else f"{path.name}.yaml")
    if inside.is_file() and len(path.parts) <= 2:
        return inside
    names = sorted(p.stem for p in shipped("recipes").glob("*.yaml"))
    raise ConfigError(f"--config {name}: no such file. Shipped recipes: {', '.join(names)}.{nearest(path.stem, names)}")


def listing() -> str:
    """Return one line per recipe: its name and the first line of its header."""
    files = sorted(shipped("recipes").glob("*.yaml"))
    width = max((len(file.stem) for file in files), default=0)
    return "\n".join(f"{file.stem:<{width}}  {_headline(file)}" for file in files)


def _headline(file: Path) -> str:
    lines = file.read_text(encoding="utf-8").splitlines()
    return next((line.lstrip("# ") for line in lines if line.startswith("#") and not line.startswith(EDITOR)), "")


def show(name: str) -> str:
    """Return the text of a recipe."""
    return find(name).read_text(encoding="utf-8")


def copy(name: str, target: str) -> str:
    """Copy a recipe to a file that does not exist yet; the line for editors gets the schema's full path.

    Raises:
        ConfigError: the file exists.
    """
    if Path(target).exists():
        raise ConfigError(f"recipes cp: {target} exists already")
    lines = find(name).read_text(encoding="utf-8").splitlines(keepends=True)
    schema = f"{EDITOR}{shipped('recipes') / 'recipe.schema.json'}\n"
    text = "".join(schema if line.startswith(EDITOR) else line for line in lines)
    Path(target).write_text(text, encoding="utf-8")
    return f"{name} -> {target}: edit it, then python -m ppo_lightning fit --config {target}"
