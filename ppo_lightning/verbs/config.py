"""`config`: every option with its value and origin. Imports no torch."""

import argparse

from ppo_lightning.config.json_schema import to_text
from ppo_lightning.config.load import get
from ppo_lightning.config.schema import leaves
from ppo_lightning.config.validate import validate
from ppo_lightning.verbs.recipe_option import add_recipe_option, load_recipe
from ppo_lightning.verbs.say import say


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_recipe_option(parser)
    parser.add_argument("--json-schema", action="store_true", help="print the JSON Schema of a recipe, for editors")


def run(options: argparse.Namespace) -> int:
    """Print the resolved configuration, then complain about what does not go together."""
    if options.json_schema:
        say(to_text().rstrip("\n"))
        return 0
    loaded = load_recipe(options)
    width = max(len(f"{key}: {get(loaded.config, key)}") for key in leaves())
    for key in leaves():
        say(f"{f'{key}: {get(loaded.config, key)}':<{min(width, 72)}}  # {loaded.origin[key]}")
    validate(loaded.config)
    return 0
