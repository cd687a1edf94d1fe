"""From the `reward` section to the parts of a reward, and from the parts' outcomes to one score per sample."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ppo_lightning.config.schema import RewardConfig
from ppo_lightning.errors import ConfigError
from ppo_lightning.rewards.sample import Sample, Scored, Target
from ppo_lightning.rewards.scorers import SCORERS, scorer_of_source

PART_KEYS = ("scorer", "path", "name", "weight", "options")
PART_DEFAULTS: dict[str, Any] = {"name": "compute_score", "weight": 1.0, "options": {}}


@dataclass(frozen=True)
class Part:
    """One reward function with its weight in the score.

    Attributes:
        name: what its column is called.
        target: the function; None picks a built-in scorer by the sample's data source.
        weight: factor in the sum.
        options: keyword arguments of a scorer picked by data source.
    """

    name: str
    target: Target | None
    weight: float = 1.0
    options: tuple[tuple[str, Any], ...] = ()

    def target_of(self, sample: Sample) -> Target:
        """Return the function that scores a sample.

        Raises:
            RewardError: no built-in scorer belongs to the sample's data source.
        """
        return self.target or scorer_target(scorer_of_source(sample.data_source), dict(self.options))


def scorer_target(scorer: str, options: dict[str, Any]) -> Target:
    """Return the address of a built-in scorer, or of a function given as module:function.

    Raises:
        ConfigError: the name is unknown.
    """
    address = ({scorer: scorer} | SCORERS)[scorer]
    if ":" not in address:
        raise ConfigError(
            f"reward.scorer must be auto, a built-in scorer or module:function - got {scorer!r}: "
            f"use one of {', '.join(SCORERS)}"
        )
    module, name = address.split(":", 1)
    return Target(module, name, options)


def parts_of(config: RewardConfig) -> list[Part]:
    """Return the parts that the reward section asks for: its own function first, with weight 1, then reward.parts.

    Raises:
        ConfigError: a part has an unknown key, an unknown scorer or a weight that is no number.
    """
    if config.path is not None:
        first = Part(config.name, Target(_file(config.path), config.name, dict(config.options), is_file=True))
    elif config.scorer == "auto":
        first = Part("task", None, options=tuple(config.options.items()))
    else:
        first = Part(_name_of(config.scorer), scorer_target(config.scorer, dict(config.options)))
    parts = [first]
    for index, entry in enumerate(config.parts):
        part = _part_of(entry, f"reward.parts[{index}]")
        taken = {other.name for other in parts}
        number = 2
        name = part.name
        while name in taken:
            name, number = f"{part.name}_{number}", number + 1
        parts.append(replace(part, name=name))
    return parts


def _part_of(entry: dict[str, Any], key: str) -> Part:
    unknown = sorted(set(entry) - set(PART_KEYS))
    if unknown:
        raise ConfigError(f"{key} has {', '.join(unknown)}: a part has {', '.join(PART_KEYS)}")
    if ("scorer" in entry) == ("path" in entry):
        raise ConfigError(
            f"{key} needs either `scorer` (built-in or module:function) or `path` (with `name`) - got {entry}"
        )
    entry = PART_DEFAULTS | entry
    weight, options = entry["weight"], dict(entry["options"])
    if isinstance(weight, bool) or not isinstance(weight, int | float):
        raise ConfigError(f"{key}.weight must be a number - got {weight!r}")
    if "scorer" in entry:
        return Part(_name_of(entry["scorer"]), scorer_target(entry["scorer"], options), float(weight))
    name = entry["name"]
    return Part(name, Target(_file(entry["path"]), name, options, is_file=True), float(weight))


def _name_of(scorer: str) -> str:
    return re.sub(r"\W+", "_", scorer.rsplit(":", 1)[-1])


def _file(path: str) -> str:
    return str(Path(path).expanduser().resolve())


def combine(row: int, parts: Sequence[Part], outcomes: Sequence[dict[str, Any]]) -> Scored:
    """Sum the parts' scores by weight; every part also becomes a column of its own.

    A part that failed makes the sample fail - but a batched function that returned None for a sample says that it does
    not apply there, and is left out as long as another part gives a score.
    """
    seconds = sum(outcome["seconds"] for outcome in outcomes)
    used = [pair for pair in zip(parts, outcomes, strict=True) if pair[1]["score"] is not None]
    failed = [pair for pair in zip(parts, outcomes, strict=True) if _failed(pair[1], bool(used))]
    extra: dict[str, Any] = {}
    for index, (part, outcome) in enumerate(zip(parts, outcomes, strict=True)):
        extra |= (
            outcome["extra"]
            if index == 0
            else {f"{part.name}_{key}": value for key, value in outcome["extra"].items() if key not in ("score", "acc")}
        )
    if len(parts) > 1:
        extra |= {part.name: outcome["score"] for part, outcome in used}
    if failed:
        part, outcome = failed[0]
        detail = outcome["detail"] if len(parts) == 1 else f"{part.name}: {outcome['detail']}"
        extra.pop("score", None)
        return Scored(row, None, extra, outcome["fault"], detail, seconds)
    score = sum(part.weight * outcome["score"] for part, outcome in used)
    if "score" in extra:
        extra["score"] = score
    notes = [outcome["detail"] for outcome in outcomes if outcome["detail"]]
    return Scored(row, score, extra, None, "\n".join(notes) or None, seconds)


def _failed(outcome: dict[str, Any], others: bool) -> bool:
    return outcome["fault"] is not None and not (outcome["fault"] == "none" and outcome["batched"] and others)
