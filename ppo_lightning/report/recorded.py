"""The token ledger of recorded steps: from the rows of a dump, or from a step's metrics alone. Imports no torch."""

from dataclasses import dataclass
from typing import Any

from ppo_lightning.errors import DataError
from ppo_lightning.metrics.ledger import LOGGED_AS, Counts, Ledger, ledger, ledger_of
from ppo_lightning.report.dumps import Row, dump_rows
from ppo_lightning.report.numbers import rounded
from ppo_lightning.report.reading import Run

WIDTH, DEVICES, NODES = "rollout.response_tokens", "trainer.devices", "trainer.nodes"
MASKING = {"rollout_correction.rollout_rs": "off", "algorithm.mask_truncated": False}
"""Options that leave tokens of a response out of the loss, and their values when they do not."""
EXACT = 9
"""Digits that are embedded, more than are printed."""


@dataclass(frozen=True)
class Lengths:
    """Tokens of each row's prompt and response, and of all responses those that the loss sees."""

    prompts: list[int]
    responses: list[int]
    trained: int


@dataclass(frozen=True)
class Recorded:
    """The ledger of one step.

    Attributes:
        step: its number.
        entries: the ledger.
        logged: what the run logged for entries that are metrics, by the entry's name.
        seconds: wall seconds of the step, if they were logged.
        lengths: of the rows of the step's dump; None: the ledger is made from the step's metrics.
    """

    step: int
    entries: Ledger
    logged: dict[str, float]
    seconds: float | None
    lengths: Lengths | None


def recorded_ledger(run: Run, step: int) -> Recorded:
    """Return the ledger of a step that the run logged.

    Raises:
        DataError: the run has no such step.
    """
    row = next((row for row in run.steps if row["step"] == step), None)
    if row is None:
        there = f"{run.steps[0]['step']} to {run.steps[-1]['step']}" if run.steps else "none"
        raise DataError(f"--step {step} must be a step of {run.path} - it has {there}")
    counts = counts_of(run, row)
    if counts is None:
        raise DataError(f"step {step} of {run.path} logged no lengths: metrics.jsonl lacks response_length/mean")
    logged = {entry: row[key] for entry, key in LOGGED_AS.items() if key in row}
    seconds, rows = _seconds(row), _lengths(run, step, counts)
    if rows is None:
        return Recorded(step, ledger_of(counts, seconds, devices(run)), logged, seconds, None)
    entries = ledger(rows.prompts, rows.responses, run.config[WIDTH], seconds, devices(run), rows.trained)
    return Recorded(step, entries, logged, seconds, rows)


def counts_of(run: Run, row: Row) -> Counts | None:
    """Return the counts behind a step's metrics: means times rows are whole numbers; None where lengths are missing."""
    prompt, response = _value(row, "prompt_length/mean"), _value(row, "response_length/mean")
    total = _value(row, "perf/total_num_tokens")
    if prompt is None or response is None or total is None or not prompt + response:
        return None
    rows = round(total / (prompt + response))
    tokens = round(response * rows)
    aborted, clipped = _value(row, "response/aborted_ratio"), _value(row, "response_length/clip_ratio")
    masked = any(key in run.config and run.config[key] != off for key, off in MASKING.items())
    return Counts(
        sequences=rows,
        prompt_tokens=round(total) - tokens,
        response_tokens=tokens,
        trained_tokens=None if masked else tokens,
        non_aborted=rows - round((aborted or 0.0) * rows),
        clipped=round((clipped or 0.0) * rows),
    )


def all_counts(run: Run) -> dict[str, list[Any]]:
    """Return the counts of every step as columns, for the page."""
    known = [(row, counts) for row in run.steps if (counts := counts_of(run, row)) is not None]
    names = ("sequences", "prompt_tokens", "response_tokens", "trained_tokens", "non_aborted", "clipped")
    columns: dict[str, list[Any]] = {name: [getattr(counts, name) for _, counts in known] for name in names}
    columns |= {"step": [row["step"] for row, _ in known]}
    columns["seconds"] = [rounded(_seconds(row), EXACT) for row, _ in known]
    logged = {
        entry: [rounded(row[key], EXACT) if key in row else None for row, _ in known]
        for entry, key in LOGGED_AS.items()
        if key != "perf/total_num_tokens"
    }
    return columns | {f"logged_{entry}": values for entry, values in logged.items()}


def devices(run: Run) -> int:
    """Return the devices of a run, 1 where its configuration is missing."""
    return run.config.get(DEVICES, 1) * run.config.get(NODES, 1)


def _lengths(run: Run, step: int, counts: Counts) -> Lengths | None:
    """Return the lengths of the dumped rows; None where they are not all there (of one rank only, or none)."""
    file = run.dumps("step").get(step)
    rows = [one for one in dump_rows(file) if one["score"] is not None] if file else []
    if not rows or any("prompt_length" not in one for one in rows) or WIDTH not in run.config:
        return None
    prompts, responses = [one["prompt_length"] for one in rows], [one["response_length"] for one in rows]
    if (sum(prompts), sum(responses)) != (counts.prompt_tokens, counts.response_tokens):
        return None
    return Lengths(prompts, responses, sum(one["trained_tokens"] for one in rows))


def _seconds(row: Row) -> float | None:
    return _value(row, "timing_s/step")


def _value(row: Row, key: str) -> float | None:
    return row[key] if key in row and isinstance(row[key], int | float) else None
