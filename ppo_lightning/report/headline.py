"""The few numbers that say how a run went. Imports no torch."""

from dataclasses import dataclass
from typing import Any

from ppo_lightning.report.numbers import printed, rounded, seconds
from ppo_lightning.report.reading import Run

STEP_LIMIT = "trainer.steps"


@dataclass(frozen=True)
class Headline:
    """One number of a run.

    Attributes:
        label: what it is.
        value: as it is printed.
        note: what stands under it.
        key: the metric it is of, if it is of one.
        bad: whether it asks for attention.
    """

    label: str
    value: str
    note: str = ""
    key: str | None = None
    bad: bool = False


def state(run: Run) -> tuple[str, bool]:
    """Return how the run ended in words, and whether it ended before its last step."""
    done = run.steps[-1]["step"] if run.steps else 0
    planned = run.config.get(STEP_LIMIT)
    if run.failure is None and (planned is None or done >= planned):
        return f"finished, {done} steps" if planned is not None else f"{done} steps", False
    return f"ended after step {done}" + ("" if planned is None else f" of {planned}"), True


def headlines(run: Run) -> list[Headline]:
    """Return the numbers in the order of interest; what the run did not log is left out."""
    text, early = state(run)
    found = [Headline("state", text, bad=early)]
    for key in run.keys:
        if key.startswith("val-core/") and "/mean@" in key:
            source, variable = key.split("/")[1], "/".join(key.split("/")[2:])
            found += _course(run, key, f"held out: {source}", variable)
    found += _course(run, "critic/score/mean", "mean score of a step")
    found += _course(run, "response_length/mean", "mean response length", "tokens")
    found += _speed(run)
    found += _worst(run, "training/rollout_probs_diff_mean", "largest engine gap")
    found += _worst(run, "actor/ppo_kl", "largest KL of an update")
    if run.warnings:
        found.append(Headline("warnings", printed(len(run.warnings)), bad=True))
    return found


def _course(run: Run, key: str, label: str, unit: str = "") -> list[Headline]:
    """Return from where to where a metric went, and its best."""
    points = [(row["step"], row[key]) for row in run.metrics if key in row and row[key] is not None]
    if not points:
        return []
    (_, first), (last_step, last) = points[0], points[-1]
    best_step, best = max(points, key=lambda point: point[1])
    note = f"best {short(best)} at step {best_step}" if "length" not in label else f"longest mean {short(best)}"
    value = f"{short(first)} → {short(last)}" if len(points) > 1 else f"{short(last)} at step {last_step}"
    return [Headline(label, value, f"{unit}; {note}" if unit else note, key)]


def _speed(run: Run) -> list[Headline]:
    wall = sum(_of(row, "timing_s/step") + _of(row, "timing_s/testing") + _of(row, "timing_s/save_checkpoint")
               for row in run.metrics)  # fmt: skip
    device_seconds = sum(
        _of(row, "perf/total_num_tokens") / row["perf/throughput"] for row in run.steps if row.get("perf/throughput")
    )
    tokens = sum(_of(row, "perf/total_num_tokens") for row in run.steps)
    found = [Headline("time", seconds(wall), "steps, validation and saving")] if wall else []
    if device_seconds:
        note = f"{printed(int(tokens))} tokens in all"
        found.append(Headline("tokens per second and device", short(tokens / device_seconds), note, "perf/throughput"))
    return found


def _worst(run: Run, key: str, label: str) -> list[Headline]:
    points = [(abs(row[key]), row["step"]) for row in run.steps if key in row and row[key] is not None]
    if not points:
        return []
    value, step = max(points)
    return [Headline(label, short(value), f"at step {step}", key)] if value else []


def _of(row: dict[str, Any], key: str) -> float:
    return row[key] or 0.0 if key in row else 0.0


def short(value: float) -> str:
    """Return three significant digits."""
    if value and not 1e-3 <= abs(value) < 1e6:
        return f"{value:.1e}"
    return printed(rounded(float(f"{value:.3g}")))
