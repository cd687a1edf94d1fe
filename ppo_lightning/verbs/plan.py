"""`plan`: what a recipe needs of each device's memory, estimated from the model's config.json alone."""

import argparse

from ppo_lightning.verbs.recipe_option import add_recipe_option, load_recipe
from ppo_lightning.verbs.say import say


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_recipe_option(parser)
    parser.add_argument("--memory-gib", type=float, help="memory of one device; default: that of this machine")


def run(options: argparse.Namespace) -> int:
    """Print the estimate; 0: it fits, 1: it does not."""
    from ppo_lightning.config.validate import validate

    loaded = load_recipe(options)
    validate(loaded.config)
    from ppo_lightning.build import quiet
    from ppo_lightning.plan.show import show

    quiet()
    return show(loaded.config, options.memory_gib, say)
