"""A run directory that no training made."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "browser"))

from made_run import make_run


@pytest.fixture
def made(tmp_path):
    """Return a function that makes a run directory of some steps."""
    return lambda steps=12, name="made", **options: make_run(tmp_path / name, steps, **options)
