"""Write golden/verl_options.json: every option of verl's PPO trainer with its default, from verl's own files."""

import importlib.util
import json
import pathlib

import yaml

SOURCE = "trainer/config/_generated_ppo_trainer.yaml"
TARGET = pathlib.Path(__file__).parent / "golden" / "verl_options.json"


def flatten(tree, prefix=""):
    """Return {dotted key: default}; an empty mapping is a value."""
    flat = {}
    for name, value in tree.items():
        key = f"{prefix}{name}"
        if isinstance(value, dict) and value:
            flat |= flatten(value, f"{key}.")
        elif name != "_target_":
            flat[key] = value
    return flat


if __name__ == "__main__":
    verl = pathlib.Path(importlib.util.find_spec("verl").origin).parent
    options = flatten(yaml.safe_load((verl / SOURCE).read_text()))
    kept = {key: value for key, value in options.items() if "profiler" not in key}
    TARGET.write_text(json.dumps(kept, indent=0, sort_keys=True) + "\n")
