"""Where a score lands: from the outcomes of a step to `rm_scores` (B, R) and the extra columns.

A manager is `fn(scored, lengths, width, config) -> (B, R) float32`; module:function names your own.
Shapes: B rows, R response width (`width`), L_i = lengths[i] valid response tokens of row i.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ppo_lightning.algorithms.tables import resolve
from ppo_lightning.config.schema import RewardConfig
from ppo_lightning.errors import ConfigError, RewardError
from ppo_lightning.protocol.fields import FIELDS
from ppo_lightning.rewards.sample import Scored

TAKEN = frozenset(FIELDS) | {"input", "output", "gts", "step", "advantage", "response_length"}
"""Names no extra column can have: fields of a batch, keys of the rollout dump (not `score`: the dump's wins)."""

Manager = Callable[[Sequence[Scored], Sequence[int], int, RewardConfig], Tensor]


def naive(scored: Sequence[Scored], lengths: Sequence[int], width: int, config: RewardConfig) -> Tensor:
    """Write each score at the last valid token, L_i - 1; at -1, the masked last column, when L_i = 0.

    So `rm_scores.sum(-1)` restores every score, and the loss never sees that of an empty response (SPEC 2.1, 2.2).
    """
    rows = torch.zeros(len(scored), width, dtype=torch.float32)
    for row, (item, length) in enumerate(zip(scored, lengths, strict=True)):
        if item.score is not None:
            rows[row, length - 1] = item.score
    return rows


def dapo(scored: Sequence[Scored], lengths: Sequence[int], width: int, config: RewardConfig) -> Tensor:
    """Add the soft overlong penalty to each score (DAPO, section 3.4), then write it like `naive`.

    The score's own columns stay as the scorer gave them; the penalty is the column `overlong_reward`.
    """
    penalties = [overlong(length, width, config.overlong_buffer_tokens, config.overlong_penalty) for length in lengths]
    return naive(
        [
            item if item.score is None else replace(item, score=item.score + penalty)
            for item, penalty in zip(scored, penalties, strict=True)
        ],
        lengths,
        width,
        config,
    )


def overlong(length: int, width: int, buffer: int, penalty: float) -> float:
    """Return the soft overlong penalty: 0 up to width - buffer tokens, then linearly down to -penalty at width.

    A buffer of 0 tokens is no penalty zone, so there is no penalty.
    """
    if buffer <= 0:
        return 0.0
    return -penalty * min(1.0, max(0.0, (length - (width - buffer)) / buffer))


def token(scored: Sequence[Scored], lengths: Sequence[int], width: int, config: RewardConfig) -> Tensor:
    """Write one reward per response token: the column `token_scores`, L_i numbers in row i.

    A score that the fault policy put in lands on the last token.
    """
    rows = torch.zeros(len(scored), width, dtype=torch.float32)
    for row, (item, length) in enumerate(zip(scored, lengths, strict=True)):
        if item.score is not None and length:
            rewards = [0.0] * (length - 1) + [item.score] if item.fault else item.extra["token_scores"]
            rows[row, :length] = torch.tensor(rewards, dtype=torch.float32)
    return rows


def turn(scored: Sequence[Scored], lengths: Sequence[int], width: int, config: RewardConfig) -> Tensor:
    """Write one reward per turn at the turn's last token: the columns `turn_scores` and `turn_ends` (token indices).

    A score that the fault policy put in lands on the last token.
    """
    rows = torch.zeros(len(scored), width, dtype=torch.float32)
    for row, (item, length) in enumerate(zip(scored, lengths, strict=True)):
        if item.score is None or not length:
            continue
        substituted: dict[str, Any] = {"turn_ends": [length - 1], "turn_scores": [item.score]}
        turns = substituted if item.fault else item.extra
        for end, reward in zip(turns["turn_ends"], turns["turn_scores"], strict=True):
            rows[row, end] += reward
    return rows


MANAGERS: dict[str, Manager] = {"naive": naive, "dapo": dapo, "batch": naive, "token": token, "turn": turn}
"""name -> manager; `batch` writes like naive (functions that score whole batches are recognised by their signature)."""


def manager_of(config: RewardConfig) -> Manager:
    """Return the manager that the configuration names.

    Raises:
        ConfigError: the name is unknown, or options do not belong together.
    """
    if config.overlong_buffer_tokens and config.manager == "naive":
        raise ConfigError("reward.overlong_buffer_tokens needs reward.manager=dapo - got naive, which knows no penalty")
    if config.manager in MANAGERS:
        return MANAGERS[config.manager]
    if ":" not in config.manager:
        names = ", ".join(MANAGERS)
        raise ConfigError(f"reward.manager must be one of {names}, or module:function - got {config.manager!r}")
    try:
        return resolve(config.manager)
    except ConfigError as error:
        raise ConfigError(f"reward.manager={config.manager} cannot be imported: {error}") from error


def vet(scored: Sequence[Scored], lengths: Sequence[int], config: RewardConfig) -> list[Scored]:
    """Turn outcomes whose per-token or per-turn columns do not fit into faults, before the policy sees them."""
    check = {"token": _token_fault, "turn": _turn_fault}.get(config.manager)
    if check is None:
        return list(scored)
    return [_vetted(item, check(item.extra, length)) for item, length in zip(scored, lengths, strict=True)]


def _vetted(item: Scored, problem: tuple[str, str] | None) -> Scored:
    if item.fault is not None or problem is None:
        return item
    return replace(item, score=None, fault=problem[0], detail=problem[1])


def _token_fault(extra: dict[str, Any], length: int) -> tuple[str, str] | None:
    return _numbers_fault(extra, "token_scores", length)


def _turn_fault(extra: dict[str, Any], length: int) -> tuple[str, str] | None:
    ends = extra.get("turn_ends")
    if not isinstance(ends, list):
        return "missing_score", "reward.manager=turn needs the columns turn_ends and turn_scores in the dict"
    if any(not isinstance(end, int) or not 0 <= end < length for end in ends):
        return "wrong_type", f"turn_ends must be token indices below the response's {length} tokens - got {ends}"
    return _numbers_fault(extra, "turn_scores", len(ends))


def _numbers_fault(extra: dict[str, Any], column: str, count: int) -> tuple[str, str] | None:
    values = extra.get(column)
    if values is None:
        return "missing_score", f"the dict must hold {column} beside score"
    if not isinstance(values, list) or any(not isinstance(value, int | float) for value in values):
        return "wrong_type", f"{column} must be a list of numbers - got {str(values)[:200]}"
    if len(values) != count:
        return "too_few", f"{column} must hold {count} numbers - got {len(values)}"
    if not all(math.isfinite(value) for value in values):
        return "nan", f"{column} must be finite"
    return None


def rm_scores(scored: Sequence[Scored], lengths: Sequence[int], width: int, config: RewardConfig) -> Tensor:
    """Return rm_scores (B, R) float32 for the outcomes of a step; rows without a score are zero.

    Raises:
        RewardError: a manager of your own returned another shape or something that is not finite.
    """
    rows = manager_of(config)(scored, lengths, width, config)
    wanted = (len(scored), width)
    if not isinstance(rows, Tensor) or tuple(rows.shape) != wanted:
        got = tuple(rows.shape) if isinstance(rows, Tensor) else type(rows).__name__
        raise RewardError(f"reward.manager={config.manager} must return a tensor of shape {wanted} - got {got}")
    if not bool(torch.isfinite(rows).all()):
        raise RewardError(f"reward.manager={config.manager} must return finite rewards - some are not")
    return rows.float()


def columns(
    scored: Sequence[Scored], lengths: Sequence[int], width: int, config: RewardConfig
) -> dict[str, "np.ndarray[Any, Any]"]:
    """Return the extra columns as object arrays (B,): the union over the batch; None where a row lacks a key.

    A key that names something else in a batch or its dump gets the prefix `reward_`.
    """
    extras = [item.extra for item in scored]
    if config.manager == "dapo" and config.overlong_buffer_tokens:
        penalties = [
            overlong(length, width, config.overlong_buffer_tokens, config.overlong_penalty) for length in lengths
        ]
        extras = [{**extra, "overlong_reward": penalty} for extra, penalty in zip(extras, penalties, strict=True)]
    found: dict[str, np.ndarray[Any, Any]] = {}
    for name in sorted({name for extra in extras for name in extra}):
        column = np.empty(len(extras), dtype=object)
        for row, extra in enumerate(extras):
            column[row] = extra.get(name)
        found[f"reward_{name}" if name in TAKEN else name] = column
    return found
