"""`recipes import-verl`: a recipe that does here what verl 0.9.1 does with a command line or a Hydra file. No torch.

Whatever was given is written, and besides every default of verl that differs from ours.
"""

import json
import re
from dataclasses import dataclass, field
from typing import Any

from ppo_lightning.config.load import get, nearest
from ppo_lightning.config.schema import Config, leaves
from ppo_lightning.recipes.verl_missing import why_missing
from ppo_lightning.recipes.verl_options import LEGACY, OPTIONS, VERSION, Option, defaults
from ppo_lightning.recipes.verl_rules import SKIP, Settings
from ppo_lightning.recipes.verl_shell import read

REFERENCE = re.compile(r"\$\{(?:oc\.select:)?([\w.]+)(?:,\s*([^{}]*))?\}")
ENGINES = {"vllm", "hf"}


@dataclass
class Imported:
    """A recipe made from verl's settings.

    Attributes:
        values: {our key: value}.
        origin: {our key: verl's key, with `default` where it was not given}.
        missing: {verl key that was given: why it is not carried over}.
        notes: what differs all the same.
    """

    values: dict[str, Any] = field(default_factory=dict)
    origin: dict[str, str] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def import_verl(items: list[str]) -> Imported:
    """Translate files and overrides, in the order given.

    Raises:
        ConfigError: a file cannot be read.
    """
    found = read(items)
    given = {_current(key): value for key, value in found.values.items()}
    made = Imported(notes=list(found.problems))
    known = defaults()
    given = _resolved(given, known, made)
    settings = Settings({key: value for key, value in given.items() if key in known}, known)
    for option in OPTIONS:
        _write(option, settings, made)
    for key in given:
        if key not in known:
            made.missing[key] = why_missing(key) or f"verl {VERSION} has no such option.{nearest(key, list(known))}"
    _remarks(settings, made)
    return made


def to_recipe(made: Imported, source: str) -> str:
    """Return the recipe as YAML: each value with the key of verl that it comes from."""
    lines = [
        f"# Imported from verl {VERSION}: {source}",
        "# hardware: as for that run.  minutes: not measured.",
        *(f"# {note}" for note in made.notes),
    ]
    if made.missing:
        lines.append("# Not carried over:")
        lines += [f"#   {key}: {why}" for key, why in sorted(made.missing.items())]
    section = ""
    for key in sorted(made.values, key=list(leaves()).index):
        head, _, name = key.rpartition(".")
        if head != section:
            section = head
            lines.append(f"{head}:")
        value = json.dumps(made.values[key], ensure_ascii=False)
        lines.append(f"{'  ' if head else ''}{name}: {value}  # {made.origin[key]}")
    return "\n".join(lines) + "\n"


def _current(key: str) -> str:
    """Return the key that verl makes of an old one."""
    for old, new in LEGACY.items():
        if key == old or (old.endswith(".") and key.startswith(old)):
            return new + key[len(old) :]
    return key


def _resolved(given: dict[str, Any], known: dict[str, Any], made: Imported) -> dict[str, Any]:
    """Replace references to other keys; a value with an open variable is not carried over."""
    resolved = {}
    for key, value in given.items():
        for _ in range(len(given) + 1):
            whole = REFERENCE.fullmatch(value) if isinstance(value, str) else None
            if not whole:
                break
            target, default = _current(whole[1]), whole[2]
            value = given[target] if target in given else known.get(target, default)
        if isinstance(value, str) and "$" in value:
            made.missing[key] = f"{value} is known only where the script ran: set it by hand"
        else:
            resolved[key] = value
    return resolved


def _write(option: Option, settings: Settings, made: Imported) -> None:
    if option.verl in made.missing:
        return
    value = option.rule(settings[option.verl], settings)
    given = option.verl in settings.given
    if value is SKIP:
        return
    ours = get(Config(), option.ours)
    if value != ours or (given and option.ours not in made.values):
        made.values[option.ours] = value
        made.origin[option.ours] = f"verl: {option.verl}" if given else f"verl's default of {option.verl}"


def _remarks(settings: Settings, made: Imported) -> None:
    """Say what the table cannot: values of verl's that mean something else here."""
    engine = settings["actor_rollout_ref.rollout.name"]
    custom = settings["reward.custom_reward_function.path"] or settings["reward.reward_model.enable"]
    if not custom and "gsm8k" in str(settings["data.train_files"]):
        made.values["reward.scorer"] = "gsm8k_strict"
        made.origin["reward.scorer"] = "verl scores openai/gsm8k by the strict #### rule"
    elif not custom:
        made.notes.append("verl picks a rule by data_source; here reward.scorer=auto does, where one belongs to it.")
    _remarks_on_sizes(settings, made)
    others = sorted({str(name) for name in settings["trainer.logger"]} - {"console", "wandb", "file"})
    if others:
        made.notes.append(f"trainer.logger lists {', '.join(others)}: see the section `logging` for what is available.")
    if engine not in ENGINES:
        made.notes.append(f"rollout.name={engine} is not available here: vllm generates instead.")
    for key in ("data.train_files", "data.val_files"):
        if isinstance(settings[key], list) and len(settings[key]) > 1:
            made.notes.append(f"{key} lists {len(settings[key])} files, one is read here: join them.")
    if settings["data.truncation"] != "error" and not settings["data.filter_overlong_prompts"]:
        made.notes.append(f"data.truncation={settings['data.truncation']}: prompts are never cut here, long ones stop.")
    if settings.critic != (settings["algorithm.adv_estimator"] == "gae"):
        made.notes.append("critic.enable: here a critic is trained when, and only when, the estimator reads values.")


def _remarks_on_sizes(settings: Settings, made: Imported) -> None:
    actor = "actor_rollout_ref.actor"
    micro = settings[f"{actor}.ppo_micro_batch_size_per_gpu"] or settings[f"{actor}.ppo_micro_batch_size"]
    if not settings[f"{actor}.use_dynamic_bsz"] and micro is None:
        made.notes.append(f"verl refuses to start without {actor}.ppo_micro_batch_size_per_gpu or use_dynamic_bsz.")
    if settings[f"{actor}.ulysses_sequence_parallel_size"] > 1:
        made.notes.append("sequence parallelism is not available here: the budget of its devices is one device's.")
