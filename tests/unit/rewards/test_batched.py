"""Route B on a batch: what is decoded, where scores land, what becomes of rows that fail."""

import pytest
import torch

from ppo_lightning.config.schema import RewardConfig
from ppo_lightning.errors import RewardError
from ppo_lightning.metrics.values import MetricBook
from ppo_lightning.protocol.columns import as_column
from ppo_lightning.protocol.data_proto import DataProto
from ppo_lightning.rewards.assemble import write
from ppo_lightning.rewards.batched import BatchedRewards, add
from ppo_lightning.rewards.sample import Scored

WORDS = {5: "five", 6: "six", 7: "seven", 2: "<eos>", 0: "<pad>"}


class Words:
    """A tokenizer that knows a few words."""

    def decode(self, ids, skip_special_tokens):
        assert skip_special_tokens
        return " ".join(WORDS[token] for token in ids if token not in (0, 2))


class LengthModel:
    """Scores a response by its words; refuses `seven`."""

    def __init__(self):
        self.seen = []

    def workers(self):
        return [self.score] * 2

    def to(self, device):
        self.device = device

    def score(self, samples):
        self.seen += [(sample.row, sample.prompt[0]["content"], sample.solution_str) for sample in samples]
        if any("seven" in sample.solution_str for sample in samples):
            raise ConnectionError("refused")
        return [float(len(sample.solution_str.split())) for sample in samples]


def batch(responses, lengths):
    """P = 2, R = 4; pad is 0 and eos 2."""
    rows = len(responses)
    mask = torch.tensor([[1] * length + [0] * (4 - length) for length in lengths])
    tensors = {
        "responses": torch.tensor(responses),
        "attention_mask": torch.cat([torch.ones(rows, 2, dtype=torch.long), mask], 1),
        "response_mask": mask,
    }
    columns = {
        "data_source": as_column(["chat"] * rows),
        "raw_prompt": as_column([[{"role": "user", "content": f"q{row}"}] for row in range(rows)]),
        "reward_model": as_column([{"ground_truth": str(row)} for row in range(rows)]),
        "extra_info": as_column([{} for _ in range(rows)]),
    }
    return DataProto.from_dict(tensors=tensors, non_tensors=columns)


def test_scores_land_on_the_last_valid_token_and_padding_is_not_decoded():
    """Row 2 is empty: its score 0 goes to the last column, which is masked."""
    model = LengthModel()
    given = batch([[5, 6, 2, 0], [5, 6, 5, 6], [0, 0, 0, 0], [6, 2, 6, 6]], [3, 4, 0, 2])
    write(BatchedRewards(model, Words(), RewardConfig())(given), given, MetricBook())
    assert given.batch["rm_scores"].tolist() == [[0, 0, 2, 0], [0, 0, 0, 4], [0, 0, 0, 0], [0, 1, 0, 0]]
    assert sorted(model.seen) == [
        (0, "q0", "five six"),
        (1, "q1", "five six five six"),
        (2, "q2", ""),
        (3, "q3", "six"),
    ]
    assert given.non_tensor_batch["rm_score"].tolist() == [2.0, 4.0, 0.0, 1.0]
    assert "is_padding" not in given.batch
    assert model.device == torch.device("cpu")


def test_rows_that_fail_are_dropped_or_stop_the_run():
    """Rows 2 and 3 share the chunk that fails."""
    responses, lengths = [[5, 2, 0, 0], [6, 2, 0, 0], [7, 2, 0, 0], [5, 2, 0, 0]], [2, 2, 2, 2]
    given = batch(responses, lengths)
    book = MetricBook()
    write(BatchedRewards(LengthModel(), Words(), RewardConfig(on_error="drop"))(given), given, book)
    assert book.compute()["reward/exception"] == 2
    assert given.non_tensor_batch["reward_fault"].tolist() == [None, None, "exception", "exception"]
    assert "ConnectionError: refused" in given.non_tensor_batch["reward_detail"][3]
    assert given.batch["rm_scores"].sum(-1).tolist() == [1.0, 1.0, 0.0, 0.0]
    assert given.batch["is_padding"].tolist() == [False, False, True, True]
    assert given.batch["response_mask"].sum(-1).tolist() == [2, 2, 0, 0]
    with pytest.raises(RewardError, match=r"2 of 4 samples .* \(2 exception\)"):
        BatchedRewards(LengthModel(), Words(), RewardConfig())(batch(responses, lengths))
    kept = BatchedRewards(LengthModel(), Words(), RewardConfig(on_error="score:-1"))(batch(responses, lengths))
    assert kept.rm_scores.sum(-1).tolist() == [1.0, 1.0, -1.0, -1.0]
    assert kept.counts["reward/exception"] == 2


def test_rules_and_model_are_added_and_either_may_fail():
    """1 + 0.5; a row fails when the rule failed (row 1) or the model did (row 2); `score` is the sum."""
    rules = [Scored(9, 1.0, {"score": 1.0, "acc": 1.0}, seconds=0.1), Scored(9, None, {}, "nan", "bad"), Scored(9, 1.0)]
    models = [Scored(0, 0.5, {"rm_score": 0.5}, seconds=0.2), Scored(1, 0.5), Scored(2, None, {}, "too_few", "two")]
    added = add(rules, models)
    assert [item.row for item in added] == [0, 1, 2]
    assert [item.score for item in added] == [1.5, None, None]
    assert [item.fault for item in added] == [None, "nan", "too_few"]
    assert added[0].extra == {"score": 1.5, "acc": 1.0, "rm_score": 0.5}
    assert added[0].seconds == pytest.approx(0.3)
    assert [item.detail for item in added] == [None, "bad", "two"]
