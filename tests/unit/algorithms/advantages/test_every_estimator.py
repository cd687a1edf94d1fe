"""What holds for every estimator of the table."""

import math

import pytest
import torch
from jaxtyping import TypeCheckError

from ppo_lightning.algorithms import ADVANTAGES
from ppo_lightning.algorithms.masked import row_blocks

GROUPED = [name for name, entry in ADVANTAGES.items() if entry.grouped]
BATCH_WIDE = ("reinforce_plus_plus_baseline", "gdpo")
PER_TOKEN = ("values", "old_log_probs", "sum_pi_squared", "rollout_is_weights")


@pytest.mark.parametrize("name", ADVANTAGES)
@pytest.mark.parametrize("holes", [False, True])
def test_shapes_types_and_zero_under_the_mask(name, holes, make_fields, call):
    fields = make_fields(0, torch.tensor([0, 1, 1, 0, 2, 1]), 5, holes)
    before = {key: value.clone() for key, value in fields.items()}
    for output in call(name, fields):
        assert output.shape == (6, 5)
        assert output.dtype == torch.float32
        assert torch.isfinite(output).all()
        assert not output[fields["response_mask"] == 0].any()
    assert all(torch.equal(fields[key], before[key]) for key in fields), "inputs are left alone"


@pytest.mark.parametrize("name", ADVANTAGES)
@pytest.mark.parametrize("holes", [False, True])
def test_pitfall_05_nan_under_the_mask_changes_nothing(name, holes, make_fields, call):
    fields = make_fields(1, torch.tensor([0, 1, 1, 0, 0, 1]), 5, holes)
    mask = fields["response_mask"].bool()
    keys = (*PER_TOKEN, "token_level_rewards")
    dirty = {**fields, **{key: torch.where(mask, fields[key], math.nan) for key in keys}}
    for clean, got in zip(call(name, fields), call(name, dirty), strict=True):
        assert torch.equal(clean, got)


@pytest.mark.parametrize("name", ADVANTAGES)
def test_a_boolean_and_an_integer_mask_are_the_same(name, make_fields, call):
    fields = make_fields(2, torch.tensor([0, 1, 1, 0]), 4)
    flags = {**fields, "response_mask": fields["response_mask"].bool()}
    for first, second in zip(call(name, fields), call(name, flags), strict=True):
        assert torch.equal(first, second)


@pytest.mark.parametrize("name", ADVANTAGES)
@pytest.mark.parametrize("holes", [False, True])
def test_blocks_of_rows_do_not_change_the_numbers(name, holes, make_fields, call):
    """Padding makes the batch so wide that a block holds two of its seven rows."""
    narrow = make_fields(8, torch.tensor([0, 1, 1, 0, 2, 1, 2]), 6, holes)
    wide = {**narrow}
    for key in (*PER_TOKEN, "token_level_rewards", "response_mask"):
        wide[key] = torch.nn.functional.pad(narrow[key], (0, 2**16 - 6))
    assert len(list(row_blocks(wide["values"]))) == 4
    for expected, found in zip(call(name, narrow), call(name, wide), strict=True):
        torch.testing.assert_close(found[:, :6], expected, atol=1e-6, rtol=0)
        assert not found[:, 6:].any()


@pytest.mark.parametrize("name", ADVANTAGES)
def test_pitfall_26_row_order_and_group_numbers_do_not_matter(name, make_fields, call):
    fields = make_fields(3, torch.tensor([0, 0, 0, 1, 1, 2, 2, 2]), 6)
    order = torch.randperm(8, generator=torch.Generator().manual_seed(0))
    moved = {key: value[order] for key, value in fields.items()}
    moved["group"] = torch.tensor([2, 0, 1])[moved["group"]]
    for straight, shuffled in zip(call(name, fields), call(name, moved), strict=True):
        torch.testing.assert_close(shuffled, straight[order], atol=2e-6, rtol=0)


@pytest.mark.parametrize("name", [name for name in GROUPED if not ADVANTAGES[name].reduces])
def test_pitfall_26_a_group_depends_on_its_own_rows_only(name, make_fields, call):
    fields = make_fields(4, torch.tensor([0, 0, 0, 1, 1, 1]), 6)
    whole = call(name, fields)[0]
    alone = call(name, {key: value[:3] for key, value in fields.items()})[0]
    torch.testing.assert_close(whole[:3], alone)


@pytest.mark.parametrize("name", GROUPED)
@pytest.mark.parametrize("score", [0.7, 1 / 3, -1.0])
def test_pitfall_25_equal_rewards_give_exactly_zero(name, score, make_fields, call):
    for size in range(1, 17):
        fields = make_fields(size, torch.zeros(size, dtype=torch.int64), 4)
        last = ((fields["response_mask"].sum(-1) - 1) % 4).unsqueeze(-1)
        fields["token_level_rewards"] = torch.zeros(size, 4).scatter_(1, last, score)
        fields["reward_parts"] = torch.full((size, 2), score, dtype=torch.float64)
        assert not call(name, fields)[0].any()


@pytest.mark.parametrize("name", GROUPED)
def test_pitfall_24_a_row_without_companions_gets_zero(name, make_fields, call):
    fields = make_fields(6, torch.tensor([0, 0, 1, 2, 2]), 4)
    fields["response_mask"][:] = 1
    advantages = call(name, fields)[0]
    assert not advantages[2].any()
    assert advantages[[0, 1, 3, 4]].any()


def test_pitfall_24_control_mean_zero_and_deviation_one_give_the_raw_score():
    scores, group = torch.tensor([1.0, 0.0, 0.7]), torch.tensor([0, 0, 1])
    found = []
    for row, of in enumerate(group):
        alike = scores[group == of]
        mean, deviation = (alike.mean(), alike.std()) if len(alike) > 1 else (0.0, 1.0)
        found.append(float((scores[row] - mean) / (deviation + 1e-6)))
    assert found[2] == pytest.approx(0.7, abs=1e-5)


@pytest.mark.parametrize("name", ADVANTAGES)
def test_pitfall_22_a_batch_without_any_valid_token(name, make_fields, call):
    fields = make_fields(7, torch.tensor([0, 0, 1, 1]), 3)
    fields["response_mask"][:] = 0
    fields["token_level_rewards"] = torch.tensor([[0.0, 0.0, 1.0], [0.0, 0.0, 0.0]] * 2)
    for output in call(name, fields):
        assert torch.equal(output, torch.zeros(4, 3))


@pytest.mark.parametrize("name", ADVANTAGES)
def test_pitfall_23_exactly_one_valid_token(name, make_fields, call):
    fields = make_fields(8, torch.tensor([0, 0]), 3)
    fields["response_mask"] = torch.tensor([[1, 0, 0], [0, 0, 0]])
    advantages = call(name, fields)[0]
    assert torch.isfinite(advantages).all()
    if ADVANTAGES[name].reduces and name != "gpg":
        assert not advantages.any(), "whitening has nothing to compare"


@pytest.mark.parametrize("name", ADVANTAGES)
@pytest.mark.parametrize(("rows", "width"), [(1, 1), (1, 5), (5, 1), (0, 3)])
def test_smallest_batches(name, rows, width, make_fields, call):
    fields = make_fields(9, torch.zeros(rows, dtype=torch.int64), width)
    for output in call(name, fields):
        assert output.shape == (rows, width)
        assert torch.isfinite(output).all()


@pytest.mark.parametrize("name", ADVANTAGES)
@pytest.mark.parametrize("size", [3, 5])
def test_groups_that_do_not_divide_the_batch(name, size, make_fields, call):
    group = torch.arange(16) // size
    advantages = call(name, make_fields(10, group, 4))[0]
    assert torch.isfinite(advantages).all()
    if ADVANTAGES[name].grouped and name not in BATCH_WIDE:
        assert not advantages[group == 16 // size].any(), "the last row is alone"


@pytest.mark.parametrize("name", [name for name, entry in ADVANTAGES.items() if entry.reduces])
def test_two_ranks_equal_one(name, make_fields, call, ranks):
    fields = make_fields(11, torch.tensor([0, 0, 1, 1, 1]), 6)
    whole = call(name, fields)[0]
    halves = [{key: value[rows] for key, value in fields.items()} for rows in (slice(0, 2), slice(2, 5))]
    halves[1]["group"] = halves[1]["group"] - 1
    results = ranks([lambda reduce, half=half: call(name, {**half}, all_reduce=reduce)[0] for half in halves])
    torch.testing.assert_close(torch.cat(results), whole, atol=1e-6, rtol=0)
    alone = torch.cat([call(name, half)[0] for half in halves])
    assert (alone - whole).abs().max() > 1e-3, "each rank by itself: the naive way"


def test_shapes_are_checked_while_tests_run(make_fields, call):
    fields = make_fields(12, torch.tensor([0, 0]), 3)
    with pytest.raises(TypeCheckError, match="group"):
        call("grpo", {**fields, "group": torch.tensor([0, 0, 0])})
