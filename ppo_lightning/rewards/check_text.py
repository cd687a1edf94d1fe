"""What `reward-check` prints: rows that need attention first, then examples, then totals."""

from collections import Counter
from typing import Any

from ppo_lightning.rewards.check import FULL_MARKS, Checked, Report
from ppo_lightning.rewards.sample import FAULTS

SHOWN = 20
TEXT_WIDTH = 48


def render(report: Report, shown: int = SHOWN) -> list[str]:
    """Return the report as lines: what needs attention first, then examples, then the totals."""
    bad = [row for row in report.rows if report.amiss(row)]
    rest = [row for row in report.rows if not report.amiss(row)]
    listed = (bad + rest[: max(0, shown - len(bad))])[:shown]
    lines = [_header(report), *(_row(report, row) for row in listed)]
    if len(listed) < len(report.rows):
        lines.append(f"  ... {len(report.rows) - len(listed)} more")
    return [*lines, *summary(report)]


def _header(report: Report) -> str:
    parts = "".join(f"{name[:12]:>13}" for name in report.part_names) if len(report.part_names) > 1 else ""
    return f"{'row':>5} {'score':>8}{parts} {'seconds':>8}  {'extracted':<16} {'ground truth':<16} response"


def _row(report: Report, row: Checked) -> str:
    scored = row.scored
    score = scored.fault if scored.score is None else f"{scored.score:.4g}"
    names = report.part_names if len(report.part_names) > 1 else []
    parts = "".join(f"{_short(scored.extra.get(name), 12):>13}" for name in names)
    extracted = _short(scored.extra.get("pred"), 16)
    text = _short(row.sample.solution_str, TEXT_WIDTH, end=True)
    line = f"{row.sample.row:>5} {score or '':>8}{parts} {scored.seconds:>8.3f}  {extracted:<16} "
    line += f"{_short(row.sample.ground_truth, 16):<16} {text}"
    detail = f"\n        {scored.detail.strip().splitlines()[-1]}" if scored.detail else ""
    recorded = f"\n        recorded score {row.recorded:.4g}" if row.differs else ""
    return line + detail + recorded


def _short(value: Any, width: int, end: bool = False) -> str:
    text = "-" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
    text = " ".join(text.split())
    if len(text) <= width:
        return text
    return f"...{text[3 - width :]}" if end else f"{text[: width - 3]}..."


def summary(report: Report) -> list[str]:
    """Return the totals: marks, faults by kind, seconds, columns, and what was asked."""
    total = len(report.rows)
    scores = [row.scored.score for row in report.rows if row.scored.score is not None]
    seconds = sorted(row.scored.seconds for row in report.rows)
    lines = [f"{total} responses, {len(scores)} scored" + (f", mean {sum(scores) / len(scores):.4g}" if scores else "")]
    for name in report.part_names if len(report.part_names) > 1 else []:
        values = [row.scored.extra[name] for row in report.rows if name in row.scored.extra]
        lines.append(f"  {name}: {len(values)} scored" + (f", mean {sum(values) / len(values):.4g}" if values else ""))
    if seconds:
        lines.append(f"seconds per response: median {seconds[total // 2]:.4f}, longest {seconds[-1]:.4f}")
    faults = Counter(row.scored.fault for row in report.rows if row.scored.fault)
    lines.append("faults: " + (", ".join(f"{faults[kind]} {kind}" for kind in FAULTS if faults[kind]) or "none"))
    if report.is_gold:
        verdict = "full marks" if report.full == total else "NOT full marks: the reward misses right answers"
        lines.append(f"gold answers: {report.full} of {total} score {FULL_MARKS:g}: {verdict}")
    if differing := sum(row.differs for row in report.rows):
        lines.append(f"{differing} recorded scores differ from the ones scored now")
    return lines
