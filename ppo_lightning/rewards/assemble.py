"""The last stretch of scoring, for both routes: from outcomes to what a batch gains, in the one right order."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ppo_lightning.config.schema import RewardConfig
from ppo_lightning.metrics.values import MetricBook
from ppo_lightning.protocol.columns import as_column
from ppo_lightning.protocol.data_proto import DataProto
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
        seconds: that the samples took, added up over workers.
    """

    rm_scores: Tensor
    columns: dict[str, Any]
    keep: Tensor
    counts: dict[str, int]
    faults: list[Scored]
    seconds: float = 0.0


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
        columns(verdict.scored, lengths, width, config) | _fault_columns(verdict.scored),
        torch.tensor(verdict.keep, dtype=torch.bool),
        verdict.counts,
        [item for item in verdict.scored if item.fault is not None],
        sum(item.seconds for item in scored),
    )


def _fault_columns(scored: Sequence[Scored]) -> dict[str, "np.ndarray[Any, Any]"]:
    """Return the columns `reward_fault` (kind) and `reward_detail` (traceback), where there is anything to tell."""
    told = {"reward_fault": [item.fault for item in scored], "reward_detail": [item.detail for item in scored]}
    return {name: as_column(values) for name, values in told.items() if any(value is not None for value in values)}


def write(scores: RowScores, batch: DataProto, book: MetricBook) -> None:
    """Put scores into a batch and its counts into the book; rows that are dropped get weight 0 and count nowhere.

    Reads: response_mask.
    Writes: rm_scores, the extra columns; is_padding and response_mask where rows are dropped.
    """
    mask = batch.tensors()["response_mask"]
    gained = {"rm_scores": scores.rm_scores.to(mask.device)}
    if not bool(scores.keep.all()):
        keep = scores.keep.to(mask.device)
        gained["is_padding"] = ~keep
        batch.pop(["response_mask"])
        gained["response_mask"] = mask * keep.to(mask).unsqueeze(-1)
    batch.union(DataProto.from_dict(gained, scores.columns))
    for key, number in scores.counts.items():
        book.sum(key, number)
    book.sum("timing_s/reward_busy", scores.seconds)
