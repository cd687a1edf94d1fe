"""Every preset and every recipe that ships loads, and names options that go together."""

import pytest
from house_sources import ROOT

from ppo_lightning.config.load import load
from ppo_lightning.config.validate import validate

PRESETS = sorted((path.parent.name, path.stem) for path in (ROOT / "conf").glob("*/*.yaml"))
RECIPES = sorted((ROOT / "recipes").glob("*.yaml"))
NEEDED = {("rollout", "vllm_server"): ["rollout.servers=[http://127.0.0.1:8000]"]}
"""What a preset leaves to its user."""


def test_there_are_some():
    assert len(PRESETS) > 20
    assert len(RECIPES) > 3


@pytest.mark.parametrize(("group", "preset"), PRESETS, ids=["/".join(pair) for pair in PRESETS])
def test_presets(group, preset):
    loaded = load(None, [f"{group}={preset}", *NEEDED.get((group, preset), [])])
    assert loaded.presets == {group: preset}
    validate(loaded.config)


@pytest.mark.parametrize("path", RECIPES, ids=[path.stem for path in RECIPES])
def test_recipes(path):
    validate(load(path).config)
    assert len(path.read_text().splitlines()) <= 40
