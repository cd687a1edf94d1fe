"""What happens to samples that could not be scored (`reward.on_error`), and the counts of them that are logged."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ppo_lightning.config.schema import RewardConfig
from ppo_lightning.errors import ConfigError, RewardError
from ppo_lightning.rewards.sample import FAULTS, Scored

SHOWN = 3


@dataclass(frozen=True)
class Verdict:
    """The scores to train on.

    Attributes:
        scored: one per sample, in the given order; faults keep their kind also where a score was put in.
        keep: False for samples that are dropped from their group: they train nothing and count in no group statistic.
        counts: {"reward/<kind>": number} for every kind, zeros included: the same keys on every rank and in every step.
    """

    scored: list[Scored]
    keep: list[bool]
    counts: dict[str, int]


def substitute(config: RewardConfig) -> float | None:
    """Return x of `reward.on_error: score:x`, None for the other policies.

    Raises:
        ConfigError: the policy is none of stop, drop and score:<number>.
    """
    kind, _, value = config.on_error.partition(":")
    if kind in ("stop", "drop") and not value:
        return None
    try:
        if kind == "score":
            return float(value)
    except ValueError:
        pass
    raise ConfigError(f"reward.on_error must be stop, drop or score:<number> - got {config.on_error!r}: try drop")


def settle(scored: Sequence[Scored], config: RewardConfig) -> Verdict:
    """Apply the policy to a step's outcomes.

    `stop` ends the run when more than reward.max_error_share of the samples failed; up to that it drops them.
    `drop` and `score:x` go on whatever the share - unless every single sample failed: nothing is left to train on.

    Raises:
        RewardError: too many samples failed; the message says how many of which kind and shows the first.
    """
    value = substitute(config)
    failed = [item for item in scored if item.fault is not None]
    allowed = config.max_error_share if config.on_error == "stop" else 1.0
    if failed and (len(failed) > allowed * len(scored) or len(failed) == len(scored)):
        raise RewardError(complaint(failed, len(scored), config))
    settled = [item if item.fault is None or value is None else _scored(item, value) for item in scored]
    return Verdict(settled, [item.score is not None for item in settled], count(scored))


def _scored(item: Scored, value: float) -> Scored:
    return replace(item, score=value, extra={**item.extra, "score": value} if "score" in item.extra else item.extra)


def count(scored: Sequence[Scored]) -> dict[str, int]:
    """Count faults by kind."""
    found = Counter(item.fault for item in scored)
    return {f"reward/{kind}": found[kind] for kind in FAULTS}


def complaint(failed: Sequence[Scored], total: int, config: RewardConfig) -> str:
    """Return the message that ends a run: how many of which kind, the first ones in full, what to do."""
    kinds = ", ".join(f"{number} {kind}" for kind, number in Counter(str(item.fault) for item in failed).most_common())
    shown = "\n".join(
        f"  row {item.row}: {item.fault}: {(item.detail or '').strip()[-1500:]}" for item in failed[:SHOWN]
    )
    rule = (
        f"reward.on_error=stop allows {config.max_error_share:.0%}"
        if len(failed) < total
        else "none is left to train on"
    )
    return (
        f"{len(failed)} of {total} samples of this step could not be scored ({kinds}); {rule}:\n{shown}\n"
        "Mend the reward (`reward-check` runs it alone), or set reward.on_error to drop or score:<x>, "
        "reward.max_error_share or reward.timeout_s"
    )
