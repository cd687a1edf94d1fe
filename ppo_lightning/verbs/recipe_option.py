"""What every verb that reads a configuration shares: `--config RECIPE`, then key=value. Imports no torch."""

import argparse

from ppo_lightning.config.load import Loaded, load
from ppo_lightning.recipes import find
from ppo_lightning.secrets import guard_tracebacks, learn


def add_recipe_option(parser: argparse.ArgumentParser) -> None:
    """Declare `--config RECIPE` and overrides (`options.overrides`), which may stand anywhere after the verb."""
    parser.add_argument("--config", metavar="RECIPE", help="recipe file (YAML), or the name of a shipped recipe")
    parser.set_defaults(overrides=[])
    parser.epilog = "Any option can be given as key=value, a preset as group=name (rollout=vllm)."


def load_recipe(options: argparse.Namespace) -> Loaded:
    """Return the composed configuration of the recipe and overrides that were given, not validated yet.

    Raises:
        ConfigError: naming everything that is wrong with it.
    """
    guard_tracebacks()
    loaded = load(str(find(options.config)) if options.config else None, options.overrides)
    learn(loaded.config)
    return loaded
