import pytest
import torch

from ppo_lightning.algorithms.policy_losses.covariance import Scope, covariance, draw, largest
from ppo_lightning.errors import ConfigError

NAMES = ["clip_cov", "kl_cov"]


def big(losses, rows=24):
    tokens = losses.random_tokens(rows=rows, width=5, spread=0.1)
    return {key: value for key, value in tokens.items() if key != "rollout_is_weights"}


def test_covariance_by_hand():
    advantages, log_prob = torch.tensor([[1.0, 3.0, 50.0]]), torch.tensor([[-1.0, -3.0, 7.0]])
    value, tokens = covariance(advantages, log_prob, torch.tensor([[1, 1, 0]]), Scope())
    # Means 2 and -2: (1 - 2)(-1 + 2) = -1 and (3 - 2)(-3 + 2) = -1.
    assert value[0].tolist() == [-1.0, -1.0, -torch.inf]
    assert tokens == 2


def test_largest_breaks_ties_by_row_and_position():
    values = torch.tensor([[1.0, 5.0, 1.0], [1.0, -torch.inf, 5.0]])
    assert largest(values, 3, Scope()).nonzero().tolist() == [[0, 0], [0, 1], [1, 2]]
    assert largest(values, 3, Scope(rows=torch.tensor([9, 2]))).nonzero().tolist() == [[0, 1], [1, 0], [1, 2]]
    assert largest(values, 99, Scope()).sum() == 5


def test_draw_is_uniform():
    candidates = torch.ones(4, 5, dtype=torch.bool)
    hits = sum(draw(candidates, 4, Scope(seed=seed)).double() for seed in range(400)) / 400
    assert (hits - 0.2).abs().max() < 0.09
    assert all(draw(candidates, 4, Scope(seed=seed)).sum() == 4 for seed in range(20))


def test_draw_takes_all_when_there_are_few():
    candidates = torch.tensor([[True, False, True]])
    assert torch.equal(draw(candidates, 5, Scope()), candidates)
    assert draw(torch.zeros(1, 3, dtype=torch.bool), 5, Scope()).sum() == 0


@pytest.mark.parametrize("name", NAMES)
def test_share_of_the_valid_tokens(name, losses):
    tokens = big(losses)
    picked = losses.select(name, tokens)
    assert picked.sum() == int(0.2 * tokens["response_mask"].sum())
    assert not (picked & (tokens["response_mask"] == 0)).any()


def test_kl_cov_picks_the_highest_covariance(losses):
    tokens = big(losses)
    value, _ = covariance(tokens["advantages"], tokens["log_prob"], tokens["response_mask"], Scope())
    picked = losses.select("kl_cov", tokens)
    assert value[picked].min() > value[~picked & tokens["response_mask"].bool()].max()


def test_clip_cov_draws_within_the_bounds_and_outside_the_clip(losses):
    tokens = losses.random_tokens(rows=24, spread=0.6)
    tokens = {key: value for key, value in tokens.items() if key != "rollout_is_weights"}
    value, _ = covariance(tokens["advantages"], tokens["log_prob"], tokens["response_mask"], Scope())
    ratio = (tokens["log_prob"] - tokens["old_log_prob"]).exp()
    stopped = ((ratio > 1.2) & (tokens["advantages"] > 0)) | ((ratio < 0.8) & (tokens["advantages"] < 0))
    seen = torch.zeros_like(stopped)
    for seed in range(50):
        picked = losses.select("clip_cov", tokens, scope=Scope(seed=seed))
        assert ((value[picked] > -1.0) & (value[picked] < 2.0)).all()
        assert not (picked & stopped).any()
        seen |= picked
    eligible = (value > -1.0) & (value < 2.0) & ~stopped
    assert torch.equal(seen, eligible)


@pytest.mark.parametrize("name", NAMES)
def test_pitfall_09_the_selection_does_not_depend_on_ranks_or_order(name, losses, meeting):
    tokens = big(losses)
    whole = losses.select(name, tokens, scope=Scope(seed=3))
    order = torch.randperm(24, generator=torch.Generator().manual_seed(1))
    for size in (1, 2, 3):
        parts = order.chunk(size)

        def one(rank, all_reduce, gather, parts=parts):
            scope = Scope(rows=parts[rank], seed=3, all_reduce=all_reduce, gather=gather)
            return losses.select(name, losses.rows_of(tokens, parts[rank]), scope=scope)

        found = torch.cat(meeting(size).run(one))
        assert torch.equal(found, whole[order])


@pytest.mark.parametrize("name", NAMES)
def test_pitfall_09_control_a_selection_per_micro_batch_is_another(name, losses):
    tokens = big(losses)
    whole = losses.select(name, tokens)
    parts = [losses.select(name, losses.rows_of(tokens, rows)) for rows in torch.arange(24).split(6)]
    assert not torch.equal(torch.cat(parts), whole)


@pytest.mark.parametrize("name", NAMES)
def test_a_rank_without_rows_or_tokens(name, losses, meeting):
    tokens = big(losses)
    whole = losses.select(name, tokens, scope=Scope(seed=1))
    parts = [torch.arange(24), torch.arange(0)]

    def one(rank, all_reduce, gather):
        scope = Scope(rows=parts[rank], seed=1, all_reduce=all_reduce, gather=gather)
        return losses.select(name, losses.rows_of(tokens, parts[rank]), scope=scope)

    first, second = meeting(2).run(one)
    assert torch.equal(first, whole)
    assert second.shape == (0, 5)
    nothing = losses.select(name, tokens | {"response_mask": torch.zeros(24, 5)})
    assert nothing.sum() == 0


@pytest.mark.parametrize("name", NAMES)
def test_the_share_must_be_positive(name, losses):
    from ppo_lightning.algorithms import POLICY_LOSSES
    from ppo_lightning.algorithms.tables import resolve

    options = {
        "clip_cov": {"clip_ratio_low": 0.2, "clip_ratio_high": 0.2, "clip_cov_ratio": 0.0},
        "kl_cov": {"kl_cov_ratio": 0.0},
    }
    with pytest.raises(ConfigError, match=f"{name}_ratio must be positive"):
        resolve(POLICY_LOSSES[name].selection)(**big(losses), **options[name])
