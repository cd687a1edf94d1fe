"""Stage 3: every row has its reward in rm_scores, whoever wrote it.

Rule rewards arrive with the rollout; a reward model scores whole batches here, only if it is on and nothing is scored.
"""

import torch

from ppo_lightning.errors import RewardError
from ppo_lightning.protocol.data_proto import DataProto
from ppo_lightning.stages.context import StepContext


def score(batch: DataProto, context: StepContext) -> None:
    """Score the batch if a reward model is on and no scores are there.

    Reads: responses, response_mask, (rm_scores), finish_reason.
    Writes: rm_scores (B, R); response_mask without truncated responses if algorithm.mask_truncated is on.

    Raises:
        RewardError: nobody scored.
    """
    if context.score_batch is not None and "rm_scores" not in batch.batch:
        batch.batch["rm_scores"] = context.score_batch(batch)
    if "rm_scores" not in batch.batch:
        raise RewardError("no rewards: the rollout brought no rm_scores and no reward model is on (reward.model_path)")
    if context.config.algorithm.mask_truncated:
        mask_truncated(batch)


def mask_truncated(batch: DataProto) -> None:
    """Take responses that were cut off at their limit out of the loss; their scores still count in their groups."""
    cut = torch.from_numpy(batch.non_tensor_batch["finish_reason"] == "length")
    mask = batch.batch["response_mask"]
    batch.batch["response_mask"] = torch.where(cut.to(mask.device).unsqueeze(-1), torch.zeros_like(mask), mask)
