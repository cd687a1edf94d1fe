"""A W&B workspace with the panels of `metrics/panels.py`, for the verb `wandb-view`. Torch-free."""

import json
import re
from pathlib import Path
from typing import Any

from ppo_lightning.errors import ConfigError
from ppo_lightning.metrics.panels import PANELS
from ppo_lightning.metrics.registry import METRICS

AXIS = "training/global_step"
VIEW = "ppo_lightning"
OPEN = ("training", "reward", "validation")
"""Sections that are unfolded at first."""


def view_spec(project: str) -> dict[str, Any]:
    """Return the workspace as plain data: sections of line plots over the step, each with keys or one pattern."""
    sections = [
        {"name": name, "open": name in OPEN, "plots": [_plot(panel.title, panel.keys) for panel in panels]}
        for name, panels in PANELS.items()
    ]
    return {"project": project, "name": VIEW, "x": AXIS, "sections": sections}


def dry_run(project: str, file: str) -> str:
    """Write the view to a file and return what was done; `-`: return the view itself."""
    text = json.dumps(view_spec(project), indent=1)
    if file == "-":
        return text
    Path(file).write_text(f"{text}\n", encoding="utf-8")
    return f"the view of {project} is in {file}"


def save(project: str, entity: str | None) -> str:
    """Save the workspace at W&B and return its address.

    Raises:
        ConfigError: a package is missing, or W&B did not take it.
    """
    try:
        import wandb
        from wandb_workspaces.workspaces import Workspace  # noqa: F401 - a missing package is said before anything else
    except ImportError:
        raise ConfigError("wandb-view needs wandb-workspaces: pip install 'ppo-lightning[wandb]'") from None
    try:
        workspace = build(view_spec(project), entity or str(wandb.Api(timeout=20).default_entity))
        workspace.save()
    except Exception as error:
        raise ConfigError(f"wandb-view: W&B did not take the view: {error}; --dry-run shows it") from error
    return f"view: {workspace.url}"


def build(spec: dict[str, Any], entity: str) -> Any:
    """Return the `wandb_workspaces` workspace of a view; nothing is sent."""
    import wandb_workspaces.reports.v2 as reports
    import wandb_workspaces.workspaces as workspaces

    sections = [
        workspaces.Section(
            name=section["name"],
            is_open=section["open"],
            panels=[
                reports.LinePlot(title=plot["title"], x=spec["x"], y=plot["keys"], metric_regex=plot["pattern"])
                for plot in section["plots"]
            ],
        )
        for section in spec["sections"]
    ]
    return workspaces.Workspace(entity=entity, project=spec["project"], name=spec["name"], sections=sections)


def _plot(title: str, keys: tuple[str, ...]) -> dict[str, Any]:
    """Name the keys; where one is a family, a pattern over all of them instead."""
    if not any("<" in key for key in keys):
        return {"title": title, "keys": list(keys), "pattern": None}
    return {"title": title, "keys": [], "pattern": "|".join(_pattern(key) for key in keys)}


def _pattern(key: str) -> str:
    """Return an expression that W&B's browser reads too: no possessive forms, no escapes of '-' or '@'."""
    plain = re.sub(r"\\([-@/])", r"\1", METRICS[key].pattern.pattern)
    return f"^{plain}$"
