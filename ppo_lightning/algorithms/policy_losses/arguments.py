"""From the actor's configuration to the keyword arguments of a policy loss or its selection. Imports no torch."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from ppo_lightning.algorithms.tables import PolicyLoss, look_up, resolve
from ppo_lightning.errors import ConfigError

# Given by the update stage on every call, not by the configuration.
GIVEN = ("old_log_prob", "log_prob", "advantages", "response_mask", "rollout_is_weights", "selection", "scope")


def find_policy_loss(table: Mapping[str, PolicyLoss], name: str) -> PolicyLoss:
    """Return the record of `actor.policy_loss`: an entry of the table, or a user's own `module:function`.

    Raises:
        ConfigError: no entry has this name, or the user's function cannot be imported.
    """
    if ":" not in name:
        return look_up(table, name, "actor.policy_loss")
    return PolicyLoss(path=name, options=tuple(_options(resolve(name))))


def loss_arguments(function: Callable[..., Any], actor: Any) -> dict[str, Any]:
    """Return the options that a policy loss or a selection takes, from the `actor` section.

    A key of `actor.loss_options` comes first, then a key of the section itself; `clip_ratio_low` and
    `clip_ratio_high` fall back to `clip_ratio`.

    Args:
        function: the resolved loss or selection.
        actor: the section, an `ActorConfig`.

    Raises:
        ConfigError: an option without a default is not set.
    """
    found: dict[str, Any] = {}
    for name, parameter in _options(function).items():
        if name in actor.loss_options:
            found[name] = actor.loss_options[name]
        elif hasattr(actor, name):
            found[name] = getattr(actor, name)
        elif parameter.default is parameter.empty:
            raise ConfigError(
                f"actor.loss_options.{name} is needed by actor.policy_loss={actor.policy_loss} - it is not set - add it"
            )
    for name in ("clip_ratio_low", "clip_ratio_high"):
        if name in found and found[name] is None:
            found[name] = actor.clip_ratio
    return found


def check_loss_options(record: PolicyLoss, actor: Any) -> None:
    """Check that every key of `actor.loss_options` is an option of the policy loss, and that none is missing.

    Raises:
        ConfigError: one is not, or one without a default is not set.
    """
    missing = [name for name in record.required if name not in actor.loss_options]
    if missing:
        raise ConfigError(
            f"actor.policy_loss={actor.policy_loss} needs actor.loss_options.{missing[0]} - it is not set - add it"
        )
    unknown = sorted(set(actor.loss_options) - set(record.options))
    if unknown:
        valid = ", ".join(record.options) or "none"
        raise ConfigError(
            f"actor.loss_options may hold for actor.policy_loss={actor.policy_loss}: {valid} - got "
            f"{', '.join(unknown)} - remove or rename"
        )


def _options(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    return {
        name: item
        for name, item in inspect.signature(function).parameters.items()
        if name not in GIVEN and item.kind not in (item.VAR_KEYWORD, item.VAR_POSITIONAL)
    }
