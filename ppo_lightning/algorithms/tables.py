"""What the tables of algorithms hold, and how a name from the configuration becomes a function. Imports no torch."""

import importlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, TypeVar

from ppo_lightning.errors import ConfigError

Record = TypeVar("Record")

PARTS_KEY = "gdpo_reward_keys"
"""Key of `algorithm.adv_options` that names the columns of `reward_parts`."""


@dataclass(frozen=True)
class Estimator:
    """One advantage estimator: `fn(**reads, **options) -> (advantages (B, R), returns (B, R))`, float32.

    The two may be one and the same tensor: write into neither.

    Attributes:
        path: `module:function`, imported when used.
        reads: batch fields it is called with, by name. `group` stands for the int64 group ids (B,) made from `uid`,
            `reward_parts` for the (B, K) columns that `algorithm.adv_options.gdpo_reward_keys` names.
        options: keys of the `algorithm` section, or of `algorithm.adv_options`, that it is called with.
        optional: batch fields it is called with if the batch has them.
        critic: it reads `values`, so a critic is trained.
        grouped: it compares the rollouts of one prompt, so one rollout per prompt is an error of configuration.
        reduces: it takes `all_reduce`, a sum over ranks, for statistics of the whole batch.
    """

    path: str
    reads: tuple[str, ...]
    options: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    critic: bool = False
    grouped: bool = False
    reduces: bool = False


@dataclass(frozen=True)
class PolicyLoss:
    """One policy loss: `fn(old_log_prob, log_prob, advantages, response_mask, rollout_is_weights, **options)`.

    Attributes:
        path: `module:function`, imported when used.
        options: keys of the `actor` section or of `actor.loss_options` it is called with.
        loss_agg_mode: aggregation that the loss prescribes; None leaves `update.loss_agg_mode` in force.
        selection: `module:function` that picks tokens over the whole mini-batch before its first backward, or None.
        required: those of the options that have no default and must be in `actor.loss_options`.
        ratio: it holds the ratio of the policy to `old_log_prob`, so that in bypass mode it corrects for the engine by
            itself and must not be given importance weights as well.
        scales: it is proportional to the advantages, so that tokens of advantage 0 have no gradient. A user's own loss
            is not known to be.
    """

    path: str
    options: tuple[str, ...] = ()
    loss_agg_mode: str | None = None
    selection: str | None = None
    required: tuple[str, ...] = ()
    ratio: bool = True
    scales: bool = False


def resolve(path: str) -> Callable[..., Any]:
    """Import the function that `module:function` names.

    Raises:
        ConfigError: the text has another form, the module cannot be imported, or it has no such function.
    """
    module, colon, name = path.partition(":")
    if not (module and colon and name):
        raise ConfigError(
            f"a function is named as module:function - got {path!r} - write for example my_file:my_function"
        )
    try:
        function = getattr(importlib.import_module(module), name, None)
    except ImportError as error:
        raise ConfigError(f"{path!r} must be importable - got {error} - is its folder on PYTHONPATH?") from error
    if not callable(function):
        raise ConfigError(f"{path!r} must name a function - got no callable {name!r} in {module} - check the spelling")
    return function


def look_up(table: Mapping[str, Record], name: str, key: str) -> Record:
    """Return the entry of a table, where `key` is the configuration key that the user set to `name`.

    Raises:
        ConfigError: no entry has this name; the message lists the valid ones and the nearest.
    """
    if name in table:
        return table[name]
    near = get_close_matches(name, table, n=1)
    hint = f"did you mean {near[0]!r}?" if near else "pick one of these, or name your own as module:function"
    raise ConfigError(f"{key} must be one of {', '.join(sorted(table))} - got {name!r} - {hint}")


def own_estimator(path: str) -> Estimator:
    """Describe a user's estimator by its signature.

    Parameters without a default are batch fields (or `group`), those with one are options; `all_reduce` is neither.
    """
    parameters = inspect.signature(resolve(path)).parameters.values()
    named = [item for item in parameters if item.name != "all_reduce" and item.kind is not item.VAR_KEYWORD]
    reads = tuple(item.name for item in named if item.default is item.empty)
    return Estimator(
        path=path,
        reads=reads,
        options=tuple(item.name for item in named if item.default is not item.empty),
        critic="values" in reads,
        grouped="group" in reads,
        reduces=any(item.name == "all_reduce" for item in parameters),
    )


def find_estimator(table: Mapping[str, Estimator], name: str) -> Estimator:
    """Return the record of `algorithm.adv_estimator`: an entry of the table, or a user's own `module:function`."""
    return own_estimator(name) if ":" in name else look_up(table, name, "algorithm.adv_estimator")


def check_adv_options(record: Estimator, algorithm: Any) -> None:
    """Check that every key of `algorithm.adv_options` is an option of the estimator, and that none is missing.

    Raises:
        ConfigError: one is not, or an estimator of reward parts is not told which.
    """
    parts = "reward_parts" in record.reads
    valid = (*record.options, *((PARTS_KEY,) if parts else ()))
    unknown = sorted(set(algorithm.adv_options) - set(valid))
    if unknown:
        raise ConfigError(
            f"algorithm.adv_options may hold for algorithm.adv_estimator={algorithm.adv_estimator}: "
            f"{', '.join(valid) or 'none'} - got {', '.join(unknown)} - remove or rename"
        )
    if parts and not algorithm.adv_options.get(PARTS_KEY):
        raise ConfigError(
            f"algorithm.adv_estimator={algorithm.adv_estimator} compares parts of the reward - got no "
            f"algorithm.adv_options.{PARTS_KEY} - name columns of the reward, such as [gsm8k, gsm8k_format]"
        )
