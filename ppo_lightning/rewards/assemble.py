"""The last stretch of scoring, for both routes: from outcomes to what a batch gains, in the one right order."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ppo_lightning.config.schema import RewardConfig
from ppo_lightning.rewards.managers import columns, rm_scores, vet
from ppo_lightning.rewards.policy import settle
from ppo_lightning.rewards.sample import Scored


@dataclass(frozen=True)
class RowScores:
    """What a batch gains from its rewards.

    Attributes:
        rm_scores: (B, R) float32.
        columns: extra columns (B,), None where a row lacks a key.
        keep: (B,) bool; False for rows that failed and are dropped from their group.
        counts: failed samples by `reward/<kind>`.
        faults: the failed samples with their tracebacks.
    """

    rm_scores: Tensor
    columns: dict[str, Any]
    keep: Tensor
    counts: dict[str, int]
    faults: list[Scored]


def assemble(scored: Sequence[Scored], lengths: Sequence[int], width: int, config: RewardConfig) -> RowScores:
    """Check the outcomes, apply the fault policy, and write the scores.

    Args:
        scored: one outcome per row, in row order.
        lengths: valid response tokens per row (L_i).
        width: response width (R).
        config: the reward section.

    Raises:
        RewardError: more samples failed than the policy allows, or a manager of your own returned nonsense.
    """
    verdict = settle(vet(scored, lengths, config), config)
    return RowScores(
        rm_scores(verdict.scored, lengths, width, config),
        columns(verdict.scored, lengths, width, config),
        torch.tensor(verdict.keep, dtype=torch.bool),
        verdict.counts,
        [item for item in verdict.scored if item.fault is not None],
    )
