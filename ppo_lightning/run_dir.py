"""The directory of one run: where its files are, and how they are written."""

import json
import os
import re
from pathlib import Path
from typing import Any

from ppo_lightning.errors import ConfigError
from ppo_lightning.secrets import redact

CONFIG, METRICS, WARNINGS = "config.yaml", "metrics.jsonl", "warnings.jsonl"
ENVIRONMENT = "environment.json"
NAME = re.compile(r"\w[\w.-]*")
LONGEST_NAME = 200
"""Bytes; file systems allow 255, and `-2` or a suffix may follow."""


class RunDir:
    """Paths and writers of `output_dir/name`; nothing can leave it, and no secret is written into it."""

    def __init__(self, output_dir: str, name: str) -> None:
        if not NAME.fullmatch(name) or len(name.encode()) > LONGEST_NAME:
            raise ConfigError(
                f"name={name[:80]!r} must be a plain folder name: letters, digits, '.', '_' and '-', up to "
                f"{LONGEST_NAME} bytes, with no '.' or '-' at its start"
            )
        if "\0" in output_dir:
            raise ConfigError(f"output_dir={output_dir!r} must be a path - got a NUL character in it")
        self.path = Path(output_dir) / name
        self.metrics = JsonLines(self.path / METRICS)
        self.warnings = JsonLines(self.path / WARNINGS)

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
            ConfigError: it cannot be made or written, or a link under its name leads elsewhere.
        """
        if self.path.is_symlink():
            raise ConfigError(
                f"output_dir: {self.path} must be a folder - got a link to {os.readlink(self.path)} - choose another "
                "name, or make output_dir itself the link"
            )
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"output_dir: {self.path} cannot be made: {error.strerror}") from None
        if not os.access(self.path, os.W_OK):
            raise ConfigError(f"output_dir: {self.path} cannot be written to")

    def write_config(self, text: str) -> None:
        """Write the resolved configuration.

        Raises:
            ConfigError: the disk does not take it.
        """
        try:
            (self.path / CONFIG).write_text(redact(text), encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"output_dir: {self.path / CONFIG} cannot be written: {error.strerror}") from None

    def append_metrics(self, step: int, metrics: dict[str, float | None]) -> OSError | None:
        """Append one line to metrics.jsonl; a value that is not finite is null. Returns what kept the disk from it."""
        return self.metrics.append({"step": step} | metrics)

    def take_metrics(self, step: int) -> dict[str, float | None]:
        """Remove the line of the last step and return what it holds, for it to be written again with more in it."""
        lines = _rows(self.metrics.file)
        found = {key: value for line in lines if line["step"] == step for key, value in line.items() if key != "step"}
        self.hold_metrics(step, found)
        self.metrics.truncate(step - 1)
        return found

    def hold_metrics(self, step: int, metrics: dict[str, float | None]) -> OSError | None:
        """Keep a line to be written soon where a process that dies before leaves it; returns what kept it from that."""
        return self.metrics.hold({"step": step} | metrics)

    def held_metrics(self, step: int) -> list[dict[str, Any]]:
        """Return the held lines, of steps up to `step`, that metrics.jsonl lacks."""
        written = {row["step"] for row in _rows(self.metrics.file)}
        return [row for row in _rows(self.metrics.held) if row["step"] <= step and row["step"] not in written]

    def truncate_metrics(self, step: int) -> None:
        """Drop lines of steps after `step`, which a resumed run is about to repeat, and a torn last line."""
        self.metrics.truncate(step)
        self.warnings.truncate(step)


class JsonLines:
    """A file of JSON lines. What the disk does not take is kept, and written before the next line.

    Attributes:
        waiting: lines that are not on the disk yet.
        held: file beside it with lines that are about to be written.
    """

    def __init__(self, file: Path) -> None:
        self.file, self.held = file, file.with_suffix(".held")
        self.waiting: list[str] = []

    def append(self, row: dict[str, Any]) -> OSError | None:
        """Write a line; returns the error that keeps it, and those before it, waiting."""
        self.waiting.append(_line(row))
        return self.write()

    def hold(self, row: dict[str, Any]) -> OSError | None:
        """Sync the file, and put a line and those that wait beside it; returns the error that prevents it."""
        partial = self.held.with_suffix(".partial_held")
        try:
            with partial.open("wb", buffering=0) as out:
                _write_whole(out.fileno(), "".join([*self.waiting, _line(row)]).encode())
                os.fsync(out.fileno())
            partial.replace(self.held)
            if self.file.is_file():
                with self.file.open("ab") as out:
                    os.fsync(out.fileno())
        except OSError as error:
            return error
        return None

    def write(self) -> OSError | None:
        """Write the waiting lines, whole or not at all."""
        if not self.waiting:
            return None
        data = "".join(self.waiting).encode()
        try:
            with self.file.open("ab", buffering=0) as out:
                _write_whole(out.fileno(), data)
            self.waiting = []
            self.held.unlink(missing_ok=True)
        except OSError as error:
            return error
        return None

    def truncate(self, step: int) -> None:
        """Drop lines of steps after `step`, and a torn last line."""
        if not self.file.is_file():
            return
        kept = []
        for line in self.file.read_text(encoding="utf-8").splitlines():
            try:
                if json.loads(line)["step"] <= step:
                    kept.append(line)
            except ValueError:  # the line that was being written when the run died
                continue
        partial = self.file.with_suffix(".partial")
        partial.write_text("".join(f"{line}\n" for line in kept), encoding="utf-8")
        partial.replace(self.file)


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Read metrics.jsonl of a run directory; a torn last line is left out."""
    return _parsed((path / METRICS).read_text(encoding="utf-8"))


def _rows(file: Path) -> list[dict[str, Any]]:
    return _parsed(file.read_text(encoding="utf-8")) if file.is_file() else []


def _parsed(text: str) -> list[dict[str, Any]]:
    rows = []
    for line in text.splitlines():
        try:
            rows.append(json.loads(line))
        except ValueError:
            break
    return rows


def _line(row: dict[str, Any]) -> str:
    return f"{redact(json.dumps(row))}\n"


def _write_whole(descriptor: int, data: bytes) -> None:
    """Write at the end of a file; what a full disk took of it is taken back."""
    end = os.fstat(descriptor).st_size
    view = memoryview(data)
    try:
        while view:
            view = view[os.write(descriptor, view) :]
    except OSError:
        if os.fstat(descriptor).st_size > end:
            os.ftruncate(descriptor, end)
        raise
