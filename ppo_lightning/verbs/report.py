"""`report`: one page of a run, or of several side by side. Imports no torch."""

import argparse
from pathlib import Path

from ppo_lightning.report.page import write_report
from ppo_lightning.verbs.say import say


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN_DIR", help="run directory; several are compared")
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help="default: report.html in the run directory, of several in the current folder",
    )


def run(options: argparse.Namespace) -> int:
    """Write the page."""
    file = write_report(options.runs, options.out)
    say(f"wrote {file} ({file.stat().st_size / 1e6:.1f} MB)")
    return 0
