"""`env`: what to paste into a bug report. Imports no torch."""

import argparse

from ppo_lightning.environment import environment, in_words
from ppo_lightning.verbs.say import say


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare nothing: it takes no arguments."""


def run(options: argparse.Namespace) -> int:
    """Print versions and machine."""
    say(in_words(environment()))
    return 0
