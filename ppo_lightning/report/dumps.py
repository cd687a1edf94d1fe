"""The rows of rollout dumps: JSONL with verl's keys, or Parquet with TRL's columns. Imports no torch."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Row = dict[str, Any]
SUFFIXES = (".jsonl", ".parquet")
RENAMED = {"prompt": "input", "completion": "output", "reward": "score"}
NESTED = ("tokens", "extra_info")
"""Columns that are JSON in a Parquet file."""


def dumps(folder: Path, kind: str) -> dict[int, Path]:
    """Return the dumps of `step` or `validation` by step."""
    found = {}
    for file in sorted(folder.glob(f"{kind}_*")):
        number = file.stem.rpartition("_")[2]
        if file.suffix in SUFFIXES and number.isdigit():
            found[int(number)] = file
    return found


def dump_rows(file: Path) -> Iterator[Row]:
    """Yield the rows of a dump under verl's keys."""
    return _parquet_rows(file) if file.suffix == ".parquet" else json_lines(file)


def json_lines(file: Path) -> Iterator[Row]:
    """Yield the objects of a JSONL file; lines that are torn are left out, and a missing file has none."""
    if not file.is_file():
        return
    with file.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            try:
                row = json.loads(line)
            except ValueError:
                continue
            if isinstance(row, dict):
                yield row


def _parquet_rows(file: Path) -> Iterator[Row]:
    import pyarrow
    import pyarrow.parquet

    try:
        table = pyarrow.parquet.read_table(file)
    except (pyarrow.ArrowInvalid, OSError):  # torn
        return
    for row in table.to_pylist():
        named = {RENAMED.get(key, key): value for key, value in row.items() if value is not None or key == "reward"}
        yield named | {key: json.loads(named[key]) for key in NESTED if isinstance(named.get(key), str)}
