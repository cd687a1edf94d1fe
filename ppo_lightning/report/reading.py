"""Read a run directory for a report: whatever is there, also of a run that died. Imports no torch."""

import json
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from ppo_lightning.config.schema import leaves
from ppo_lightning.errors import DataError
from ppo_lightning.report.dumps import Row, dumps, json_lines
from ppo_lightning.run_dir import CONFIG, ENVIRONMENT, METRICS, read_metrics

RECIPE, WARNINGS, FAILURE = "recipe.yaml", "warnings.jsonl", "failure.txt"


@dataclass(frozen=True)
class Run:
    """One run directory.

    Attributes:
        name: as the page calls it.
        path: its folder.
        metrics: lines of metrics.jsonl by step; of a step that was written twice the last.
        config: option -> value.
        recipe: text of recipe.yaml, if the run has one.
        warnings: lines of warnings.jsonl.
        environment: where it ran, as environment.json tells.
        failure: what ended the run, if it was not its last step or a signal.
    """

    name: str
    path: Path
    metrics: tuple[Row, ...]
    config: dict[str, Any]
    recipe: str | None
    warnings: tuple[Row, ...]
    failure: str | None = None
    environment: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def keys(self) -> list[str]:
        """Return every metric key that was logged, sorted."""
        return sorted({key for row in self.metrics for key in row} - {"step"})

    @property
    def steps(self) -> list[Row]:
        """Return the lines of training steps: step 0 is the validation before them."""
        return [row for row in self.metrics if row["step"] > 0]

    def changed(self) -> dict[str, tuple[Any, Any]]:
        """Return the options that differ from their default, as {key: (value, default)}."""
        defaults = {key: _default(item) for key, item in leaves().items()}
        return {
            key: (value, defaults.get(key))
            for key, value in self.config.items()
            if key not in defaults or value != defaults[key]
        }

    def dumps(self, kind: str) -> dict[int, Path]:
        """Return the rollout files of `step` or `validation` by step."""
        return dumps(self.path / "rollouts", kind)


def read_run(path: Path, name: str | None = None) -> Run:
    """Read one run directory.

    Raises:
        DataError: it holds neither a configuration nor metrics.
    """
    config, metrics = path / CONFIG, path / METRICS
    if not config.is_file() and not metrics.is_file():
        raise DataError(f"{path} must be a run directory, which holds {CONFIG} and {METRICS} - got neither")
    rows = {row["step"]: row for row in (read_metrics(path) if metrics.is_file() else ()) if "step" in row}
    return Run(
        name=name or path.resolve().name,
        path=path,
        metrics=tuple(rows[step] for step in sorted(rows)),
        config=_read_config(config) if config.is_file() else {},
        recipe=_text(path / RECIPE),
        warnings=tuple(json_lines(path / WARNINGS)),
        failure=_text(path / FAILURE),
        environment=_read_environment(path / ENVIRONMENT),
    )


def read_runs(paths: list[Path]) -> list[Run]:
    """Read several run directories; those of one name are told apart by their parents' names."""
    resolved = [path.resolve() for path in paths]
    short = [path.name for path in resolved]
    names = [path.name if short.count(path.name) == 1 else f"{path.parent.name}/{path.name}" for path in resolved]
    seen: dict[str, int] = {}
    for place, name in enumerate(names):
        seen[name] = seen.get(name, 0) + 1
        names[place] = name if seen[name] == 1 else f"{name} ({seen[name]})"
    return [read_run(path, name) for path, name in zip(paths, names, strict=True)]


def _text(file: Path) -> str | None:
    return file.read_text(encoding="utf-8", errors="replace").strip() if file.is_file() else None


def _read_environment(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    except ValueError:
        found = {}
    return found if isinstance(found, dict) else {}


def _read_config(file: Path) -> dict[str, Any]:
    """Return the options flat, by dotted key; a mapping that is one option's value stays whole."""
    try:
        tree = OmegaConf.to_container(OmegaConf.load(file), resolve=False)
    except (OmegaConfBaseException, ValueError, OSError) as error:
        raise DataError(f"{file} must be YAML: {str(error).splitlines()[0]}") from None
    known, flat = leaves(), {}

    def walk(part: Any, prefix: str) -> None:
        for name, value in part.items():
            key = f"{prefix}{name}"
            if isinstance(value, dict) and key not in known and value:
                walk(value, f"{key}.")
            else:
                flat[key] = value

    if isinstance(tree, dict):
        walk(tree, "")
    return flat


def _default(item: Any) -> Any:
    return item.default_factory() if callable(item.default_factory) else item.default
