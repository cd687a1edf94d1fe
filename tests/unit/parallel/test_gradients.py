import torch
from torch import nn

from ppo_lightning.parallel import gradients
from ppo_lightning.parallel.gradients import average_gradients, buckets
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
