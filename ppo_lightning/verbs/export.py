"""`export`: copy the trained model, or its adapter, out of a run."""

import argparse

from ppo_lightning.verbs.say import say


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("source", metavar="RUN_OR_CHECKPOINT", help="run directory (its newest checkpoint), or one")
    parser.add_argument("--to", required=True, metavar="DIR", help="folder to make")
    parser.add_argument("--adapter", action="store_true", help="the LoRA adapter alone, as a peft folder")


def run(options: argparse.Namespace) -> int:
    """Copy it."""
    from ppo_lightning.export import export

    export(options.source, options.to, options.adapter, say)
    return 0
