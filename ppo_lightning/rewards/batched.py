"""Route B: decode the responses, let the reward model score them, add what rules gave, write rm_scores."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ppo_lightning.config.schema import Config, RewardConfig
from ppo_lightning.protocol.data_proto import DataProto
from ppo_lightning.rewards.assemble import RowScores, assemble
from ppo_lightning.rewards.reward_model import BatchScorer, reward_model, score_batch
from ppo_lightning.rewards.sample import Sample, Scored
from ppo_lightning.rewards.streaming import RuleRewards


class BatchedRewards:
    """Scores whole batches with a reward model.

    Args:
        model: the reward model.
        tokenizer: the policy's, which decodes the responses; the reward model renders chats with its own.
        config: the reward section.

    Attributes:
        rules: rule rewards whose scores are added to the model's; None: the model alone scores.
    """

    def __init__(self, model: BatchScorer, tokenizer: Any, config: RewardConfig) -> None:
        self.model, self.tokenizer, self.config = model, tokenizer, config
        self.rules: RuleRewards | None = None

    def __call__(self, batch: DataProto) -> RowScores:
        """Score every row.

        Reads: responses, attention_mask, raw_prompt, data_source, reward_model, extra_info.

        Raises:
            RewardError: more samples failed than the policy allows.
        """
        tensors = batch.tensors()
        self.model.to(tensors["responses"].device)
        width = tensors["responses"].shape[1]
        lengths = tensors["attention_mask"][:, -width:].sum(-1).tolist()
        samples = self.samples(batch, lengths)
        scored = score_batch(samples, self.model.workers())
        if self.rules is not None:
            scored = add(self.rules.outcomes(batch, samples), scored)
        return assemble(scored, lengths, width, self.config)

    def samples(self, batch: DataProto, lengths: list[int]) -> list[Sample]:
        """Return the rows as samples; only valid response tokens are decoded."""
        columns = batch.non_tensor_batch
        responses = batch.tensors()["responses"].tolist()
        return [
            Sample(
                row,
                str(columns["data_source"][row]),
                self.tokenizer.decode(ids[:length], skip_special_tokens=True),
                columns["reward_model"][row]["ground_truth"],
                columns["extra_info"][row],
                columns["raw_prompt"][row],
                ids[:length],
            )
            for row, (ids, length) in enumerate(zip(responses, lengths, strict=True))
        ]


def add(rules: Sequence[Scored], models: Sequence[Scored]) -> list[Scored]:
    """Add the reward model's score to the rules' score of each row; a row fails when either failed."""
    return [_added(rule, model) for rule, model in zip(rules, models, strict=True)]


def _added(rule: Scored, model: Scored) -> Scored:
    extra, seconds = rule.extra | model.extra, rule.seconds + model.seconds
    detail = "\n".join(text for text in (rule.detail, model.detail) if text) or None
    if rule.score is None or model.score is None:
        return Scored(model.row, None, extra, rule.fault or model.fault, detail, seconds)
    score = rule.score + model.score
    extra |= {"score": score} if "score" in extra else {}
    return replace(model, score=score, extra=extra, detail=detail, seconds=seconds)


def build_reward_model(config: Config, tokenizer: Any) -> BatchedRewards:
    """Make route B from a configuration.

    Raises:
        RewardError: the reward model cannot be loaded or reached.
    """
    model = reward_model(config.reward, config.model.trust_remote_code)
    return BatchedRewards(model, tokenizer, config.reward)
