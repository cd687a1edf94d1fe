"""The report that every run leaves behind, also one that died. Imports no torch."""

import sys
from collections.abc import Callable
from pathlib import Path

from ppo_lightning.report.reading import FAILURE


def leave_report(path: Path, say: Callable[[str], None]) -> None:
    """Write the run's report; call it where the run ends, whatever ended it.

    Nothing that goes wrong here changes how the run ends: it is said, and the report can be made later.

    Args:
        path: the run directory.
        say: takes a line for the console.
    """
    failure = sys.exc_info()[1]
    try:
        _remember(path / FAILURE, failure)
        from ppo_lightning.report.page import write_report

        say(f"report: {write_report([path])}")
    except Exception as error:  # noqa: BLE001 - a page must not cost a run
        say(f"report: not written, {type(error).__name__}: {error}; try again: python -m ppo_lightning report {path}")


def _remember(file: Path, failure: BaseException | None) -> None:
    """Keep what ended the run in words; a run that ends well, by a signal or by hand has no failure."""
    if isinstance(failure, Exception):
        file.write_text(f"{type(failure).__name__}: {failure}\n", encoding="utf-8", errors="replace")
    else:
        file.unlink(missing_ok=True)
