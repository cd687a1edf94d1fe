"""`fit`: train."""

import argparse

from ppo_lightning.verbs.recipe_option import add_recipe_option, load_recipe
from ppo_lightning.verbs.say import say


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_recipe_option(parser)
    parser.add_argument(
        "--resume", default="never", metavar="auto|never|PATH", help="go on from the newest checkpoint, or a given one"
    )
    parser.add_argument(
        "--deterministic", action="store_true", help="deterministic kernels only, as trainer.deterministic=true"
    )


def run(options: argparse.Namespace) -> int:
    """Train."""
    from ppo_lightning.config.validate import validate
    from ppo_lightning.offline import resolve_offline

    if options.deterministic:
        options.overrides = [*options.overrides, "trainer.deterministic=true"]
    loaded = load_recipe(options)
    validate(loaded.config)
    loaded = resolve_offline(loaded, say)
    validate(loaded.config)
    from ppo_lightning.build import quiet
    from ppo_lightning.run import fit

    quiet()
    return fit(loaded, options.resume)
