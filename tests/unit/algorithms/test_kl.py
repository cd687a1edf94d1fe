import math

import pytest
import torch

from ppo_lightning.algorithms.kl import K3_HIGHEST, K3_LIMIT, K3_LOWEST, k3_clamped, kl, row_mean, subtract_kl
from ppo_lightning.config.schema import KL_ESTIMATORS
from ppo_lightning.errors import ConfigError

NAN = float("nan")


def pair(differences):
    log_prob = torch.tensor([differences], dtype=torch.float64, requires_grad=True)
    return log_prob, torch.zeros_like(log_prob), torch.ones(1, len(differences))


def slow(difference, name):
    base = name.removesuffix("+")
    if base in ("k1", "kl"):
        return difference
    if base == "abs":
        return abs(difference)
    if base in ("k2", "mse"):
        return difference**2 / 2
    return min(math.exp(-difference) + difference - 1, K3_LIMIT)


@pytest.mark.parametrize(
    ("name", "expected", "slope"),
    [  # log-ratio log 2: policy twice as likely as the reference
        ("k1", 0.693147, 1.0),
        ("abs", 0.693147, 1.0),
        ("k2", 0.240227, 0.693147),
        ("k3", 0.193147, 0.5),  # 1/2 + log 2 - 1; slope 1 - 1/2
        ("k1+", 0.693147, 0.693147),
        ("k3+", 0.193147, 0.693147),
    ],
)
def test_by_hand(name, expected, slope):
    log_prob, reference, mask = pair([math.log(2)])
    value = kl(log_prob, reference, mask, name)
    value.sum().backward()
    assert value.item() == pytest.approx(expected, abs=1e-6)
    assert log_prob.grad.item() == pytest.approx(slope, abs=1e-6)


@pytest.mark.parametrize("name", KL_ESTIMATORS)
def test_every_name_of_the_schema_equals_the_slow_form(name):
    differences = [-6.0, -2.0, -0.1, 0.0, 0.3, 4.0, 15.0]
    values = kl(*pair(differences), name)
    assert values[0].tolist() == pytest.approx([slow(item, name) for item in differences])


@pytest.mark.parametrize("name", ["k1", "k2", "k3", "abs"])
def test_gradient(name):
    log_prob, reference, mask = pair([-2.0, -0.3, 0.4, 3.0])
    if name == "k3":  # built by hand there, so compared with autograd on the bare formula
        kl(log_prob, reference, mask, name).sum().backward()
        bare = log_prob.detach().clone().requires_grad_()
        ((-bare).exp() + bare - 1).sum().backward()
        assert torch.allclose(log_prob.grad, bare.grad, atol=1e-12)
    else:
        assert torch.autograd.gradcheck(lambda x: kl(x, reference, mask, name), log_prob)


@pytest.mark.parametrize("name", KL_ESTIMATORS)
@pytest.mark.parametrize("junk", [NAN, math.inf, -math.inf])
def test_junk_under_the_mask(name, junk):
    log_prob = torch.tensor([[-1.0, junk], [junk, junk]], requires_grad=True)
    reference = torch.tensor([[-2.0, 0.0], [junk, 0.0]])
    values = kl(log_prob, reference, torch.tensor([[1, 0], [0, 0]]), name)
    values.sum().backward()
    assert values.isfinite().all()
    assert values[0, 1].item() == values[1, 0].item() == 0.0
    assert log_prob.grad.flatten()[1:].tolist() == [0.0, 0.0, 0.0]


def test_unknown_name():
    with pytest.raises(ConfigError, match=r"k1, kl, abs.*got 'k4'.*algorithm\.kl_penalty"):
        kl(*pair([0.0]), "k4")


def test_the_limits_are_the_roots():
    for root in (K3_LOWEST, K3_HIGHEST):
        assert math.exp(root) - root - 1 == pytest.approx(K3_LIMIT, abs=1e-12)


@pytest.mark.parametrize("name", ["abs", "k2", "k3", "low_var_kl", "k1+", "kl+", "abs+", "k2+", "mse+", "k3+"])
@pytest.mark.parametrize("far", [0.01, 1.0, 5.0, 12.0, 40.0])
def test_pitfall_28_the_gradient_always_points_to_the_reference(name, far):
    log_prob, reference, mask = pair([far, -far])
    kl(log_prob, reference, mask, name).sum().backward()
    above, below = log_prob.grad[0].tolist()
    assert above > 0  # descending lowers a log-probability above the reference
    assert below < 0


def test_pitfall_28_a_step_descends_from_beyond_the_limit():
    log_prob, reference, mask = pair([-4.0])
    for _ in range(50):
        (slope,) = torch.autograd.grad(kl(log_prob, reference, mask, "k3").sum(), log_prob)
        log_prob = (log_prob - 0.1 * slope).detach().requires_grad_()
    assert abs(log_prob.item()) < 0.1


def test_pitfall_28_control_clamping_the_value_kills_the_gradient():
    log_prob = torch.tensor([-4.0], requires_grad=True)
    ((-log_prob).exp() + log_prob - 1).clamp(max=K3_LIMIT).sum().backward()
    assert log_prob.grad.item() == 0.0


def test_pitfall_28_share_of_limited_tokens():
    log_prob, reference, _ = pair([-3.0, -2.6, 10.9, 11.1, -50.0])
    mask = torch.tensor([[1, 1, 1, 1, 0]])
    for name in ("k3", "k3+", "low_var_kl"):
        assert k3_clamped(log_prob, reference, mask, name)[0].tolist() == [1.0, 0.0, 0.0, 1.0, 0.0]
    assert k3_clamped(log_prob, reference, mask, "k1").sum() == 0


def test_pitfall_30_empty_rows_say_nothing():
    values = torch.tensor([[1.0, 1.0], [NAN, NAN]])
    assert row_mean(values, torch.tensor([[1, 1], [0, 0]])) == (1.0, 1.0)
    assert row_mean(values, torch.zeros(2, 2)) == (0.0, 0.0)


def test_row_mean_weighs_rows_alike():
    values = torch.tensor([[1.0, 3.0], [6.0, 0.0]])
    assert row_mean(values, torch.tensor([[1, 1], [1, 0]])) == (8.0, 2.0)  # 2 + 6


def test_subtract_kl_keeps_the_score_of_an_empty_row():
    scores = torch.tensor([[0.0, 1.0], [0.0, 0.7]])
    rewards = subtract_kl(scores, torch.tensor([[2.0, 4.0], [NAN, NAN]]), torch.tensor([[1, 1], [0, 0]]), 0.1)
    assert rewards.tolist() == [pytest.approx([-0.2, 0.6]), pytest.approx([0.0, 0.7])]
