"""Files of rollouts: verl's JSONL, or Parquet with the columns of TRL's completions."""

import json
from pathlib import Path
from typing import Any

from ppo_lightning.secrets import redact

Rows = list[dict[str, Any]]


def write_jsonl(folder: Path, name: str, rows: Rows) -> None:
    """Write `name`.jsonl with verl's keys (input, output, gts, score, step) and ours, whole or not at all."""
    text = "".join(f"{json.dumps(row, ensure_ascii=False, default=str)}\n" for row in rows)
    partial = _partial(folder, name)
    partial.write_text(redact(text), encoding="utf-8", errors="replace")
    partial.replace(folder / f"{name}.jsonl")


def write_parquet(folder: Path, name: str, rows: Rows) -> None:
    """Write `name`.parquet with TRL's columns (step, prompt, completion, reward, advantage) and ours."""
    import pyarrow
    import pyarrow.parquet

    renamed = [_trl(row) for row in rows]
    names = dict.fromkeys(key for row in renamed for key in row)
    table = pyarrow.table({key: _column([row.get(key) for row in renamed]) for key in names})
    partial = _partial(folder, name)
    pyarrow.parquet.write_table(table, partial)
    partial.replace(folder / f"{name}.parquet")


def _partial(folder: Path, name: str) -> Path:
    folder.mkdir(exist_ok=True)
    return folder / f"{name}.partial"


def _trl(row: dict[str, Any]) -> dict[str, Any]:
    """Rename a row's columns; what is nested, and so may differ in type from row to row, becomes JSON."""
    prompt = "\n".join(f"{message['role']}\n{message['content']}" for message in row["input"])
    named = {
        "step": row["step"],
        "prompt": prompt,
        "completion": row["output"],
        "reward": row["score"],
        "advantage": row.get("advantage"),
    }
    beside = {key: value for key, value in row.items() if key not in ("step", "input", "output", "score", "advantage")}
    return {key: _cell(value) for key, value in (named | beside).items()}


def _column(values: list[Any]) -> list[Any]:
    """Give a column one type: text where any value is text, else numbers as they are or as floats."""
    present = [value for value in values if value is not None]
    kinds = {type(value) for value in present}
    if len(kinds) < 2:
        return values
    kind = str if str in kinds else float
    return [None if value is None else kind(value) for value in values]


def _cell(value: Any) -> Any:
    if isinstance(value, str):
        return redact(value).encode("utf-8", "replace").decode()
    if value is None or isinstance(value, int | float):
        return value
    return redact(json.dumps(value, default=str))


WRITERS = {"jsonl": write_jsonl, "parquet": write_parquet}
