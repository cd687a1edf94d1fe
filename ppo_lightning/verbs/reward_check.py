"""`reward-check`: run a recipe's reward alone and show what it makes of every response."""

import argparse

from ppo_lightning.errors import PPOLightningError
from ppo_lightning.verbs.recipe_option import add_recipe_option, load_recipe
from ppo_lightning.verbs.say import say


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_recipe_option(parser)
    parser.add_argument("items", nargs="*", metavar="FILE", help="JSONL file of responses, or a recorded run's folder")


def run(options: argparse.Namespace) -> int:
    """Try the reward on gold answers or on given responses; 1 when any row needs attention."""
    from ppo_lightning.config.validate import validate
    from ppo_lightning.offline import resolve_offline
    from ppo_lightning.rewards.try_out import try_gold, try_responses

    files = [item for item in options.items if "=" not in item]
    options.overrides = [*(item for item in options.items if "=" in item), *options.overrides]
    loaded = load_recipe(options)
    validate(loaded.config)
    if len(files) > 1:
        raise PPOLightningError(f"reward-check takes one file or folder of responses - got {', '.join(files)}")
    if files:
        return try_responses(files[0], loaded.config, say)
    return try_gold(resolve_offline(loaded, say, ("data.train", "data.val")).config, say)
