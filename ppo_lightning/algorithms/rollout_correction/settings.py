"""The `rollout_correction` section, read into numbers. Imports no torch."""

import math
from dataclasses import dataclass
from typing import Any

from ppo_lightning.errors import ConfigError

SCOPES = ("token", "seq_sum", "seq_mean", "seq_max")
RULES = tuple(
    f"{scope}_{kind}" for scope in SCOPES for kind in ("k1", "k2", "k3") if (scope, kind) != ("seq_max", "k1")
)


@dataclass(frozen=True)
class Rule:
    """One rejection rule: a token or row stays while its statistic lies within the bounds.

    With `x = log(p_trainer / p_engine)` per token the statistic is k1 `-x`, k2 `x^2 / 2` or k3 `exp(x) - 1 - x`.

    Attributes:
        name: as in `rollout_rs`.
        scope: token, or seq_sum, seq_mean, seq_max of the token statistic over a row.
        kind: k1, k2 or k3.
        lower: lower bound of the statistic; None: none.
        upper: upper bound of the statistic.
    """

    name: str
    scope: str
    kind: str
    lower: float | None
    upper: float


@dataclass(frozen=True)
class Settings:
    """What `correct` does.

    Attributes:
        level: of the importance weights: off, token or sequence.
        lower: weights below it become 0; None: weights are truncated at `upper` instead of set to 0 outside the band.
        upper: largest weight.
        normalize: divide the weights by their mean over the batch.
        rules: rejection rules; a token must pass all of them.
    """

    level: str = "off"
    lower: float | None = None
    upper: float = 2.0
    normalize: bool = False
    rules: tuple[Rule, ...] = ()

    @property
    def row_local(self) -> bool:
        """Whether a row's weights and mask depend on this row alone."""
        return not self.rules and not (self.normalize and self.level != "off")


def read_settings(config: Any) -> Settings:
    """Read a `RolloutCorrectionConfig`.

    Raises:
        ConfigError: a name, a threshold or their number is wrong.
    """
    if config.rollout_is not in ("off", "token", "sequence"):
        raise ConfigError(
            f"rollout_correction.rollout_is must be off, token or sequence - got {config.rollout_is!r} - pick one"
        )
    lower, upper = _band(str(config.rollout_is_threshold), "rollout_correction.rollout_is_threshold")
    return Settings(
        level=config.rollout_is,
        lower=lower,
        upper=upper,
        normalize=config.rollout_is_batch_normalize,
        rules=() if config.rollout_rs == "off" else _rules(config.rollout_rs, config.rollout_rs_threshold),
    )


def _rules(names: str, thresholds: str | float | None) -> tuple[Rule, ...]:
    wanted = list(dict.fromkeys(_parts(names)))
    unknown = [name for name in wanted if name not in RULES]
    if unknown or not wanted:
        raise ConfigError(
            f"rollout_correction.rollout_rs must be off or a comma-separated list of {', '.join(RULES)} - got "
            f"{names!r} - correct the names"
        )
    bounds = [] if thresholds is None else _parts(str(thresholds))
    example = ",".join("0.5_2.0" if name.endswith("k1") else "0.1" for name in wanted)
    if len(bounds) not in (1, len(wanted)):
        raise ConfigError(
            f"rollout_correction.rollout_rs_threshold must hold one value, or one per rule ({len(wanted)}), separated "
            f"by commas - got {thresholds!r} - for example {example}"
        )
    return tuple(_rule(name, bound) for name, bound in zip(wanted, bounds * (len(wanted) // len(bounds)), strict=True))


def _rule(name: str, bound: str) -> Rule:
    scope, kind = name.rsplit("_", 1)
    key = f"rollout_correction.rollout_rs_threshold for {name}"
    lower, upper = _band(bound, key)
    if kind == "k1":
        # The user writes a band of ratios, the statistic is a logarithm; one number u means [1/u, u].
        return Rule(name, scope, kind, math.log(1 / upper if lower is None else lower), math.log(upper))
    if lower is not None:
        raise ConfigError(f"{key} must be a single upper bound - got {bound!r} - write only the upper number")
    return Rule(name, scope, kind, None, upper)


def _band(text: str, key: str) -> tuple[float | None, float]:
    """Read `upper` or `lower_upper`."""
    try:
        numbers = [float(part) for part in text.split("_")]
    except ValueError:
        numbers = []
    if len(numbers) not in (1, 2) or not all(0 < number < math.inf for number in numbers) or numbers != sorted(numbers):
        raise ConfigError(
            f"{key} must be a positive upper bound or lower_upper with lower <= upper - got {text!r} - "
            "write for example 2.0 or 0.5_2.0"
        )
    return (None if len(numbers) == 1 else numbers[0]), numbers[-1]


def _parts(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]
