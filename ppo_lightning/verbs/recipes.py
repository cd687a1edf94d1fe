"""`recipes`: list, show or copy recipes. Imports no torch."""

import argparse

from ppo_lightning.errors import PPOLightningError
from ppo_lightning.recipes import copy, listing, show
from ppo_lightning.verbs.say import say


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("action", choices=("ls", "show", "cp"))
    parser.add_argument("names", nargs="*")


def run(options: argparse.Namespace) -> int:
    """List, show or copy shipped recipes."""
    if options.action == "ls":
        say(listing())
    elif options.action == "show":
        say(show(*options.names[:1]) if options.names else listing())
    else:
        if len(options.names) != 2:
            raise PPOLightningError("recipes cp needs a recipe and a file: recipes cp gsm8k my.yaml")
        say(copy(*options.names))
    return 0
