"""Where a score lands in rm_scores, and which extra columns go with it."""

import pytest
import torch

from ppo_lightning.config.schema import RewardConfig
from ppo_lightning.errors import ConfigError, RewardError
from ppo_lightning.rewards.managers import columns, manager_of, overlong, rm_scores, vet
from ppo_lightning.rewards.sample import Scored


def own_manager(scored, lengths, width, config):
    """Half at the first token, half at the last."""
    rows = torch.zeros(len(scored), width)
    for row, (item, length) in enumerate(zip(scored, lengths, strict=True)):
        rows[row, 0] += item.score / 2
        rows[row, length - 1] += item.score / 2
    return rows


def flat_manager(scored, lengths, width, config):
    return torch.zeros(len(scored))


def nan_manager(scored, lengths, width, config):
    return torch.full((len(scored), width), float("nan"))


def scores(*values):
    return [Scored(row, value, {"acc": value}) for row, value in enumerate(values)]


def test_one_score_lands_on_the_last_valid_token():
    """PITFALL 16: [t0, t1, eos, pad, pad] and score 1: index 2; a full row: the last column."""
    rows = rm_scores(scores(1.0, 2.0, -3.0), [3, 5, 1], 5, RewardConfig())
    assert rows.dtype == torch.float32
    assert rows.tolist() == [[0, 0, 1, 0, 0], [0, 0, 0, 0, 2], [-3, 0, 0, 0, 0]]


def test_naive_way_at_the_end_of_the_width_would_put_it_on_padding():
    """Negative control: R - 1 instead of L_i - 1 is masked for every row that is not full."""
    rows = rm_scores(scores(1.0), [3], 5, RewardConfig())
    mask = torch.tensor([[1, 1, 1, 0, 0]])
    naive = torch.zeros(1, 5)
    naive[0, -1] = 1.0
    assert float((rows * mask).sum()) == 1.0
    assert float((naive * mask).sum()) == 0.0


def test_an_empty_response_writes_into_the_masked_last_column():
    """SPEC 2.2: index -1; the sum restores the score."""
    rows = rm_scores(scores(0.5), [0], 4, RewardConfig())
    assert rows.tolist() == [[0, 0, 0, 0.5]]
    assert rows.sum(-1).tolist() == [0.5]


def test_a_row_without_a_score_is_zero():
    rows = rm_scores([Scored(0, None, fault="timeout"), Scored(1, 1.0)], [2, 2], 2, RewardConfig())
    assert rows.tolist() == [[0, 0], [0, 1]]


def test_batch_writes_like_naive():
    assert rm_scores(scores(1.0), [2], 3, RewardConfig(manager="batch")).tolist() == [[0, 1, 0]]


def test_dapo_subtracts_the_overlong_penalty():
    """R = 10, buffer 4: free up to 6; L = 8 is half way (-0.5 * 1), L = 10 is full (-1)."""
    config = RewardConfig(manager="dapo", overlong_buffer_tokens=4, overlong_penalty=1.0)
    rows = rm_scores(scores(1.0, 1.0, 1.0), [6, 8, 10], 10, config)
    assert rows.sum(-1).tolist() == [1.0, 0.5, 0.0]
    assert rows[1, 7] == 0.5
    assert columns(scores(1.0, 1.0, 1.0), [6, 8, 10], 10, config)["overlong_reward"].tolist() == [0.0, -0.5, -1.0]


def test_overlong_penalty_table():
    assert [overlong(length, 10, 4, 2.0) for length in (0, 6, 7, 9, 10, 12)] == [0.0, 0.0, -0.5, -1.5, -2.0, -2.0]


def test_an_overlong_buffer_of_zero_is_no_penalty_and_no_division():
    """PITFALL 53; negative control: the plain formula divides by zero."""
    assert overlong(10, 10, 0, 1.0) == 0.0
    with pytest.raises(ZeroDivisionError):
        min(-(10 - (10 - 0)) / 0 * 1.0, 0)
    assert rm_scores(scores(1.0), [10], 10, RewardConfig(manager="dapo")).sum() == 1.0


def test_token_rewards():
    item = Scored(0, 0.6, {"token_scores": [0.1, 0.2, 0.3]})
    rows = rm_scores([item], [3], 5, RewardConfig(manager="token"))
    assert rows[0].tolist() == pytest.approx([0.1, 0.2, 0.3, 0, 0])


def test_turn_rewards_land_at_the_ends_of_turns():
    item = Scored(0, 1.5, {"turn_scores": [0.5, 1.0], "turn_ends": [1, 3]})
    assert rm_scores([item], [4], 5, RewardConfig(manager="turn")).tolist() == [[0, 0.5, 0, 1.0, 0]]


@pytest.mark.parametrize("manager", ["token", "turn"])
def test_a_substituted_score_lands_on_the_last_token(manager):
    item = Scored(0, -1.0, {}, "timeout")
    assert rm_scores([item], [3], 4, RewardConfig(manager=manager)).tolist() == [[0, 0, -1.0, 0]]


@pytest.mark.parametrize(
    ("manager", "extra", "kind"),
    [
        ("token", {}, "missing_score"),
        ("token", {"token_scores": [1.0]}, "too_few"),
        ("token", {"token_scores": [1.0, float("nan")]}, "nan"),
        ("token", {"token_scores": "11"}, "wrong_type"),
        ("token", {"token_scores": [1.0, None]}, "wrong_type"),
        ("turn", {"turn_scores": [1.0]}, "missing_score"),
        ("turn", {"turn_ends": [2], "turn_scores": [1.0]}, "wrong_type"),
        ("turn", {"turn_ends": [0, 1], "turn_scores": [1.0]}, "too_few"),
    ],
)
def test_columns_that_do_not_fit_are_faults_by_kind(manager, extra, kind):
    vetted = vet([Scored(0, 1.0, extra)], [2], RewardConfig(manager=manager))[0]
    assert (vetted.score, vetted.fault) == (None, kind)


def test_columns_that_fit_and_other_managers_pass():
    fine = [Scored(0, 1.0, {"token_scores": [1.0, 0]}), Scored(1, None, {}, "timeout", "t")]
    assert vet(fine, [2, 2], RewardConfig(manager="token")) == fine
    assert vet(scores(1.0), [2], RewardConfig()) == scores(1.0)


def test_a_manager_of_ones_own_writes_any_position():
    config = RewardConfig(manager=f"{__name__}:own_manager")
    assert rm_scores(scores(1.0, 3.0), [3, 1], 4, config).tolist() == [[0.5, 0, 0.5, 0], [3.0, 0, 0, 0]]


@pytest.mark.parametrize(
    ("name", "message"), [("flat_manager", r"shape \(1, 3\) - got \(1,\)"), ("nan_manager", "finite")]
)
def test_a_manager_of_ones_own_is_checked(name, message):
    with pytest.raises(RewardError, match=message):
        rm_scores(scores(1.0), [2], 3, RewardConfig(manager=f"{__name__}:{name}"))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (RewardConfig(manager="daop"), "reward.manager must be one of naive, dapo, batch, token, turn"),
        (RewardConfig(manager="nowhere:f"), "reward.manager=nowhere:f cannot be imported"),
        (RewardConfig(overlong_buffer_tokens=4), "reward.overlong_buffer_tokens needs reward.manager=dapo"),
    ],
)
def test_managers_that_do_not_exist_or_fit_are_config_errors(config, message):
    with pytest.raises(ConfigError, match=message):
        manager_of(config)


def test_columns_are_the_union_and_absent_is_none_not_zero():
    """PITFALL 52: taken from sample 0 only, `b` would be lost; filled with 0, its mean would be 1 instead of 2."""
    extras = [{"acc": 0.0}, {"acc": 1.0, "b": 2.0}, {}, {"c": [1, 2]}, {"c": [1, 2, 3]}]
    found = columns([Scored(row, 0.0, extra) for row, extra in enumerate(extras)], [1] * 5, 2, RewardConfig())
    assert {name: column.tolist() for name, column in found.items()} == {
        "acc": [0.0, 1.0, None, None, None],
        "b": [None, 2.0, None, None, None],
        "c": [None, None, None, [1, 2], [1, 2, 3]],
    }
    assert all(column.shape == (5,) and column.dtype == object for column in found.values())


def test_a_column_cannot_take_the_name_of_a_field_of_the_batch():
    """`uid` would regroup the batch, `values` would stand for the critic's; `acc` and `score` are free."""
    extra = {"uid": 1, "values": 2.0, "gts": "x", "acc": 1.0, "score": 0.5}
    found = columns([Scored(0, 0.5, extra)], [3], 4, RewardConfig())
    assert sorted(found) == ["acc", "reward_gts", "reward_uid", "reward_values", "score"]
    assert found["reward_uid"].tolist() == [1]
