"""`ledger`: the denominators of a step, of a recipe or a recorded run, as a table or an interactive page. No torch."""

import argparse
from pathlib import Path

from ppo_lightning.config.schema import Config
from ppo_lightning.errors import ConfigError
from ppo_lightning.report.ledger_console import recipe_ledger, recorded_table
from ppo_lightning.report.ledger_settings import settings_of, settings_of_step
from ppo_lightning.report.page import ledger_html, write
from ppo_lightning.report.reading import read_run
from ppo_lightning.report.recorded import recorded_ledger
from ppo_lightning.verbs.recipe_option import add_recipe_option, load_recipe
from ppo_lightning.verbs.say import say


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_recipe_option(parser)
    parser.add_argument("--run", dest="run_dir", metavar="DIR", type=Path, help="a recorded run instead of a recipe")
    parser.add_argument("--step", type=int, metavar="N", help="the step of the run (default: its last)")
    parser.add_argument("--lengths", type=_lengths, default=[], metavar="8,4,0,8", help="response lengths, repeated")
    parser.add_argument("--prompt-lengths", type=_lengths, default=[], metavar="3,2", help="prompt lengths, repeated")
    parser.add_argument("--seconds", type=float, metavar="S", help="wall seconds of the step, for perf/throughput")
    parser.add_argument("--html", action="store_true", help="write the interactive page")
    parser.add_argument("--out", type=Path, metavar="FILE", help="where to (default: ledger.html)")


def run(options: argparse.Namespace) -> int:
    """Print the ledger, or write the page."""
    if options.run_dir is not None and (options.config or options.overrides or options.lengths or options.seconds):
        raise ConfigError("ledger --run takes a recorded step as it is - leave out --config, overrides and lengths")
    if options.seconds is not None and options.seconds <= 0:
        raise ConfigError(f"--seconds must be more than 0 - got {options.seconds:g}")
    if options.run_dir is not None:
        _of_run(options)
    else:
        _of_recipe(options)
    return 0


def _of_run(options: argparse.Namespace) -> None:
    recorded = read_run(options.run_dir)
    step = options.step if options.step is not None else recorded.steps[-1]["step"] if recorded.steps else 0
    if options.html:
        title = f"Token ledger of {recorded.name}, step {step}"
        _write(options, ledger_html(*settings_of_step(recorded, step), title))
    else:
        recorded_table(recorded_ledger(recorded, step))


def _of_recipe(options: argparse.Namespace) -> None:
    config: Config = load_recipe(options).config
    if options.html:
        _write(options, ledger_html(settings_of(config, options.seconds), options.lengths, options.prompt_lengths))
    else:
        recipe_ledger(config, options.lengths, options.prompt_lengths, options.seconds)


def _write(options: argparse.Namespace, text: str) -> None:
    say(f"wrote {write(options.out or Path('ledger.html'), text)}")


def _lengths(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be whole numbers with commas between - got {text!r}") from None
