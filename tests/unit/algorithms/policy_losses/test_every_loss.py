import inspect
import math

import pytest
import torch

from ppo_lightning.algorithms import POLICY_LOSSES
from ppo_lightning.algorithms.policy_losses.arguments import GIVEN
from ppo_lightning.algorithms.tables import resolve

NAMES = sorted(POLICY_LOSSES)
NAN = float("nan")


@pytest.mark.parametrize("name", NAMES)
def test_the_table_says_what_the_functions_take(name):
    record = POLICY_LOSSES[name]
    functions = [resolve(path) for path in (record.path, record.selection) if path]
    taken = {key for function in functions for key in inspect.signature(function).parameters} - set(GIVEN)
    assert taken == set(record.options)
    assert ("selection" in inspect.signature(functions[0]).parameters) == (record.selection is not None)


@pytest.mark.parametrize("name", NAMES)
def test_shapes_and_metrics(name, losses):
    tokens = losses.random_tokens()
    tokens["log_prob"].requires_grad_()
    loss, metrics = losses.call(name, tokens)
    assert loss.shape == tokens["log_prob"].shape
    assert loss.requires_grad
    assert "actor/ppo_kl" in metrics
    for values in metrics.values():
        assert values.shape == loss.shape
        assert not values.requires_grad
        assert values[tokens["response_mask"] == 0].abs().sum() == 0


@pytest.mark.parametrize("name", NAMES)
def test_one_step_on_the_gradient_raises_likelihood_of_good_tokens(name, losses):
    """On policy every loss is a policy gradient: its sign is that of -A."""
    tokens = losses.random_tokens(spread=0.0)
    tokens["advantages"] = tokens["advantages"][:, :1].expand_as(tokens["advantages"]).contiguous()
    tokens["log_prob"].requires_grad_()
    nothing = torch.zeros_like(tokens["log_prob"], dtype=torch.bool)
    loss, _ = losses.call(name, tokens, selection=nothing if POLICY_LOSSES[name].selection else None)
    valid = tokens["response_mask"].bool()
    torch.where(valid, loss, 0.0).sum().backward()
    assert torch.equal(tokens["log_prob"].grad[valid].sign(), -tokens["advantages"][valid].sign())


@pytest.mark.parametrize("name", ["vanilla", "sapo", "kl_cov", "dro", "geo_mean", "clip_cov"])
def test_gradient_of_the_losses_without_stopped_gradients(name, losses):
    tokens = losses.random_tokens(rows=4, width=3)
    picked = losses.select(name, tokens) if POLICY_LOSSES[name].selection else None
    fixed = {key: value for key, value in tokens.items() if key != "log_prob"}

    def loss(log_prob):
        return losses.call(name, {**fixed, "log_prob": log_prob}, selection=picked)[0].sum()

    assert torch.autograd.gradcheck(loss, tokens["log_prob"].requires_grad_())


@pytest.mark.parametrize("name", NAMES)
def test_weights_scale_the_loss(name, losses):
    tokens = losses.random_tokens()
    without, _ = losses.call(name, {**tokens, "rollout_is_weights": None})
    double, _ = losses.call(name, {**tokens, "rollout_is_weights": torch.full_like(without, 2.0)})
    assert torch.allclose(double, 2 * without, atol=1e-8)


@pytest.mark.parametrize("name", NAMES)
def test_one_token_and_no_token(name, losses):
    tokens = losses.rows_of(losses.random_tokens(), slice(0, 1))
    tokens["log_prob"] = tokens["log_prob"].clone().requires_grad_()
    one = losses.total(name, tokens, losses.counts_of(tokens["response_mask"]))
    assert one.isfinite()
    tokens["response_mask"] = torch.zeros_like(tokens["response_mask"])
    none = losses.total(name, tokens, losses.counts_of(tokens["response_mask"]))
    none.backward()
    assert none.item() == 0.0
    assert tokens["log_prob"].grad.abs().sum() == 0.0


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-sum-norm"])
def test_pitfall_01_and_02_splits_and_ranks_do_not_change_the_gradient(name, mode, losses):
    tokens = losses.random_tokens(rows=12)
    tokens["log_prob"].requires_grad_()
    mask = tokens["response_mask"]
    picked = losses.select(name, tokens) if POLICY_LOSSES[name].selection else None

    def gradient(ranks, micro):
        value, slope = 0.0, torch.zeros_like(tokens["log_prob"])
        for rank in range(ranks):
            mine = torch.arange(rank, 12, ranks)
            for rows in mine.split(micro):
                chosen = None if picked is None else picked[rows]
                part = losses.total(
                    name, losses.rows_of(tokens, rows), losses.counts_of(mask, ranks), mode, selection=chosen
                )
                value += part.item() / ranks
                slope += torch.autograd.grad(part, tokens["log_prob"])[0] / ranks
        return value, slope

    value, slope = gradient(1, 12)
    assert slope.abs().sum() > 0
    for ranks, micro in ((1, 1), (1, 5), (2, 6), (3, 2)):
        other, others = gradient(ranks, micro)
        assert other == pytest.approx(value, abs=1e-12)
        assert torch.allclose(others, slope, atol=1e-12)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("junk", "mode"), [(NAN, "token-mean"), (math.inf, "seq-mean-token-sum"), (-math.inf, "token-sum")]
)
def test_pitfall_05_junk_under_the_mask(name, junk, mode, losses):
    clean = losses.random_tokens()
    mask = clean["response_mask"].bool()
    dirty = {key: value if key == "response_mask" else torch.where(mask, value, junk) for key, value in clean.items()}
    results = []
    for tokens in (clean, dirty):
        tokens["log_prob"] = tokens["log_prob"].clone().requires_grad_()
        loss = losses.total(name, tokens, losses.counts_of(mask), mode)
        loss.backward()
        metrics = losses.call(name, tokens)[1]
        results.append([loss.detach(), tokens["log_prob"].grad, *(metrics[key] for key in sorted(metrics))])
    for ours, theirs in zip(*results, strict=True):
        assert torch.equal(ours, theirs)


def test_pitfall_05_control_a_product_with_the_mask_leaks_into_the_gradient(losses):
    tokens = losses.random_tokens()
    log_prob = torch.where(tokens["response_mask"].bool(), tokens["log_prob"], NAN).requires_grad_()
    (log_prob.exp() * tokens["response_mask"]).sum().backward()
    assert log_prob.grad.isnan().any()


def test_pitfall_07_means_over_the_data_not_over_parts(losses):
    old = torch.zeros(10, 1, dtype=torch.float64)
    new = old.clone()
    new[0] = -1.0
    tokens = {
        "old_log_prob": old,
        "log_prob": new,
        "advantages": torch.ones_like(old),
        "response_mask": torch.ones(10, 1),
        "rollout_is_weights": None,
    }
    parts = [
        {key: value if value is None else value[rows] for key, value in tokens.items()}
        for rows in (slice(0, 1), slice(1, 10))
    ]
    numerators = [losses.call("vanilla", part)[1]["actor/ppo_kl"] for part in parts]
    assert sum(part.sum().item() for part in numerators) / 10 == pytest.approx(0.1)
    assert sum(part.mean().item() for part in numerators) / 2 == pytest.approx(0.5)  # the fault


@pytest.mark.parametrize("name", NAMES)
def test_the_table_says_which_losses_have_no_gradient_without_an_advantage(name, losses):
    """Rows are only run forward by it; the others (kl_cov, dro) hold a penalty that does not depend on advantages."""
    tokens = losses.random_tokens()
    tokens["log_prob"].requires_grad_()
    tokens["advantages"][1::2] = 0.0
    loss, _ = losses.call(name, tokens, selection=tokens["response_mask"].bool() if name == "kl_cov" else None)
    loss[tokens["response_mask"].bool()].sum().backward()
    still = tokens["log_prob"].grad[1::2]
    assert (still.abs().sum() == 0) == POLICY_LOSSES[name].scales
    assert tokens["log_prob"].grad[::2].abs().sum() > 0
