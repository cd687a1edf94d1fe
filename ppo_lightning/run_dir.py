"""The directory of one run: where its files are, and how they are written."""

import json
import os
from pathlib import Path
from typing import Any

from ppo_lightning.errors import ConfigError

CONFIG, METRICS, ENVIRONMENT = "config.yaml", "metrics.jsonl", "environment.json"


class RunDir:
    """Paths and writers of `output_dir/name`; nothing can leave it."""

    def __init__(self, output_dir: str, name: str) -> None:
        if not name or name in (".", "..") or Path(name).name != name:
            raise ConfigError(f"name={name!r} must be a plain folder name: letters, digits, '.', '_' and '-'")
        self.path = Path(output_dir) / name

    @classmethod
    def fresh(cls, output_dir: str, name: str) -> "RunDir":
        """Return the first of name, name-2, name-3, ... that holds no run yet: an earlier run is never written over."""
        found, number = cls(output_dir, name), 1
        while (found.path / CONFIG).exists():
            number += 1
            found = cls(output_dir, f"{name}-{number}")
        return found

    @property
    def checkpoints(self) -> Path:
        """Folder of the checkpoints."""
        return self.path / "checkpoints"

    @property
    def rollouts(self) -> Path:
        """Folder of the rollout dumps."""
        return self.path / "rollouts"

    def create(self) -> None:
        """Make the directory.

        Raises:
            ConfigError: it cannot be made or written.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"output_dir: {self.path} cannot be made: {error.strerror}") from None
        if not os.access(self.path, os.W_OK):
            raise ConfigError(f"output_dir: {self.path} cannot be written to")

    def append_metrics(self, step: int, metrics: dict[str, float | None]) -> None:
        """Append one line to metrics.jsonl; a value that is not finite is null."""
        self._append(self.path / METRICS, {"step": step} | metrics)

    def truncate_metrics(self, step: int) -> None:
        """Drop lines of steps after `step`, which a resumed run is about to repeat, and a torn last line."""
        file = self.path / METRICS
        if not file.exists():
            return
        kept = []
        for line in file.read_text(encoding="utf-8").splitlines():
            try:
                if json.loads(line)["step"] <= step:
                    kept.append(line)
            except ValueError:  # the line that was being written when the run died
                continue
        file.write_text("".join(f"{line}\n" for line in kept), encoding="utf-8")

    def write_rollouts(self, name: str, rows: list[dict[str, Any]]) -> None:
        """Write one JSONL file of rollouts, whole or not at all."""
        self.rollouts.mkdir(exist_ok=True)
        target = self.rollouts / f"{name}.jsonl"
        partial = target.with_suffix(".partial")
        text = "".join(f"{json.dumps(row, ensure_ascii=False, default=str)}\n" for row in rows)
        partial.write_text(text, encoding="utf-8", errors="replace")
        partial.replace(target)

    @staticmethod
    def _append(file: Path, row: dict[str, Any]) -> None:
        with file.open("a", encoding="utf-8") as out:
            out.write(f"{json.dumps(row)}\n")


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Read metrics.jsonl of a run directory; a torn last line is left out."""
    rows = []
    for line in (path / METRICS).read_text(encoding="utf-8").splitlines():
        try:
            rows.append(json.loads(line))
        except ValueError:
            break
    return rows
