"""Metrics as curves: thinned so that every peak stays, in the sections that panels declare. Imports no torch."""

from collections.abc import Iterable, Sequence
from typing import Any

from ppo_lightning.errors import ConfigError
from ppo_lightning.metrics.guide import guide_to
from ppo_lightning.metrics.panels import PANELS
from ppo_lightning.metrics.registry import lookup
from ppo_lightning.report.numbers import rounded
from ppo_lightning.report.reading import Run

POINTS = 1200
"""Most points of one curve: more than a chart has pixels."""

TREND = 100
"""Points of a thinned curve's trend."""

FIRST = ("reward", "validation")
"""Sections that a reader of a finished run looks at before all others."""

REST = "everything else"
Point = tuple[int, float | None]


def curves(run: Run) -> dict[str, list[list[Any]]]:
    """Return {key: [steps, values]} of every metric, thinned; steps are differences, so that they compress well.

    A thinned line has [steps, values] of its trend after them, or every chart of a long noisy run would be a blot.
    """
    points: dict[str, list[Point]] = {key: [] for key in run.keys}
    for row in run.metrics:
        for key, value in row.items():
            if key != "step":
                points[key].append((row["step"], value))
    found = {}
    for key, line in points.items():
        found[key] = _columns(thin(line, POINTS)) + (_columns(trend(line)) if len(line) > POINTS else [])
    return found


def trend(points: Sequence[Point]) -> Sequence[Point]:
    """Return the means of equal stretches, each at its middle step."""
    found = []
    for part in _stretches(points, TREND):
        known = [value for _, value in part if value is not None]
        if known:
            found.append((part[len(part) // 2][0], sum(known) / len(known)))
    return found


def thin(points: Sequence[Point], limit: int) -> Sequence[Point]:
    """Return at most about `limit` points: of each stretch the first, the lowest, the highest and the last.

    Drawn as a line the result covers the same pixels, because no peak is left out; a gap (None) stays a gap.
    """
    if len(points) <= limit:
        return points
    kept: list[Point] = []
    for part in _stretches(points, max(limit // 4, 1)):
        known = [(value, step) for step, value in part if value is not None]
        chosen = {part[0], part[-1]}
        if known:
            chosen |= {(step, value) for value, step in (min(known), max(known))}
        if len(known) < len(part):
            chosen.add(next(point for point in part if point[1] is None))
        kept += sorted(chosen, key=lambda point: point[0])
    return kept


def sections(keys: Iterable[str]) -> list[dict[str, Any]]:
    """Return the sections of the page: a title and charts, each with a title and its keys among those logged."""
    logged = list(keys)
    found, shown = [], set()
    for title, panels in sorted(PANELS.items(), key=lambda item: item[0] not in FIRST):
        charts = []
        for panel in panels:
            among = panel.among(logged)
            if among:
                shown |= set(among)
                charts.append({"title": panel.title, "keys": among})
        if charts:
            found.append({"title": title, "charts": charts})
    families: dict[str, list[str]] = {}
    for key in sorted(set(logged) - shown):
        stem, _, last = key.rpartition("/")
        families.setdefault(stem if last in ("mean", "max", "min") else key, []).append(key)
    rest = [{"title": family, "keys": among} for family, among in families.items()]
    return [*found, {"title": REST, "charts": rest}] if rest else found


def definitions(keys: Iterable[str]) -> dict[str, dict[str, str]]:
    """Return what each key means, from the registry and the guide; a key that they do not know is absent."""
    found = {}
    for key in keys:
        try:
            spec = lookup(key)
        except ConfigError:
            continue
        found[key] = {
            "reduction": spec.reduction,
            "numerator": spec.numerator,
            "denominator": spec.denominator,
            "unit": spec.unit,
            "stage": spec.stage,
        }
        for guide in guide_to(spec.key)[:1]:
            found[key] |= {"meaning": guide.meaning, "healthy": guide.healthy, "action": guide.action}
    return found


def _stretches(points: Sequence[Point], count: int) -> list[Sequence[Point]]:
    size = len(points)
    return [points[size * number // count : size * (number + 1) // count] for number in range(count)]


def _columns(points: Sequence[Point]) -> list[list[Any]]:
    steps = [step for step, _ in points]
    gaps = [after - before for before, after in zip([0, *steps], steps, strict=False)]
    return [gaps, [rounded(value) for _, value in points]]
