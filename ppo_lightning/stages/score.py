"""Stage 3: every row has its reward in rm_scores, whoever wrote it.

Rule rewards arrive with the rollout; a reward model scores whole batches here, only if it is on and nothing is scored.
"""

from collections.abc import Callable

from ppo_lightning.errors import RewardError
from ppo_lightning.metrics.values import MetricBook
from ppo_lightning.protocol.data_proto import DataProto
from ppo_lightning.rewards.assemble import RowScores, write
from ppo_lightning.rewards.streaming import HELD
from ppo_lightning.stages.context import StepContext


def score(batch: DataProto, context: StepContext) -> None:
    """Score the batch if a reward model is on and no scores are there.

    Reads: responses, response_mask, (rm_scores).
    Writes: rm_scores (B, R), extra columns; is_padding and response_mask where rows are dropped.

    Raises:
        RewardError: nobody scored, or more rows failed than the policy allows.
    """
    score_rows(batch, context.score_batch, context.book)


def score_rows(batch: DataProto, score_batch: Callable[[DataProto], RowScores] | None, book: MetricBook) -> None:
    """Do the same for any batch, of training or validation."""
    if "rm_scores" in batch.tensors():
        batch.non_tensor_batch.pop(HELD, None)
        return
    if score_batch is None:
        raise RewardError("no rewards: the rollout brought no rm_scores and no reward model is on (reward.model_path)")
    write(score_batch(batch), batch, book)
