"""One HTML file with everything in it: no network, no other file. Imports no torch.

Text of a run (prompts, responses, configuration) enters the page escaped or compressed, and the page runs no script but
its own: a response cannot become markup.
"""

import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from ppo_lightning import __version__
from ppo_lightning.errors import DataError
from ppo_lightning.report import ledger_words
from ppo_lightning.report.browser import BYTES, Samples, samples
from ppo_lightning.report.curves import curves, definitions, sections
from ppo_lightning.report.embed import as_json, packed, script_hash
from ppo_lightning.report.headline import Headline, headlines, short, state
from ppo_lightning.report.reading import Run, read_runs
from ppo_lightning.report.recorded import all_counts, devices
from ppo_lightning.report.timing import timing

ASSETS = Path(__file__).parent / "assets"
FILE = "report.html"
UPLOT_VERSION = "1.6.32"
UPLOT = ("uplot/uPlot.iife.min.js",)
REPORT_SCRIPTS = ("core.js", "ledger.js", "curves.js", "timing.js", "tokens.js", "samples.js", "report.js")
LEDGER_SCRIPTS = ("core.js", "ledger.js", "ledger_page.js")


def write_report(paths: Sequence[Path], out: Path | None = None) -> Path:
    """Write the report of one run, or the comparison of several, and return its file.

    Args:
        paths: run directories.
        out: the file; None: report.html in the only run directory, or in the current folder.

    Raises:
        DataError: a path is no run directory, or the file cannot be written.
    """
    target = out or (paths[0] / FILE if len(paths) == 1 else Path(FILE))
    return write(target, report_html(read_runs(list(paths))))


def write(target: Path, text: str) -> Path:
    """Write a page, whole or not at all."""
    partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
    try:
        partial.write_text(text, encoding="utf-8", errors="replace")
        partial.replace(target)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise DataError(f"--out {target} must be a file that can be written - {error.strerror}") from None
    return target


def report_html(runs: Sequence[Run]) -> str:
    """Return the page of one or several runs."""
    keys = sorted({key for run in runs for key in run.keys})
    parts = [samples(run, BYTES // len(runs)) for run in runs]
    core = {
        "runs": [_embedded(run, part) for run, part in zip(runs, parts, strict=True)],
        "sections": sections(keys),
        "metrics": definitions(keys),
        "ledger": ledger_words.for_page(),
    }
    return _render(
        "report.html.j2",
        (*UPLOT, *REPORT_SCRIPTS),
        ("uplot/uPlot.min.css", "report.css"),
        runs=runs,
        core=packed(as_json(core)),
        blocks=[part.blocks for part in parts],
        states={run.name: state(run) for run in runs},
        headlines={run.name: headlines(run) for run in runs},
        table=_table(runs),
        changed=_changed(runs),
        uplot=UPLOT_VERSION,
        uplot_licence=(ASSETS / "uplot/LICENSE").read_text(encoding="utf-8"),
    )


def ledger_html(
    settings: dict[str, float], responses: Sequence[int] = (), prompts: Sequence[int] = (), title: str = "Token ledger"
) -> str:
    """Return the interactive token ledger.

    Args:
        settings: what it opens with (see `ledger_settings`).
        responses: response lengths to open with, instead of the settings' even spread.
        prompts: prompt lengths likewise.
        title: of the page.
    """
    given = {"responses": list(responses), "prompts": list(prompts)}
    data = packed(as_json({"settings": settings, "given": given, "ledger": ledger_words.for_page()}))
    return _render("ledger.html.j2", LEDGER_SCRIPTS, ("report.css", "ledger.css"), core=data, title=title)


def _embedded(run: Run, part: Samples) -> dict[str, Any]:
    return {
        "name": run.name,
        "curves": curves(run),
        "timing": timing(run),
        "counts": all_counts(run),
        "devices": devices(run),
        "samples": {"index": part.index, "rule": part.rule},
    }


def _table(runs: Sequence[Run]) -> list[tuple[str, str | None, list[Headline | None]]]:
    """Return the headline numbers of several runs: (label, metric key, one per run)."""
    columns = [{line.label: line for line in headlines(run)} for run in runs]
    labels = {line.label: line.key for column in columns for line in column.values()}
    return [(label, key, [column.get(label) for column in columns]) for label, key in labels.items()]


def _changed(runs: Sequence[Run]) -> list[tuple[str, list[str], str, bool]]:
    """Return options that are not at their default in some run: (key, value per run, default, whether runs differ)."""
    changes = [run.changed() for run in runs]
    keys = sorted({key for change in changes for key in change})
    rows = []
    for key in keys:
        default = next(change[key][1] for change in changes if key in change)
        values = [
            str(run.config[key]) if key in run.config else "(not there)" if run.config else "(no config.yaml)"
            for run in runs
        ]
        rows.append((key, values, str(default), len(set(values)) > 1))
    return rows


def _render(template: str, scripts: Sequence[str], styles: Sequence[str], **values: Any) -> str:
    environment = Environment(
        loader=FileSystemLoader(ASSETS),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    texts = [(ASSETS / name).read_text(encoding="utf-8") for name in scripts]
    values |= {
        "short": short,
        "version": __version__,
        "made": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "scripts": [Markup(text) for text in texts],
        "style": Markup("\n".join((ASSETS / name).read_text(encoding="utf-8") for name in styles)),
        "script_sources": Markup(" ".join(script_hash(text) for text in texts)),
    }
    return environment.get_template(template).render(values)
