"""`recipes diff A B`: option by option, both values and where each comes from. Imports no torch."""

from pathlib import Path
from typing import Any, NamedTuple

from ppo_lightning.config.load import Loaded, get, load
from ppo_lightning.config.schema import leaves
from ppo_lightning.recipes.shelf import find
from ppo_lightning.run_dir import CONFIG


class Difference(NamedTuple):
    """One option that two recipes set differently."""

    key: str
    left: Any
    left_origin: str
    right: Any
    right_origin: str


def resolve(name: str) -> Loaded:
    """Return the configuration of a recipe, a file, or a run directory."""
    recorded = Path(name) / CONFIG
    return load(str(recorded if recorded.is_file() else find(name)))


def differences(left: Loaded, right: Loaded) -> list[Difference]:
    """Return every option whose resolved values differ, in the order of the schema."""
    return [
        Difference(key, get(left.config, key), left.origin[key], get(right.config, key), right.origin[key])
        for key in leaves()
        if get(left.config, key) != get(right.config, key)
    ]


def in_words(found: list[Difference], left: str, right: str) -> str:
    """Return the differences, three lines each, and what else differs in the recipes."""
    if not found:
        return f"{left} and {right} are the same, option by option"
    lines = [f"{len(found)} of {len(leaves())} options differ"]
    width = max(len(str(value)) for one in found for value in (one.left, one.right))
    width = min(width, 48)
    names = f"{left:<{max(len(left), len(right))}}", f"{right:<{max(len(left), len(right))}}"
    for one in found:
        lines.append(one.key)
        lines.append(f"  {names[0]}  {_shown(one.left):<{width}}  # {one.left_origin}")
        lines.append(f"  {names[1]}  {_shown(one.right):<{width}}  # {one.right_origin}")
    return "\n".join(lines)


def _shown(value: Any) -> str:
    return "null" if value is None else str(value)
