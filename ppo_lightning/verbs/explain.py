"""`explain`: the stages and fields of a recipe's step, as a table or a picture, or one name explained. No torch."""

import argparse
from pathlib import Path

from ppo_lightning.config.validate import validate
from ppo_lightning.errors import PPOLightningError
from ppo_lightning.explain.flow import flow
from ppo_lightning.explain.key import explain_key
from ppo_lightning.explain.page import page
from ppo_lightning.explain.picture import picture
from ppo_lightning.explain.table import console, tables
from ppo_lightning.verbs.recipe_option import add_recipe_option, load_recipe
from ppo_lightning.verbs.say import say


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_recipe_option(parser)
    parser.add_argument("key", nargs="?", help="one field, stage, option or metric to explain")
    parser.add_argument("--html", metavar="FILE", help="write a page that needs nothing else")
    parser.add_argument("--svg", metavar="FILE", help="write the picture alone")


def run(options: argparse.Namespace) -> int:
    """Explain one name, or write a picture, or print the tables."""
    if options.key and "=" in options.key:
        options.overrides, options.key = [options.key, *options.overrides], None
    loaded = load_recipe(options)
    if options.key:
        say(explain_key(options.key, loaded))
        return 0
    validate(loaded.config)
    step, title = flow(loaded.config), loaded.recipe_path.stem if loaded.recipe_path else "the defaults"
    if options.html:
        _write(options.html, page(step, title))
    if options.svg:
        _write(options.svg, picture(step, title))
    if not options.html and not options.svg:
        shown = console()
        shown.print(tables(step, shown.width))
    return 0


def _write(file: str, text: str) -> None:
    try:
        Path(file).write_text(text, encoding="utf-8")
    except OSError as error:
        raise PPOLightningError(f"{file} cannot be written: {error.strerror}") from None
    say(f"written: {file}")
