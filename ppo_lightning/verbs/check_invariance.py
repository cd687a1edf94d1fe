"""`check-invariance`: does a recipe's update depend on how its rows are split?"""

import argparse

from ppo_lightning.verbs.recipe_option import add_recipe_option, load_recipe
from ppo_lightning.verbs.say import say


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_recipe_option(parser)
    parser.add_argument(
        "--batch", metavar="FILE", help="rows to use: a run's rollouts/step_N.jsonl, or a file of DataProto.save"
    )
    parser.add_argument("--layers", type=int, default=2, help="decoder layers to keep (default: 2); 0: all of them")


def run(options: argparse.Namespace) -> int:
    """Compare the splits; 0: invariant, 1: something depends on the split."""
    from ppo_lightning.config.validate import validate
    from ppo_lightning.offline import resolve_offline

    loaded = load_recipe(options)
    validate(loaded.config)
    loaded = resolve_offline(loaded, say)
    from ppo_lightning.build import quiet
    from ppo_lightning.invariance.check import check_invariance

    quiet()
    return check_invariance(loaded, options.batch, options.layers, say)
