import math

import pytest
import torch
from torch import nn

from ppo_lightning.parallel import gradients
from ppo_lightning.parallel.gradients import average_gradients, buckets, total_norm
from ppo_lightning.parallel.ranks import Ranks


class Beside(Ranks):
    """The first of two ranks; the other one's buckets are known."""

    def beside(self, other):
        object.__setattr__(self, "other", iter(other))
        object.__setattr__(self, "sent", [])
        return self

    def sum(self, tensor):
        self.sent.append(tensor.numel())
        return tensor + next(self.other)


def parameter(grad, size=2):
    made = nn.Parameter(torch.zeros(size))
    made.grad = None if grad is None else torch.tensor(grad)
    return made


def test_pitfall_54_a_missing_gradient_is_zeros_unless_all_miss_it():
    """a: both ranks; b: the other rank only; c: none. One collective: 3 x 2 numbers and 3 flags."""
    a, b, c = parameter([2.0, 4.0]), parameter(None), parameter(None)
    ranks = Beside(0, 2).beside([torch.tensor([4.0, 0.0, 6.0, 8.0, 0.0, 0.0, 1.0, 1.0, 0.0])])
    average_gradients([a, b, c], ranks)
    assert a.grad.tolist() == [3.0, 2.0]
    assert b.grad.tolist() == [3.0, 4.0]
    assert c.grad is None  # the optimizer leaves it alone, as on one rank: no weight decay
    assert ranks.sent == [9]


def test_one_rank_leaves_gradients_alone():
    a = parameter([2.0, 4.0])
    grad = a.grad
    average_gradients([a], Ranks())
    assert a.grad is grad


def test_frozen_parameters_are_not_sent():
    frozen = nn.Parameter(torch.zeros(5), requires_grad=False)
    ranks = Beside(0, 2).beside([torch.zeros(3)])
    average_gradients([frozen, parameter([1.0, 1.0])], ranks)
    assert ranks.sent == [3]


def test_buckets_hold_one_type_and_are_limited(monkeypatch):
    monkeypatch.setattr(gradients, "BUCKET_BYTES", 40)
    small = [nn.Parameter(torch.zeros(4)) for _ in range(3)]
    large, half = nn.Parameter(torch.zeros(100)), nn.Parameter(torch.zeros(4, dtype=torch.bfloat16))
    found = list(buckets([*small, large, half]))
    assert [[p.numel() for p in bucket] for bucket in found] == [[4, 4], [4], [100], [4]]


def test_the_norm_adds_up_squares_in_float64():
    """sqrt((10^4)^2 + 1000 x 0.5^2 x 2) to the last bit; torch's own float32 norm (negative control) is rounded."""
    parameters = [parameter([1e4, 0.0]), parameter(None), *(parameter([0.5, 0.5]) for _ in range(1000))]
    exact = math.sqrt(1e8 + 500)
    assert float(total_norm(parameters, Ranks())) == pytest.approx(exact, rel=1e-15)
    rounded = nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
    assert abs(float(rounded) - exact) > 1e-9 * exact
    assert float(total_norm([parameter(None)], Ranks())) == 0.0


def test_the_norm_of_a_sharded_gradient_is_that_of_all_its_parts():
    """3 here, 4 on the other rank: 5. Whole gradients are the same on every rank and are not added up."""
    mine = [parameter([3.0, 0.0])]
    other = torch.tensor(16.0, dtype=torch.float64)
    assert float(total_norm(mine, Beside(0, 2, sharded=True).beside([other]))) == 5.0
    assert float(total_norm(mine, Beside(0, 2).beside([other]))) == 3.0
