"""grpo, grpo_passk, rloo, opo, gpg, reinforce_plus_plus_baseline, gdpo: one number per row, compared in its group."""

import math

import numpy as np
import pytest
import torch

from ppo_lightning.algorithms.advantages.gdpo import gdpo, stack_parts
from ppo_lightning.algorithms.advantages.gpg import gpg
from ppo_lightning.algorithms.advantages.grpo import grpo
from ppo_lightning.algorithms.advantages.grpo_passk import grpo_passk
from ppo_lightning.algorithms.advantages.opo import opo
from ppo_lightning.algorithms.advantages.reinforce_plus_plus_baseline import reinforce_plus_plus_baseline
from ppo_lightning.algorithms.advantages.rloo import rloo
from ppo_lightning.errors import ConfigError, DataError

# Two groups, interleaved: a = [1, 0, 0], b = [2, 4]. Lengths a = [1, 2, 1], b = [2, 1].
SCORES = [1.0, 2.0, 0.0, 4.0, 0.0]
LENGTHS = [1, 2, 2, 1, 1]
GROUP = torch.tensor([0, 1, 0, 1, 0])
MASK = (torch.arange(2) < torch.tensor(LENGTHS).unsqueeze(-1)).long()
REWARDS = torch.zeros(5, 2).scatter_(1, torch.tensor(LENGTHS).unsqueeze(-1) - 1, torch.tensor(SCORES).unsqueeze(-1))

# Group a: mean 1/3, std sqrt(((2/3)^2 + 2 * (1/3)^2) / 2) = sqrt(1/3). Group b: mean 3, std sqrt(2).
A, B = math.sqrt(1 / 3) + 1e-6, math.sqrt(2) + 1e-6
CENTRED = [2 / 3, -1.0, -1 / 3, 1.0, -1 / 3]
BY_HAND = {
    "grpo": [2 / 3 / A, -1 / B, -1 / 3 / A, 1 / B, -1 / 3 / A],
    "grpo_no_std": CENTRED,
    # Leads of the best: 1 - 0 and 4 - 2.
    "grpo_passk": [1 / A, 0, 0, 2 / B, 0],
    "grpo_passk_no_std": [1.0, 0, 0, 2.0, 0],
    # Score less the mean of the others: 1 - 0, 2 - 4, 0 - 1/2, 4 - 2, 0 - 1/2.
    "rloo": [1.0, -2.0, -0.5, 2.0, -0.5],
    # Baselines weighted by length: a = 1 * 1 / 4, b = (2 * 2 + 1 * 4) / 3 = 8/3.
    "opo": [0.75, 2 - 8 / 3, -0.25, 4 - 8 / 3, -0.25],
    # Three of five scores are not zero: alpha = 5/3.
    "gpg": [5 / 3 * value for value in CENTRED],
}


def run(name, rewards, mask, group):
    by_std = not name.endswith("_no_std")
    functions = {"rloo": rloo, "opo": opo, "gpg": gpg, "reinforce_plus_plus_baseline": reinforce_plus_plus_baseline}
    if name.startswith("grpo"):
        function = grpo_passk if "passk" in name else grpo
        return function(rewards, mask, group, norm_adv_by_std_in_grpo=by_std)[0]
    return functions[name](rewards, mask, group)[0]


def slow(name, scores, lengths, group) -> list[float]:
    """Do it row by row; a row without companions and a group with equal scores get 0."""
    found = []
    for score, mine in zip(scores, group, strict=True):
        members = [(s, length) for s, length, g in zip(scores, lengths, group, strict=True) if g == mine]
        values = [s for s, _ in members]
        if len(values) == 1 or max(values) == min(values):
            found.append(0.0)
            continue
        n, mean = len(values), math.fsum(values) / len(values)
        std = math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (n - 1)) + 1e-6
        best, second = sorted(values)[-1], sorted(values)[-2]
        total = sum(length for _, length in members)
        formulas = {
            "grpo": (score - mean) / std,
            "grpo_no_std": score - mean,
            "grpo_passk": (best - second) / std if score == best else 0.0,
            "grpo_passk_no_std": best - second if score == best else 0.0,
            "rloo": score - (math.fsum(values) - score) / (n - 1),
            "opo": score - math.fsum(v * length for v, length in members) / max(total, 1),
            "gpg": (score - mean) * len(scores) / max(1, sum(s != 0 for s in scores)),
        }
        found.append(formulas[name])
    return found


@pytest.mark.parametrize("name", BY_HAND)
def test_hand_worked(name):
    expected = torch.tensor(BY_HAND[name]).unsqueeze(-1) * MASK
    torch.testing.assert_close(run(name, REWARDS, MASK, GROUP), expected)


def test_pitfall_27_options_differ_where_they_must():
    names = ("grpo", "grpo_no_std", "reinforce_plus_plus_baseline")
    spread = {name: run(name, REWARDS, MASK, GROUP) for name in names}
    by_batch = spread["grpo_no_std"][MASK.bool()]
    # Batch std: whiten the group-centred numbers over all valid tokens.
    expected = (by_batch - by_batch.mean()) / (by_batch.var() + 1e-8).sqrt()
    torch.testing.assert_close(spread["reinforce_plus_plus_baseline"][MASK.bool()], expected)
    # Global std, no groups at all, is none of the three.
    scores = torch.tensor(SCORES)
    naive = ((scores - scores.mean()) / scores.std()).unsqueeze(-1) * MASK
    assert all((naive - value).abs().max() > 0.1 for value in spread.values())


@pytest.mark.parametrize("name", BY_HAND)
def test_equals_slow_formula_for_groups_of_all_sizes(name):
    for size in range(1, 17):
        generator = torch.Generator().manual_seed(size)
        group = torch.arange(3).repeat_interleave(size)[torch.randperm(3 * size, generator=generator)]
        check_against_slow(name, generator, group)


@pytest.mark.parametrize("name", BY_HAND)
def test_equals_slow_formula_for_groups_of_uneven_size(name):
    for seed in range(10):
        generator = torch.Generator().manual_seed(seed)
        check_against_slow(name, generator, torch.randint(0, 5, (13,), generator=generator))


def check_against_slow(name, generator, group):
    lengths = torch.randint(0, 5, (len(group), 1), generator=generator)
    mask = (torch.arange(4) < lengths).long()
    scores = torch.randint(-1, 3, (len(group), 1), generator=generator) * 0.7
    rewards = torch.zeros(len(group), 4).scatter_(1, (lengths - 1) % 4, scores)
    expected = slow(name, rewards.double().sum(-1).tolist(), lengths[:, 0].tolist(), group.tolist())
    torch.testing.assert_close(
        run(name, rewards, mask, group), torch.tensor(expected).unsqueeze(-1) * mask, atol=1e-6, rtol=1e-6
    )


@pytest.mark.parametrize("name", ["grpo_passk", "grpo_passk_no_std"])
def test_passk_two_best_lead_by_nothing(name):
    rewards = torch.tensor([[1.0], [1.0], [0.0], [0.0]])
    assert not run(name, rewards, torch.ones(4, 1), torch.zeros(4, dtype=torch.int64)).any()


def test_opo_ignores_rows_without_tokens_in_the_baseline():
    rewards = torch.tensor([[0.0, 1.0], [0.0, 0.5], [0.0, 9.0]])
    mask = torch.tensor([[1, 1], [1, 1], [0, 0]])
    advantages = opo(rewards, mask, torch.zeros(3, dtype=torch.int64))[0]
    assert advantages.tolist() == [[0.25, 0.25], [-0.25, -0.25], [0.0, 0.0]]


def test_a_row_without_tokens_counts_in_the_groups_statistics():
    rewards, mask = torch.tensor([[1.0, 0.0], [0.0, 0.0], [0.0, 2.0]]), torch.tensor([[1, 0], [1, 0], [0, 0]])
    advantages = grpo(rewards, mask, torch.zeros(3, dtype=torch.int64), norm_adv_by_std_in_grpo=False)[0]
    assert advantages.tolist() == [[0.0, 0.0], [-1.0, 0.0], [0.0, 0.0]]


def test_gpg_counts_rows_over_ranks():
    rewards, mask, group = torch.tensor([[1.0], [0.0]]), torch.ones(2, 1), torch.zeros(2, dtype=torch.int64)
    other = torch.tensor([6.0, 1.0], dtype=torch.float64)
    # (2 + 6) rows, (1 + 1) of them score: alpha = 4
    advantages = gpg(rewards, mask, group, all_reduce=lambda mine: mine + other)[0]
    assert advantages.tolist() == [[2.0], [-2.0]]
    assert gpg(rewards, mask, group, f_norm=4.0)[0].tolist() == [[0.25], [-0.25]]


def test_gdpo_by_hand():
    # Part 0 differs in group 0 only, part 1 in group 1 only, both by 2 about their mean: std sqrt(2).
    parts = torch.tensor([[2.0, 5.0], [0.0, 5.0], [7.0, 0.0], [7.0, 2.0]]).double()
    advantages = gdpo(parts, torch.ones(4, 1), torch.tensor([0, 0, 1, 1]), True, [1.0, 0.5])[0][:, 0]
    unit = 1 / (math.sqrt(2) + 1e-6)
    total = torch.tensor([unit, -unit, -unit / 2, unit / 2])
    torch.testing.assert_close(advantages, total / total.std(), atol=1e-6, rtol=0)


def test_gdpo_keeps_a_small_part_beside_a_large_one():
    parts = torch.tensor([[100.0, 0.0], [0.0, 0.1], [100.0, 0.1], [0.0, 0.0]]).double()
    group = torch.zeros(4, dtype=torch.int64)
    decoupled = gdpo(parts, torch.ones(4, 1), group, True)[0][:, 0]
    summed = grpo(parts.sum(-1, keepdim=True).float(), torch.ones(4, 1), group, True)[0][:, 0]
    assert (decoupled[2] - decoupled[0]).item() > 0.5
    assert abs((summed[2] - summed[0]).item()) < 0.01, "added first: the naive way"


def test_gdpo_weights_must_match():
    with pytest.raises(ConfigError, match="got 3 for 2 keys"):
        gdpo(torch.zeros(2, 2).double(), torch.ones(2, 1), torch.zeros(2, dtype=torch.int64), True, [1.0, 2.0, 3.0])


def test_stack_parts_names_what_is_missing():
    columns = {"acc": np.array([1.0, 0.0]), "format": np.array([1, None], dtype=object)}
    assert stack_parts(columns, ["acc"]).tolist() == [[1.0], [0.0]]
    with pytest.raises(ConfigError, match=r"gdpo_reward_keys must name parts .*acc, format.* got \['akk'\]"):
        stack_parts(columns, ["akk"])
    with pytest.raises(ConfigError, match="gdpo_reward_keys"):
        stack_parts(columns, [])
    with pytest.raises(DataError, match="row 1 has none"):
        stack_parts(columns, ["acc", "format"])


@pytest.mark.parametrize("name", ["reinforce_plus_plus_baseline", "gdpo"])
def test_pitfall_24_a_lone_row_does_not_move_the_whitening(name, make_fields, call):
    fields = make_fields(5, torch.tensor([0, 0, 1, 1]), 5)
    fields["response_mask"][:, 0] = 1
    grown = {key: torch.cat([value, value[:1] + (2 if key == "group" else 0)]) for key, value in fields.items()}
    small, large = call(name, fields)[0], call(name, grown)[0]
    assert torch.equal(large[:4], small)
    assert not large[4].any()
