"""The `expect:` block of a recipe: what a run of it must reach, and whether one did. Imports no torch.

    expect:
      metric: val-core/arithmetic/acc/mean@2   # a key of metrics.jsonl
      at_least_times_start: 3.0                # or at_least, at_most, at_most_times_start
      at: last                                 # or max, min: which of its values counts; last if left out

One block, or a list of them. Several bounds in one block must all hold.
"""

import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from ppo_lightning.config.load import nearest
from ppo_lightning.config.schema import Config
from ppo_lightning.errors import ConfigError
from ppo_lightning.metrics.registry import lookup

METRIC, AT = "metric", "at"
BOUNDS: dict[str, tuple[Callable[[float, float], bool], bool]] = {
    "at_least": (operator.ge, False),
    "at_most": (operator.le, False),
    "at_least_times_start": (operator.ge, True),
    "at_most_times_start": (operator.le, True),
}
"""Bound -> (comparison with the measured value, whether it multiplies the first value)."""

CHOICES: dict[str, Callable[[list[float]], float]] = {"last": lambda values: values[-1], "max": max, "min": min}
"""`at` -> which of a metric's values counts."""


@dataclass(frozen=True)
class Expectation:
    """One bound on one metric.

    Attributes:
        metric: key in metrics.jsonl.
        bound: one of `BOUNDS`.
        value: the bound's number.
        at: one of `CHOICES`.
    """

    metric: str
    bound: str
    value: float
    at: str = "last"

    def __str__(self) -> str:
        """Read as `KEY last at_least 0.5`."""
        return f"{self.metric} {self.at} {self.bound} {self.value:g}"


@dataclass(frozen=True)
class Outcome:
    """An expectation held against a run.

    Attributes:
        expectation: what was expected.
        measured: the value that counts; None: the run has none.
        start: the metric's first value.
        ok: whether it holds.
        detail: the comparison in words.
    """

    expectation: Expectation
    measured: float | None
    start: float | None
    ok: bool
    detail: str


def read_expectations(block: Any) -> list[Expectation]:
    """Return the expectations of an `expect:` block.

    Raises:
        ConfigError: with one line per mistake.
    """
    problems: list[str] = []
    blocks = block if isinstance(block, list) else [block] if block else []
    found = [one for part in blocks for one in _read(part, problems)]
    if problems:
        raise ConfigError("\n".join(problems))
    return found


def check_expectations(expectations: Iterable[Expectation], config: Config) -> list[str]:
    """Return what is wrong with them under a configuration: keys that no run logs, or not this one."""
    problems = []
    for one in expectations:
        try:
            why = lookup(one.metric).absent_because(config)
        except ConfigError as error:
            problems.append(f"expect: {error}")
            continue
        if why:
            problems.append(f"expect: {one.metric} is not logged by this recipe: {why}")
    return problems


def evaluate(expectation: Expectation, rows: list[dict[str, Any]]) -> Outcome:
    """Hold an expectation against the rows of metrics.jsonl."""
    values = [float(row[expectation.metric]) for row in rows if row.get(expectation.metric) is not None]
    if not values:
        return Outcome(expectation, None, None, ok=False, detail="the run has not logged it")
    compare, times_start = BOUNDS[expectation.bound]
    measured, start = CHOICES[expectation.at](values), values[0]
    sign = ">=" if compare is operator.ge else "<="
    if not times_start:
        ok = compare(measured, expectation.value)
        return Outcome(expectation, measured, start, ok, f"{measured:.4g}, expected {sign} {expectation.value:g}")
    if len(values) < 2 or start <= 0:
        why = "it was logged once" if len(values) < 2 else f"it started at {start:g}, of which a multiple says nothing"
        return Outcome(expectation, measured, start, ok=False, detail=f"{measured:.4g}, but {why}")
    bound = start * expectation.value
    detail = f"{measured:.4g}, expected {sign} {expectation.value:g} x {start:.4g} (its first value) = {bound:.4g}"
    return Outcome(expectation, measured, start, compare(measured, bound), detail)


def _read(part: Any, problems: list[str]) -> list[Expectation]:
    if not isinstance(part, dict) or not isinstance(part.get(METRIC), str):
        problems.append(f"expect: each entry must name a `metric`, such as val-core/gsm8k/acc/mean@1 - got {part!r}")
        return []
    names = [METRIC, AT, *BOUNDS]
    wrong = [name for name in part if name not in names]
    problems += [f"expect: `{name}` is not one of {', '.join(names)}.{nearest(str(name), names)}" for name in wrong]
    at = part.get(AT, "last")
    if at not in CHOICES:
        problems.append(f"expect: at={at!r} must be one of {', '.join(CHOICES)}")
    bounds = {name: part[name] for name in BOUNDS if name in part}
    if not bounds and not wrong:
        problems.append(f"expect: {part[METRIC]} needs a bound: {', '.join(BOUNDS)}")
    for name, value in bounds.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            problems.append(f"expect: {name} must be a number - got {value!r}")
    return [Expectation(part[METRIC], name, value, at) for name, value in bounds.items()] if not problems else []
