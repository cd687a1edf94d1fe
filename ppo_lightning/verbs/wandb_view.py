"""`wandb-view`: a W&B workspace with the panels that matter, saved at W&B or shown. Imports no torch."""

import argparse

from ppo_lightning.verbs.recipe_option import add_recipe_option, load_recipe
from ppo_lightning.verbs.say import say
from ppo_lightning.wandb_view import dry_run, save


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_recipe_option(parser)
    parser.add_argument("--entity", metavar="NAME", help="user or team that the project belongs to; default: yours")
    parser.add_argument(
        "--dry-run", metavar="FILE", nargs="?", const="-", help="send nothing: write the view as JSON, or print it"
    )


def run(options: argparse.Namespace) -> int:
    """Save the workspace of logging.project at W&B, or show what it would hold."""
    project = load_recipe(options).config.logging.project
    say(dry_run(project, options.dry_run) if options.dry_run else save(project, options.entity))
    return 0
