"""Where the seconds went: stages of each step, stacked, and their sums. Imports no torch."""

from typing import Any

from ppo_lightning.metrics.registry import METRICS
from ppo_lightning.report.dumps import Row
from ppo_lightning.report.numbers import rounded
from ppo_lightning.report.reading import Run
from ppo_lightning.stages import STAGES

COLUMNS = 240
"""Most columns of the stacked chart."""

WITHIN = ("update_weights", *(stage.timer for stage in STAGES if stage.timer != "settle"))
"""Timers that are parts of timing_s/step and do not overlap."""

AFTER = ("testing", "save_checkpoint")
"""Timers of what follows a step."""

OTHER = "other"


def timing(run: Run) -> dict[str, Any]:
    """Return {stages, steps, span, seconds, total, share, per_token}: mean seconds per column of `span` steps.

    Columns are means over consecutive steps, so that their areas add up to the run's seconds.
    """
    rows = [row for row in run.steps if _number(row, "timing_s/step") is not None]
    parts = [_parts(row) for row in rows]
    stages = [name for name in (*WITHIN, OTHER, *AFTER) if any(part[name] for part in parts)]
    span = -(-len(rows) // COLUMNS) or 1
    blocks = [range(start, min(start + span, len(rows))) for start in range(0, len(rows), span)]
    total = {name: sum(part[name] for part in parts) for name in stages}
    everything = sum(total.values())
    return {
        "stages": stages,
        "what": {name: _what(name) for name in stages},
        "span": span,
        "steps": [rows[block[-1]]["step"] for block in blocks],
        "seconds": [
            [rounded(sum(parts[place][name] for place in block) / len(block)) for block in blocks] for name in stages
        ],
        "total": [rounded(total[name]) for name in stages],
        "share": [rounded(total[name] / everything) if everything else None for name in stages],
        "per_token": [_per_token(rows, name) for name in stages],
        "everything": rounded(everything),
    }


def _parts(row: Row) -> dict[str, float]:
    parts = {name: _number(row, f"timing_s/{name}") or 0.0 for name in (*WITHIN, *AFTER)}
    rest = (_number(row, "timing_s/step") or 0.0) - sum(parts[name] for name in WITHIN)
    return parts | {OTHER: max(rest, 0.0)}


def _number(row: Row, key: str) -> float | None:
    return row[key] if key in row and isinstance(row[key], int | float) else None


def _per_token(rows: list[Row], name: str) -> float | None:
    """Return the mean milliseconds per token over the steps that logged it."""
    values = [value for row in rows if (value := _number(row, f"timing_per_token_ms/{name}")) is not None]
    return rounded(sum(values) / len(values)) if values else None


def _what(name: str) -> str:
    key = f"timing_s/{name}"
    if name == OTHER:
        return "what is left of the step: drawing prompts, measuring, writing"
    return METRICS[key].numerator.removeprefix("wall seconds of ") if key in METRICS else name
