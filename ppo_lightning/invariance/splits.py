"""The ways of splitting that must give one result, and which option is to blame where one does not."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from ppo_lightning.config.load import get
from ppo_lightning.config.schema import Config, UpdateConfig
from ppo_lightning.invariance.measure import Measured, relative
from ppo_lightning.invariance.ranks import can_halve

GRADIENT_TOLERANCE, NUMBER_TOLERANCE, NOTHING = 1e-6, 1e-5, 1e-6
"""Largest relative differences that rounding explains; numbers below NOTHING apart are equal."""


@dataclass(frozen=True)
class Split:
    """One way of splitting the rows.

    Attributes:
        name: in words.
        key: the option it turns.
        update: the section that does it.
        ranks: whether the rows are split over two ranks.
    """

    name: str
    key: str
    update: UpdateConfig
    ranks: bool = False


@dataclass(frozen=True)
class Difference:
    """How far a split is from all rows at once.

    Attributes:
        losses, gradients: by model, relative.
        metrics: largest relative difference of any other number that is logged, and its key.
    """

    losses: dict[str, float]
    gradients: dict[str, float]
    metrics: tuple[float, str]

    @property
    def invariant(self) -> bool:
        """Whether nothing differs by more than rounding."""
        numbers = [*self.losses.values(), self.metrics[0]]
        gradients = max(self.gradients.values(), default=0.0)
        return gradients <= GRADIENT_TOLERANCE and max(numbers) <= NUMBER_TOLERANCE


def whole(config: Config, rows: int) -> Config:
    """Return the recipe with all rows of a mini-batch in one padded forward pass."""
    return _with(config, UpdateConfig(sequences_per_microbatch=rows, share_prompts=False), config.update)


def splits(config: Config, rows: int, longest: int) -> Iterator[Split]:
    """Yield what is compared with `whole`: few rows at a time, packed, by token budget, and as the recipe has it."""
    for count in (1, 2, 4):
        if count < rows:
            update = UpdateConfig(sequences_per_microbatch=count, share_prompts=False)
            yield Split(f"micro-batches of {count}, padded", "update.sequences_per_microbatch", update)
    update = UpdateConfig(sequences_per_microbatch=rows, share_prompts=True)
    yield Split("one micro-batch, packed", "update.share_prompts", update)
    update = UpdateConfig(sequences_per_microbatch=2, share_prompts=True)
    yield Split("micro-batches of 2, packed", "update.share_prompts", update)
    for packed in (False, True):
        update = UpdateConfig(sequences_per_microbatch=rows, tokens_per_microbatch=2 * longest, share_prompts=packed)
        words = "packed" if packed else "padded"
        yield Split(f"budget of {2 * longest} tokens, {words}", "update.tokens_per_microbatch", update)
    yield Split("as the recipe has it", "update", config.update)
    if can_halve(config, rows):
        yield Split("two ranks", "trainer.devices", config.update, ranks=True)


def applied(config: Config, split: Split) -> Config:
    """Return the recipe split that way; nothing but the split changes."""
    return _with(config, split.update, config.update)


def _with(config: Config, split: UpdateConfig, update: UpdateConfig) -> Config:
    return replace(
        config,
        update=replace(
            update,
            sequences_per_microbatch=split.sequences_per_microbatch,
            tokens_per_microbatch=split.tokens_per_microbatch,
            share_prompts=split.share_prompts,
        ),
    )


def difference(found: Measured, expected: Measured) -> Difference:
    """Compare one split with all rows at once."""
    losses = {"actor": ("actor/loss",), "critic": ("critic/vf_loss",)}
    of_loss = {key for keys in losses.values() for key in keys}
    apart = {key: _number(found.metrics.get(key), value) for key, value in expected.metrics.items()}
    apart |= {key: float("inf") for key in found.metrics.keys() - expected.metrics.keys()}
    others = {key: value for key, value in apart.items() if key not in of_loss}
    worst = max(others, key=others.__getitem__, default="")
    return Difference(
        {name: max(apart[key] for key in keys) for name, keys in losses.items() if set(keys) <= apart.keys()},
        {name: _gradients(found.gradients[name], kept) for name, kept in expected.gradients.items()},
        (others[worst] if worst else 0.0, worst),
    )


def suspects(config: Config) -> Iterator[tuple[str, Config]]:
    """Yield each option of the recipe that shapes the loss, with the recipe without it."""
    plain = Config()
    for section, name, related in (
        ("actor", "policy_loss", ("loss_options",)),
        ("algorithm", "adv_estimator", ("adv_options",)),
        ("update", "loss_agg_mode", ()),
        ("actor", "entropy_coeff", ()),
        ("actor", "use_kl_loss", ()),
        ("algorithm", "use_kl_in_reward", ()),
        ("rollout_correction", "rollout_is", ()),
        ("rollout_correction", "rollout_rs", ("rollout_rs_threshold",)),
        ("rollout_correction", "bypass_mode", ()),
    ):
        default = get(plain, f"{section}.{name}")
        if (section, name) == ("algorithm", "adv_estimator"):
            default = (
                "reinforce_plus_plus_baseline" if config.rollout.rollouts_per_prompt > 1 else "reinforce_plus_plus"
            )
        if get(config, f"{section}.{name}") == default:
            continue
        changed = {name: default} | {other: get(plain, f"{section}.{other}") for other in related}
        yield f"{section}.{name}", replace(config, **{section: replace(getattr(config, section), **changed)})


def culprit(config: Config, split: Split, compare: Callable[[Config, Split], Difference]) -> str | None:
    """Return the option without which the split changes nothing; None: no single one."""
    return next((key for key, without in suspects(config) if compare(without, split).invariant), None)


def _gradients(found: list, expected: list) -> float:
    if len(found) != len(expected):
        return float("inf")
    return max((relative(a, b) for a, b in zip(found, expected, strict=True)), default=0.0)


def _number(found: float | None, expected: float | None) -> float:
    if found is None or expected is None:
        return 0.0 if found is expected else float("inf")
    apart = abs(found - expected)
    return 0.0 if apart <= NOTHING else apart / max(abs(expected), NOTHING)
