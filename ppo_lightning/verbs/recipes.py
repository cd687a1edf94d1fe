"""`recipes`: list, show, copy, fetch, check, compare and make recipes. Imports no torch."""

import argparse
from pathlib import Path

from ppo_lightning.errors import ConfigError, PPOLightningError
from ppo_lightning.recipes import copy, listing, show
from ppo_lightning.verbs.say import say


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare one sub-command per action."""
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    _action(actions, "ls", "list the shipped recipes", lambda options: say(listing()))
    shown = _action(actions, "show", "print a recipe", lambda options: say(show(options.recipe)))
    shown.add_argument("recipe", help="file or name of a shipped recipe")
    copied = _action(
        actions, "cp", "copy a recipe to a new file", lambda options: say(copy(options.recipe, options.file))
    )
    copied.add_argument("recipe", help="file or name of a shipped recipe")
    copied.add_argument("file")
    got = _action(actions, "get", "fetch a recipe from a file, a run, the Hub or W&B", _get)
    got.add_argument("source", help="PATH, hf:OWNER/REPO[@REVISION][:FILE] or wandb:ENTITY/PROJECT/RUN[:VERSION]")
    got.add_argument("file")
    checked = _action(actions, "validate", "check a recipe, and with --run whether a run met its `expect:`", _validate)
    checked.add_argument("recipe", help="file or name of a shipped recipe")
    checked.add_argument("--run", dest="run_dir", metavar="DIR", help="run directory to hold the expectations against")
    compared = _action(actions, "diff", "compare two recipes or runs, option by option", _diff)
    compared.add_argument("left", help="recipe file, shipped recipe or run directory")
    compared.add_argument("right")
    made = _action(actions, "from-run", "print the shortest recipe of a run, with what it measured", _from_run)
    made.add_argument("run_dir", metavar="DIR")
    made.add_argument("--output", metavar="FILE", help="write it to a new file")
    verl = _action(actions, "import-verl", "translate a verl command line or Hydra file", _import_verl)
    verl.add_argument("items", nargs="+", metavar="FILE|key=value", help="shell script, Hydra YAML, overrides")
    verl.add_argument("--output", metavar="FILE", help="write it to a new file")


def run(options: argparse.Namespace) -> int:
    """Run one action."""
    return options.act(options) or 0


def _action(
    actions: "argparse._SubParsersAction[argparse.ArgumentParser]", name: str, text: str, act: object
) -> argparse.ArgumentParser:
    parser = actions.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
    parser.set_defaults(act=act)
    return parser


def _get(options: argparse.Namespace) -> None:
    from ppo_lightning.recipes.fetch import fetch

    fetch(options.source, options.file, say)


def _validate(options: argparse.Namespace) -> int:
    from ppo_lightning.recipes.check import check

    return check(options.recipe, options.run_dir, say)


def _diff(options: argparse.Namespace) -> None:
    from ppo_lightning.recipes.diff import differences, in_words, resolve

    found = differences(resolve(options.left), resolve(options.right))
    say(in_words(found, options.left, options.right))


def _from_run(options: argparse.Namespace) -> None:
    from ppo_lightning.recipes.minimal import from_run

    _give(from_run(options.run_dir), options.output)


def _import_verl(options: argparse.Namespace) -> int:
    """Write the recipe; 1 when it does not pass its own checks."""
    from ppo_lightning.config.load import Layer, compose
    from ppo_lightning.config.validate import validate
    from ppo_lightning.recipes.verl_import import import_verl, to_recipe

    made = import_verl(options.items)
    source = " ".join(Path(item).name if "=" not in item else item for item in options.items)
    _give(to_recipe(made, source), options.output)
    try:
        validate(compose([Layer("import-verl", made.values)], [])[0])
    except ConfigError as error:
        say("\n".join(f"# to be settled: {line}" for line in str(error).splitlines()))
        return 1
    return 0


def _give(text: str, file: str | None) -> None:
    """Print a recipe, or write it to a file that does not exist yet."""
    if file is None:
        say(text.rstrip("\n"))
        return
    if Path(file).exists():
        raise PPOLightningError(f"{file} exists already")
    Path(file).write_text(text, encoding="utf-8")
    say(f"written: {file}")
