"""Stage 3: every row has its reward in rm_scores, whoever wrote it.

Rule rewards arrive with the rollout; a reward model scores whole batches here, only if it is on and nothing is scored.
"""

from ppo_lightning.errors import RewardError
from ppo_lightning.protocol.data_proto import DataProto
from ppo_lightning.stages.context import StepContext


def score(batch: DataProto, context: StepContext) -> None:
    """Score the batch if a reward model is on and no scores are there.

    Reads: responses, response_mask, (rm_scores).
    Writes: rm_scores (B, R).

    Raises:
        RewardError: nobody scored.
    """
    if context.score_batch is not None and "rm_scores" not in batch.batch:
        batch.batch["rm_scores"] = context.score_batch(batch)
    if "rm_scores" not in batch.batch:
        raise RewardError("no rewards: the rollout brought no rm_scores and no reward model is on (reward.model_path)")
