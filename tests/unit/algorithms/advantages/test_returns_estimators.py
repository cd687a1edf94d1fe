"""reinforce_plus_plus, remax and the two token baselines: one number per token."""

import math

import pytest
import torch

from ppo_lightning.algorithms.advantages.optimal_token_baseline import optimal_token_baseline
from ppo_lightning.algorithms.advantages.reinforce_plus_plus import reinforce_plus_plus
from ppo_lightning.algorithms.advantages.remax import remax
from ppo_lightning.algorithms.advantages.tir_optimal_token_baseline import tir_optimal_token_baseline
from ppo_lightning.algorithms.masked import whiten


def slow_returns(rewards, mask, gamma) -> torch.Tensor:
    returns = torch.zeros_like(rewards)
    for row in range(len(rewards)):
        after = 0.0
        for t in reversed(range(rewards.shape[1])):
            if mask[row, t]:
                after = rewards[row, t].item() + gamma * after
                returns[row, t] = after
    return returns


def slow_baseline(fields, by_valid_token: bool, zero_tail: bool) -> torch.Tensor:
    """Compare tokens of the same column, or of the same number among the row's valid tokens."""
    mask, group = fields["response_mask"].bool(), fields["group"]
    returns = slow_returns(fields["token_level_rewards"], mask, 1.0)
    rows, width = mask.shape
    place = [[t for t in range(width) if mask[row, t]] for row in range(rows)]
    weight = torch.zeros(rows, width)
    for row in range(rows):
        total = 0.0
        for t in place[row]:
            pi, rho = math.exp(fields["old_log_probs"][row, t]), fields["rollout_is_weights"][row, t].item()
            total += (1 - 2 * pi + fields["sum_pi_squared"][row, t].item()) * rho**2
            weight[row, t] = total
    advantages = torch.zeros(rows, width)
    for row in range(rows):
        members = [other for other in range(rows) if group[other] == group[row] and place[other]]
        seen = [returns[other, t].item() for other in members for t in place[other]]
        if len(members) < 2 or max(seen) == min(seen):
            continue
        others = sorted(len(place[other]) for other in members if other != row)
        for number, t in enumerate(place[row]):
            if by_valid_token:
                tokens = [(other, place[other][number]) for other in members if number < len(place[other])]
            else:
                tokens = [(other, t) for other in members if t in place[other]]
            above = sum(returns[token].item() * weight[token].item() for token in tokens)
            baseline = above / (sum(weight[token].item() for token in tokens) + 1e-8)
            end = others[-1] if len(place[row]) > others[-1] else width
            alone = zero_tail and (number if by_valid_token else t) >= end
            advantages[row, t] = returns[row, t] - (0.0 if alone else baseline)
    return advantages


def test_reinforce_plus_plus_by_hand():
    rewards, mask = torch.tensor([[0.0, 0.0, 1.0]]), torch.tensor([[1, 1, 1]])
    advantages, returns = reinforce_plus_plus(rewards, mask, gamma=0.5)
    assert returns.tolist() == [[0.25, 0.5, 1.0]]
    # mean 7/12, variance (1/9 + 1/144 + 25/144) / 2 = 42/288
    expected = (torch.tensor([[0.25, 0.5, 1.0]]) - 7 / 12) / math.sqrt(42 / 288 + 1e-8)
    torch.testing.assert_close(advantages, expected)


def test_remax_by_hand():
    rewards, mask = torch.tensor([[0.5, 0.0, 1.0], [0.0, 2.0, 0.0]]), torch.tensor([[1, 1, 1], [1, 1, 0]])
    advantages, returns = remax(rewards, torch.tensor([0.25, 3.0]), mask)
    assert returns.tolist() == [[1.5, 1.0, 1.0], [2.0, 2.0, 0.0]]
    assert advantages.tolist() == [[1.25, 0.75, 0.75], [-1.0, -1.0, 0.0]]


def test_token_baseline_by_hand():
    # Two rows of two tokens, all pi = 1/2 and sum pi^2 = 1/2: energy 1 - 1 + 1/2 = 1/2, W = [1/2, 1].
    # Scores 1 and 0: the baseline is 1/2 in both columns. A third token of row 1 has nobody to be compared with.
    rewards = torch.tensor([[0.0, 1.0, 0.0], [0.0, 0.0, 3.0]])
    mask = torch.tensor([[1, 1, 0], [1, 1, 1]])
    half = torch.full((2, 3), 0.5)
    group = torch.zeros(2, dtype=torch.int64)
    advantages, returns = optimal_token_baseline(rewards, mask, group, half.log(), half)
    assert returns.tolist() == [[1.0, 1.0, 0.0], [3.0, 3.0, 3.0]]
    # Baseline (1 + 3) / 2 = 2.
    torch.testing.assert_close(advantages, torch.tensor([[-1.0, -1.0, 0.0], [1.0, 1.0, 3.0]]))
    own = optimal_token_baseline(rewards, mask, group, half.log(), half, handle_zero_tail=False)[0]
    torch.testing.assert_close(own, torch.tensor([[-1.0, -1.0, 0.0], [1.0, 1.0, 0.0]]))


def test_path_variance_weighs_the_uncertain_row_more():
    # Row 0 is sure of its token (pi = 1, sum pi^2 = 1: energy 0), row 1 is not: the baseline is row 1's return.
    sure, unsure = torch.tensor([[1.0], [0.5]]), torch.tensor([[1.0], [0.5]])
    rewards, group = torch.tensor([[1.0], [0.0]]), torch.zeros(2, dtype=torch.int64)
    advantages = optimal_token_baseline(rewards, torch.ones(2, 1), group, sure.log(), unsure)[0]
    torch.testing.assert_close(advantages, torch.tensor([[1.0], [0.0]]))


@pytest.mark.parametrize("holes", [False, True])
@pytest.mark.parametrize("seed", range(8))
def test_returns_equal_slow_recursion(make_fields, seed, holes):
    fields = make_fields(seed, torch.arange(6), 8, holes)
    rewards, mask = fields["token_level_rewards"], fields["response_mask"]
    advantages, returns = reinforce_plus_plus(rewards, mask, gamma=0.9)
    torch.testing.assert_close(returns, slow_returns(rewards, mask, 0.9), atol=2e-6, rtol=0)
    torch.testing.assert_close(advantages, whiten(returns, mask))
    expected = slow_returns(rewards, mask, 1.0)
    advantages, returns = remax(rewards, fields["reward_baselines"], mask)
    torch.testing.assert_close(returns, expected, atol=2e-6, rtol=0)
    baseline = fields["reward_baselines"].unsqueeze(-1) * mask
    torch.testing.assert_close(advantages, expected - baseline, atol=2e-6, rtol=0)


@pytest.mark.parametrize("zero_tail", [True, False])
@pytest.mark.parametrize("holes", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_token_baselines_equal_slow_ones(make_fields, seed, holes, zero_tail):
    group = torch.randint(0, 3, (9,), generator=torch.Generator().manual_seed(seed))
    fields = make_fields(seed, group, 7, holes)
    keys = ("token_level_rewards", "response_mask", "group", "old_log_probs", "sum_pi_squared", "rollout_is_weights")
    arguments = [fields[key] for key in keys]
    for function, by_valid_token in ((optimal_token_baseline, False), (tir_optimal_token_baseline, True)):
        advantages, _ = function(*arguments, handle_zero_tail=zero_tail)
        torch.testing.assert_close(advantages, slow_baseline(fields, by_valid_token, zero_tail), atol=1e-5, rtol=0)


def test_tool_tokens_do_not_shift_the_multi_turn_comparison(make_fields):
    fields = make_fields(1, torch.zeros(4, dtype=torch.int64), 6)
    fields["response_mask"][0] = 1
    keys = ("token_level_rewards", "response_mask", "group", "old_log_probs", "sum_pi_squared")
    plain = {key: fields[key] for key in keys}
    # The same rows with a masked token in front of row 0 only.
    shifted = {key: value.clone() for key, value in plain.items()}
    for key in keys:
        if key != "group":
            shifted[key] = torch.nn.functional.pad(plain[key], (0, 1))
            shifted[key][0] = shifted[key][0].roll(1)
    before, after = tir_optimal_token_baseline(**plain)[0], tir_optimal_token_baseline(**shifted)[0]
    assert torch.equal(after[0, 1:], before[0])
    assert torch.equal(after[1:, :-1], before[1:])
    columns = optimal_token_baseline(**shifted)[0]
    assert (columns[0, 1:] - before[0]).abs().max() > 1e-3, "by columns: the naive way"
