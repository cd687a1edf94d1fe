"""Route B on a batch: decode the responses, have the reward model score them, lay the scores out."""

from typing import Any

from torch import Tensor

from ppo_lightning.config.schema import Config, RewardConfig
from ppo_lightning.protocol.data_proto import DataProto
from ppo_lightning.rewards.assemble import RowScores, assemble
from ppo_lightning.rewards.reward_model import BatchScorer, reward_model, score_batch
from ppo_lightning.rewards.sample import Sample


class BatchedRewards:
    """Scores whole batches with a reward model.

    Args:
        model: the reward model.
        tokenizer: the policy's, which decodes the responses; the reward model renders chats with its own.
        config: the reward section.
    """

    def __init__(self, model: BatchScorer, tokenizer: Any, config: RewardConfig) -> None:
        self.model, self.tokenizer, self.config = model, tokenizer, config

    def score(self, batch: DataProto) -> RowScores:
        """Score every row.

        Reads: responses, attention_mask, raw_prompt, data_source.

        Raises:
            RewardError: more samples failed than the policy allows.
        """
        self.model.to(batch.batch["responses"].device)
        width = batch.batch["responses"].shape[1]
        lengths = batch.batch["attention_mask"][:, -width:].sum(-1).tolist()
        scored = score_batch(self.samples(batch, lengths), self.model.workers())
        return assemble(scored, lengths, width, self.config)

    def samples(self, batch: DataProto, lengths: list[int]) -> list[Sample]:
        """Return the rows as samples; only valid response tokens are decoded."""
        columns = batch.non_tensor_batch
        responses = batch.batch["responses"].tolist()
        return [
            Sample(
                row,
                str(columns["data_source"][row]),
                self.tokenizer.decode(ids[:length], skip_special_tokens=True),
                prompt=columns["raw_prompt"][row],
            )
            for row, (ids, length) in enumerate(zip(responses, lengths, strict=True))
        ]

    def __call__(self, batch: DataProto) -> Tensor:
        """Return rm_scores (B, R), and add to the batch what comes with them: extra columns, weight 0 for dropped rows.

        Writes: the columns; is_padding and response_mask of dropped rows.
        """
        scores = self.score(batch)
        mask = batch.batch["response_mask"]
        batch.non_tensor_batch |= scores.columns
        if not bool(scores.keep.all()):
            keep = scores.keep.to(mask.device)
            batch.batch["is_padding"] = ~keep
            batch.batch["response_mask"] = mask * keep.to(mask).unsqueeze(-1)
        return scores.rm_scores.to(mask.device)


def build_reward_model(config: Config, tokenizer: Any) -> BatchedRewards:
    """Make route B from a configuration.

    Raises:
        RewardError: the reward model cannot be loaded or reached.
    """
    model = reward_model(config.reward, config.model.trust_remote_code)
    return BatchedRewards(model, tokenizer, config.reward)
