"""The package's source files, parsed once for all house tests."""

import ast
import functools
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "ppo_lightning"


@functools.cache
def modules():
    """Return {path below the repository: syntax tree} of every file of the package."""
    return {str(path.relative_to(ROOT)): ast.parse(path.read_text()) for path in sorted(PACKAGE.rglob("*.py"))}


def tracked():
    """Return every text file under version control (all files where there is no git)."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    names = listed.stdout.split("\0") if listed.returncode == 0 else [str(p.relative_to(ROOT)) for p in ROOT.rglob("*")]
    return [
        name for name in names if name and (ROOT / name).is_file() and b"\0" not in (ROOT / name).read_bytes()[:1024]
    ]


def imported(tree):
    """Yield the full name of everything that a tree imports, at any depth."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def unit(name):
    """Return the part of the package that a path or a dotted name belongs to: `stages`, `build`, `__init__`."""
    parts = name.removesuffix(".py").replace("/", ".").split(".")
    return parts[1] if len(parts) > 1 else "__init__"
