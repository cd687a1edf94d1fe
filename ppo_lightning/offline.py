"""What a run needs from the Hub, and the recipe's own substitutes for where the Hub cannot be reached."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ppo_lightning.config.load import Loaded, apply, get
from ppo_lightning.data.generators import GENERATORS
from ppo_lightning.data.sources import FILES, HUB_ID, hub_reachable
from ppo_lightning.errors import ConfigError, DataError
from ppo_lightning.models.packaged import PACKAGED

KEYS = ("model.path", "critic.path", "data.train", "data.val")


def resolve_offline(loaded: Loaded, say: Callable[[str], None], keys: Sequence[str] = KEYS) -> Loaded:
    """Return the configuration to run: as it is, or with the recipe's `offline:` entries on top and a banner.

    Keys that were given on the command line stay as given. `keys` are those whose values are going to be read.

    Raises:
        ConfigError: the Hub cannot be reached, something is needed from it, and the recipe has no substitute.
    """
    needed = [key for key in keys if needs_hub(get(loaded.config, key))]
    if not needed or hub_reachable():
        return loaded
    missing = [key for key in needed if not _cached(key, get(loaded.config, key))]
    if not missing:
        return loaded
    entries = {key: value for key, value in loaded.offline.items() if loaded.origin[key] != "command line"}
    if not set(missing) <= set(entries):
        raise ConfigError(_no_substitute(loaded, [key for key in missing if key not in entries]))
    say("=" * 100)
    say("OFFLINE: the Hub cannot be reached; this run uses the recipe's own offline entries instead:")
    for key, value in entries.items():
        say(f"  {key}: {get(loaded.config, key)!r} -> {value!r}")
    say("Its numbers are about the substitute, under the substitute's own data_source.")
    say("=" * 100)
    return apply(loaded, entries, "offline")


def needs_hub(value: Any) -> bool:
    """Tell whether a model path or data spec names something on the Hub."""
    if value is None or value in PACKAGED or Path(value).exists() or Path(value).suffix in FILES:
        return False
    name = value.partition(":")[0]
    return name not in GENERATORS and not name.startswith("reasoning_gym/") and bool(HUB_ID.match(value))


def _cached(key: str, value: str) -> bool:
    """Tell whether a local copy can be loaded, without any request to the network."""
    if key.startswith("data."):
        from ppo_lightning.data.sources import read

        try:
            read(value, key)
        except DataError:
            return False
        return True
    from huggingface_hub import try_to_load_from_cache

    return isinstance(try_to_load_from_cache(value, "config.json"), str)


def _no_substitute(loaded: Loaded, missing: list[str]) -> str:
    wanted = ", ".join(f"{key}={get(loaded.config, key)}" for key in missing)
    return (
        f"{wanted}: the Hub cannot be reached, no cached copy exists, and the recipe has no `offline:` entry for it. "
        "Three ways out:\n"
        f"  1. give local files: {missing[0]}=/path/to/{'file.jsonl' if missing[0].startswith('data') else 'folder'}\n"
        "  2. fill the cache where there is a network, and bring it here (HF_HOME)\n"
        f"  3. add an `offline:` section with {', '.join(missing)} to the recipe (a packaged model, a generator)"
    )
