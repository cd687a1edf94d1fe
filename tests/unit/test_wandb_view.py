"""The workspace shows declared metrics, by key or by a pattern that fits them, and can be built without a network."""

import json
import re

import pytest

from ppo_lightning.cli import main
from ppo_lightning.metrics.panels import PANELS
from ppo_lightning.metrics.registry import METRICS, lookup
from ppo_lightning.wandb_view import AXIS, build, view_spec

PLOTS = [plot for section in view_spec("p")["sections"] for plot in section["plots"]]
FILLED = {
    "val-core/<data_source>/<variable>/mean@<N>": "val-core/openai/gsm8k/acc/mean@4",
    "val-core/<data_source>/<variable>/best@<k>/mean": "val-core/openai/gsm8k/acc/best@4/mean",
    "val-core/<data_source>/<variable>/maj@<k>/mean": "val-core/arithmetic/reward/maj@2/mean",
    "val-aux/<data_source>/<variable>/pass@<k>": "val-aux/arithmetic/acc/pass@8",
    "reward/<column>/mean": "reward/acc/mean",
}


def test_every_key_is_declared():
    assert [key for plot in PLOTS for key in plot["keys"] if key not in METRICS] == []
    assert AXIS in METRICS


def test_patterns_match_what_a_run_logs():
    families = [key for panels in PANELS.values() for panel in panels for key in panel.keys if "<" in key]
    assert sorted(families) == sorted(FILLED)
    for family, key in FILLED.items():
        assert lookup(key).key == family
        assert sum(bool(plot["pattern"] and re.search(plot["pattern"], key)) for plot in PLOTS) == 1
    assert not any(re.search(plot["pattern"], "val-aux/gsm8k/acc/mean@4") for plot in PLOTS if plot["pattern"])


def test_sections_are_those_of_the_panels():
    assert [section["name"] for section in view_spec("p")["sections"]] == list(PANELS)


def test_dry_run_prints_or_writes_the_view(capsys, tmp_path):
    assert main(["wandb-view", "--config", "quickstart", "logging.project=mine", "--dry-run"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown == view_spec("mine")
    assert main(["wandb-view", "logging.project=mine", "--dry-run", str(tmp_path / "view.json")]) == 0
    assert json.loads((tmp_path / "view.json").read_text()) == shown


def test_the_workspace_is_built_without_a_network():
    pytest.importorskip("wandb_workspaces")
    workspace = build(view_spec("mine"), "me")
    assert (workspace.entity, workspace.project) == ("me", "mine")
    assert [section.name for section in workspace.sections] == list(PANELS)
    plots = [plot for section in workspace.sections for plot in section.panels]
    assert len(plots) == len(PLOTS)
    assert {str(getattr(plot.x, "name", plot.x)) for plot in plots} == {AXIS}
