"""Find the presets and recipes that ship with the package: in a wheel, or in the repository it runs from."""

from pathlib import Path


def shipped(folder: str) -> Path:
    """Return the folder `conf` or `recipes` of this installation."""
    package = Path(__file__).resolve().parent
    inside = package / "_shipped" / folder
    return inside if inside.is_dir() else package.parent / folder
