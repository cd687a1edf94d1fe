"""What can be wrong in the reward section, found before any model loads. Imports no torch."""

from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

from ppo_lightning.algorithms.tables import resolve
from ppo_lightning.config.schema import RewardConfig
from ppo_lightning.errors import ConfigError
from ppo_lightning.rewards.combine import parts_of
from ppo_lightning.rewards.policy import substitute
from ppo_lightning.rewards.routes import has_reward_model

MANAGER_NAMES = ("naive", "dapo", "batch", "token", "turn")


def problems(config: RewardConfig, response_tokens: int) -> list[str]:
    """Return every problem as a message that names its key; empty when there is none.

    Args:
        config: the reward section.
        response_tokens: rollout.response_tokens (R), which the overlong buffer must fit into.
    """
    found = [*_ranges(config), *_files(config), *_manager(config, response_tokens)]
    checks: tuple[Callable[[RewardConfig], Any], ...] = (substitute, parts_of)
    for check in checks:
        try:
            check(config)
        except ConfigError as error:
            found.append(str(error))
    return found


def _ranges(config: RewardConfig) -> list[str]:
    rules = {
        "reward.max_error_share must be at most 1": (config.max_error_share <= 1, config.max_error_share),
        "reward.overlong_penalty must be at least 0": (config.overlong_penalty >= 0, config.overlong_penalty),
    }
    return [f"{rule} - got {value}" for rule, (holds, value) in rules.items() if not holds]


def _files(config: RewardConfig) -> list[str]:
    found = []
    if config.path is not None and not Path(config.path).expanduser().is_file():
        found.append(f"reward.path must be a Python file - there is none at {config.path}")
    if config.path is not None and config.scorer != "auto":
        found.append(f"reward.path and reward.scorer={config.scorer} exclude each other: move one into reward.parts")
    if config.model_server is not None and urlparse(config.model_server).scheme not in ("http", "https"):
        found.append(f"reward.model_server must look like http://host:8000 - got {config.model_server!r}")
    if config.model_own_resources and config.model_path is None and config.model_server is None:
        found.append("reward.model_own_resources needs reward.model_path or reward.model_server")
    return found


def _manager(config: RewardConfig, response_tokens: int) -> list[str]:
    found = []
    if config.manager not in MANAGER_NAMES and ":" not in config.manager:
        names = ", ".join(MANAGER_NAMES)
        found.append(f"reward.manager must be one of {names}, or module:function - got {config.manager!r}")
    if ":" in config.manager:
        try:
            resolve(config.manager)
        except ConfigError as error:
            found.append(f"reward.manager: {error}")
    if config.manager in ("token", "turn") and has_reward_model(config):
        found.append(f"reward.manager={config.manager} takes the rule's token rewards: a reward model gives none")
    if config.overlong_buffer_tokens and config.manager in MANAGER_NAMES and config.manager != "dapo":
        found.append(f"reward.overlong_buffer_tokens needs reward.manager=dapo - got {config.manager}")
    if not 0 <= config.overlong_buffer_tokens <= response_tokens:
        found.append(
            f"reward.overlong_buffer_tokens={config.overlong_buffer_tokens} must be between 0 and "
            f"rollout.response_tokens={response_tokens}"
        )
    return found
