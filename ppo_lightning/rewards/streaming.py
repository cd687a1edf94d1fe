"""Rule rewards (route A) around a rollout: handed in while others still generate, or all of them after it."""

from collections.abc import Sequence

import torch

from ppo_lightning.config.schema import RewardConfig
from ppo_lightning.engines.base import Completion
from ppo_lightning.metrics.values import MetricBook
from ppo_lightning.protocol.columns import as_column
from ppo_lightning.protocol.data_proto import DataProto
from ppo_lightning.rewards.assemble import assemble, write
from ppo_lightning.rewards.pool import RewardPool
from ppo_lightning.rewards.routes import Route
from ppo_lightning.rewards.sample import Sample, Scored

HELD = "rule_outcomes"
"""Column of streamed outcomes that wait for the reward model's part; it travels with its rows, and route B pops it."""


class RuleRewards:
    """Hands finished responses to the pool, at the time that the route says.

    Args:
        pool: what scores.
        config: the reward section.
        route: when, and whether a reward model adds its part.
    """

    def __init__(self, pool: RewardPool, config: RewardConfig, route: Route) -> None:
        self.pool, self.config, self.route = pool, config, route

    def submit(self, batch: DataProto, completion: Completion, text: str) -> None:
        """Hand in the finished response of a row; returns at once."""
        if self.route.rule != "streamed":
            return
        row, columns_of = completion.row, batch.non_tensor_batch
        self.pool.submit(
            Sample(
                row=row,
                data_source=columns_of["data_source"][row],
                solution_str=text,
                ground_truth=columns_of["reward_model"][row]["ground_truth"],
                extra_info=columns_of["extra_info"][row],
                prompt=columns_of["raw_prompt"][row],
                response_ids=completion.token_ids,
            )
        )

    def finish(self, filled: DataProto, lengths: torch.Tensor, width: int, book: MetricBook) -> None:
        """Wait for what was streamed, and write the scores, or keep them for the reward model to add its part.

        Raises:
            RewardError: more samples failed than the policy allows.
        """
        if self.route.rule != "streamed":
            return
        outcomes = self.pool.collect()
        if self.route.model:
            filled.non_tensor_batch[HELD] = as_column(outcomes)
        else:
            write(assemble(outcomes, lengths.tolist(), width, self.config), filled, book)

    def outcomes(self, batch: DataProto, samples: Sequence[Sample]) -> list[Scored]:
        """Return one outcome per row: those that were streamed, else those of `samples`, scored now."""
        if HELD in batch.non_tensor_batch:
            held: list[Scored] = batch.pop(non_tensor_batch_keys=[HELD]).non_tensor_batch[HELD].tolist()
            return held
        return self.pool.score(samples)

    def close(self) -> None:
        """End the worker processes."""
        self.pool.close()
