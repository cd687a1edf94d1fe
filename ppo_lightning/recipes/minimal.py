"""`recipes from-run`: the shortest recipe of a run, with what it reached in the header. Imports no torch.

Presets whose every value agrees with the run are named; only what is left over is written out.
"""

import json
from pathlib import Path
from typing import Any

from ppo_lightning.config.load import get, load, preset_values
from ppo_lightning.config.schema import Config, leaves
from ppo_lightning.errors import ConfigError
from ppo_lightning.run_dir import CONFIG, ENVIRONMENT, METRICS, read_metrics
from ppo_lightning.shipped import shipped

SHOWN = ("val-core/", "critic/score/mean", "response_length/mean")
"""Metrics of the header, by their beginnings."""

CLOCKS = ("timing_s/step", "timing_s/testing", "timing_s/save_checkpoint")
"""What a run's wall time is made of."""


def from_run(folder: str) -> str:
    """Return the recipe of a recorded run.

    Raises:
        ConfigError: the folder holds no run.
    """
    path = Path(folder)
    if not (path / CONFIG).is_file():
        raise ConfigError(f"recipes from-run {folder}: must be a run directory, which holds {CONFIG}")
    return "\n".join([*_header(path), *minimal(load(str(path / CONFIG)).config)]) + "\n"


def minimal(config: Config) -> list[str]:
    """Return the shortest recipe that gives this configuration, as lines of YAML."""
    left = {key: get(config, key) for key in leaves() if get(config, key) != get(Config(), key)}
    presets = _presets(config, set(left))
    covered = {key for group, name in presets.items() for key in preset_values(group, name)}
    lines = ["defaults:", *(f"  - {group}: {name}" for group, name in presets.items())] if presets else []
    sections: dict[str, dict[str, Any]] = {}
    for key, value in left.items():
        if key not in covered:
            section, _, name = key.rpartition(".")
            sections.setdefault(section, {})[name] = value
    for section, values in sections.items():
        if not section:
            lines += [f"{name}: {_yaml(value)}" for name, value in values.items()]
        else:
            lines += [f"{section}:", *(f"  {name}: {_yaml(value)}" for name, value in values.items())]
    return lines


def _presets(config: Config, wanted: set[str]) -> dict[str, str]:
    """Return, group by group, the preset that covers most of what differs from the defaults and contradicts nothing."""
    chosen: dict[str, str] = {}
    for folder in sorted(path for path in shipped("conf").iterdir() if path.is_dir()):
        best: tuple[int, str] = (0, "")
        for file in sorted(folder.glob("*.yaml")):
            values = preset_values(folder.name, file.stem)
            agrees = all(key in leaves() and get(config, key) == value for key, value in values.items())
            gain = len(wanted & values.keys())
            if agrees and gain > best[0]:
                best = (gain, file.stem)
        if best[0]:
            chosen[folder.name] = best[1]
            wanted = wanted - preset_values(folder.name, best[1]).keys()
    return chosen


def _header(path: Path) -> list[str]:
    """Return what was measured, as comments."""
    lines = [f"# {path.resolve().name}: made from its run directory."]
    machine = _machine(path)
    rows = read_metrics(path) if (path / METRICS).is_file() else []
    seconds = sum(row[key] for row in rows for key in CLOCKS if row.get(key) is not None)
    steps = max((row["step"] for row in rows), default=0)
    lines.append(
        f"# hardware: {machine}.  minutes: {seconds / 60:.1f} in {steps} steps, validation and checkpoints included."
    )
    for key in sorted({key for row in rows for key in row if key.startswith(SHOWN)}):
        values = [row[key] for row in rows if row.get(key) is not None]
        if values:
            lines.append(f"# {key}: {values[0]:.4g} at the start, {values[-1]:.4g} at the end")
    return lines


def _machine(path: Path) -> str:
    file = path / ENVIRONMENT
    if not file.is_file():
        return "not recorded"
    known = json.loads(file.read_text(encoding="utf-8"))
    return ", ".join(known[name] for name in ("device", "versions") if name in known)


def _yaml(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
