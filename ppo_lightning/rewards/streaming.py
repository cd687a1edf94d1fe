"""Route A during the rollout: each finished response goes to the pool while others still generate."""

import torch

from ppo_lightning.config.schema import RewardConfig
from ppo_lightning.engines.base import Completion
from ppo_lightning.protocol.data_proto import DataProto
from ppo_lightning.rewards.assemble import RowScores, assemble
from ppo_lightning.rewards.pool import RewardPool
from ppo_lightning.rewards.sample import Sample


class StreamedRewards:
    """Hands finished responses to the pool and lays the scores out as a batch wants them."""

    def __init__(self, pool: RewardPool, config: RewardConfig) -> None:
        self.pool, self.config = pool, config

    def submit(self, batch: DataProto, completion: Completion, text: str) -> None:
        """Hand in the finished response of a row; returns at once."""
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

    def collect(self, lengths: torch.Tensor, width: int) -> RowScores:
        """Wait for all rows and apply the policy for those that failed.

        Raises:
            RewardError: more failed than the policy allows.
        """
        return assemble(self.pool.collect(), lengths.tolist(), width, self.config)

    def close(self) -> None:
        """End the worker processes."""
        self.pool.close()
