"""Stage 3: every row has its reward in rm_scores, whoever wrote it.

Rule rewards arrive with the rollout; a reward model scores whole batches here, only if it is on and nothing is scored.
"""

from collections.abc import Callable

import torch

from ppo_lightning.errors import RewardError
from ppo_lightning.metrics.values import MetricBook
from ppo_lightning.protocol.data_proto import DataProto
from ppo_lightning.rewards.assemble import RowScores, write
from ppo_lightning.rewards.streaming import HELD
from ppo_lightning.stages.context import StepContext


def score(batch: DataProto, context: StepContext) -> None:
    """Score the batch if a reward model is on and no scores are there.

    Reads: responses, response_mask, (rm_scores), finish_reason.
    Writes: rm_scores (B, R), extra columns; is_padding and response_mask where rows are dropped; response_mask
        without truncated responses if algorithm.mask_truncated is on.

    Raises:
        RewardError: nobody scored, or more rows failed than the policy allows.
    """
    score_rows(batch, context.score_batch, context.book)
    if context.config.algorithm.mask_truncated:
        mask_truncated(batch)


def score_rows(batch: DataProto, score_batch: Callable[[DataProto], RowScores] | None, book: MetricBook) -> None:
    """Do the same for any batch, of training or validation."""
    if "rm_scores" in batch.tensors():
        batch.non_tensor_batch.pop(HELD, None)
        return
    if score_batch is None:
        raise RewardError("no rewards: the rollout brought no rm_scores and no reward model is on (reward.model_path)")
    write(score_batch(batch), batch, book)


def mask_truncated(batch: DataProto) -> None:
    """Take responses that were cut off at their limit out of the loss; their scores still count in their groups."""
    cut = torch.from_numpy(batch.non_tensor_batch["finish_reason"] == "length")
    mask = batch.batch["response_mask"]
    batch.batch["response_mask"] = torch.where(cut.to(mask.device).unsqueeze(-1), torch.zeros_like(mask), mask)
