"""From outcomes to the batch: check, policy, scores, columns."""

import pytest

from ppo_lightning.config.schema import RewardConfig
from ppo_lightning.errors import RewardError
from ppo_lightning.rewards.assemble import assemble
from ppo_lightning.rewards.sample import Scored


def test_good_and_failed_rows_side_by_side():
    scored = [Scored(0, 1.0, {"acc": 1.0}), Scored(1, None, {}, "timeout", "slow"), Scored(2, 0.0, {"acc": 0.0})]
    done = assemble(scored, [2, 3, 0], 3, RewardConfig(max_error_share=0.5))
    assert done.rm_scores.tolist() == [[0, 1, 0], [0, 0, 0], [0, 0, 0]]
    assert done.keep.tolist() == [True, False, True]
    assert done.columns["acc"].tolist() == [1.0, None, 0.0]
    assert done.counts["reward/timeout"] == 1
    assert [(item.row, item.detail) for item in done.faults] == [(1, "slow")]


def test_columns_that_do_not_fit_count_before_the_policy_decides():
    """The naive order - policy first - would let a bad token column through to the tensor."""
    scored = [Scored(0, 1.0, {"token_scores": [1.0, 2.0]}), Scored(1, 1.0, {"token_scores": [1.0]})]
    done = assemble(scored, [2, 2], 3, RewardConfig(manager="token", on_error="score:-1"))
    assert done.rm_scores.tolist() == [[1, 2, 0], [0, -1, 0]]
    assert done.counts["reward/too_few"] == 1
    with pytest.raises(RewardError, match="1 too_few"):
        assemble(scored, [2, 2], 3, RewardConfig(manager="token"))
