import numpy as np
import pytest
import torch

from ppo_lightning.protocol.data_proto import DataProto


@pytest.fixture
def make_batch():
    """Build a batch with given lengths and random per-token fields; whatever is masked is junk."""

    def build(response_lengths, prompt_lengths=None, width=5, prompt_width=4, seed=0, **fields):
        rng = np.random.RandomState(seed)
        rows = len(response_lengths)
        prompt_lengths = [2] * rows if prompt_lengths is None else prompt_lengths
        response_mask = torch.arange(width) < torch.tensor(response_lengths).reshape(-1, 1)
        prompt_mask = torch.arange(prompt_width) >= prompt_width - torch.tensor(prompt_lengths).reshape(-1, 1)
        tensors = {
            "prompts": torch.zeros(rows, prompt_width, dtype=torch.int64),
            "responses": torch.zeros(rows, width, dtype=torch.int64),
            "attention_mask": torch.cat([prompt_mask, response_mask], 1).long(),
            "response_mask": response_mask.long(),
        }
        for name in ("token_level_scores", "token_level_rewards", "advantages", "returns", "values"):
            tensors[name] = torch.tensor(rng.randn(rows, width), dtype=torch.float32)
        for name in ("old_log_probs", "rollout_log_probs"):
            tensors[name] = torch.tensor(-rng.rand(rows, width), dtype=torch.float32)
        tensors |= fields
        return DataProto.from_dict(tensors)

    return build


@pytest.fixture
def over_ranks():
    """Compute books as if each were one rank; all ranks must see the same numbers."""

    def compute(*books):
        packs = []
        for book in books:
            book.compute(lambda mine: packs.append(mine) or [mine])
        results = [book.compute(lambda _: packs) for book in books]
        assert all(result == results[0] for result in results)
        return results[0]

    return compute
