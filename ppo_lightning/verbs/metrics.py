"""`metrics`: the metrics that a recipe logs and those it does not, or one explained. Imports no torch."""

import argparse

from ppo_lightning.metrics.listing import explain, listing
from ppo_lightning.verbs.recipe_option import add_recipe_option, load_recipe
from ppo_lightning.verbs.say import say


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_recipe_option(parser)
    parser.add_argument("key", nargs="?", help="one metric key to explain")


def run(options: argparse.Namespace) -> int:
    """List or explain metrics."""
    say(explain(options.key) if options.key else listing(load_recipe(options).config))
    return 0
