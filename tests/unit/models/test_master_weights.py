"""bfloat16 weights with float32 copies: small updates add up, and a resumed optimizer goes on exactly."""

import copy
import io

import pytest
import torch
from torch import nn

from ppo_lightning.config.load import load
from ppo_lightning.models.master_weights import MasterAdamW
from ppo_lightning.models.optimizer import make_optimizer


def model():
    torch.manual_seed(0)
    return nn.Linear(16, 16).bfloat16()


def train(net, optimizer, steps, first=0):
    """Take steps on gradients that all have one sign, so that every step moves a weight by about lr."""
    for step in range(first, first + steps):
        for place, parameter in enumerate(net.parameters()):
            generator = torch.Generator().manual_seed(100 * step + place)
            parameter.grad = (0.5 + torch.rand(parameter.shape, generator=generator)).to(parameter.dtype)
        optimizer.step()


def moved(net, start):
    return torch.cat(
        [(a.detach().float() - b.detach().float()).flatten() for a, b in zip(net.parameters(), start, strict=True)]
    )


def test_updates_of_1e_6_do_not_vanish():
    """1000 steps of about 1e-6 against the gradient: -1e-3 in float32, and in bfloat16 as far as rounding allows."""
    net, start = model(), list(copy.deepcopy(model()).parameters())
    optimizer = MasterAdamW(net.parameters(), lr=1e-6, weight_decay=0.0)
    train(net, optimizer, 1000)
    masters = [optimizer.state[p]["master"] for p in net.parameters()]
    exact = torch.cat([(a - b.detach().float()).flatten() for a, b in zip(masters, start, strict=True)])
    assert float(exact.min()) > -1.1e-3
    assert float(exact.max()) < -0.9e-3
    assert all(torch.equal(p, m.bfloat16()) for p, m in zip(net.parameters(), masters, strict=True))
    assert float(moved(net, start).mean()) == pytest.approx(-1e-3, rel=0.1)


def test_plain_bfloat16_loses_them():
    """Negative control: torch's AdamW on the bfloat16 weights moves hardly anything in the same steps."""
    net, start = model(), list(copy.deepcopy(model()).parameters())
    train(net, torch.optim.AdamW(net.parameters(), lr=1e-6, weight_decay=0.0), 1000)
    assert abs(float(moved(net, start).mean())) < 5e-5


def test_on_float32_weights_it_is_torch_s_adamw():
    torch.manual_seed(0)
    left = nn.Linear(16, 16)
    right = copy.deepcopy(left)
    options = {"lr": 1e-2, "betas": (0.9, 0.99), "weight_decay": 0.1}
    train(left, MasterAdamW(left.parameters(), **options), 5)
    train(right, torch.optim.AdamW(right.parameters(), **options), 5)
    for ours, theirs in zip(left.parameters(), right.parameters(), strict=True):
        assert torch.allclose(ours, theirs, atol=1e-7)


def test_resuming_goes_on_exactly():
    straight = model()
    optimizer = MasterAdamW(straight.parameters(), lr=1e-4)
    train(straight, optimizer, 10)

    first = model()
    before = MasterAdamW(first.parameters(), lr=1e-4)
    train(first, before, 5)
    file = io.BytesIO()
    torch.save(before.state_dict(), file)
    file.seek(0)
    second = model()
    second.load_state_dict(first.state_dict())
    after = MasterAdamW(second.parameters(), lr=1.0)
    after.load_state_dict(torch.load(file, weights_only=True))
    train(second, after, 5, first=5)
    for a, b in zip(straight.parameters(), second.parameters(), strict=True):
        assert torch.equal(a, b)
        for key in ("master", "exp_avg", "exp_avg_sq", "step"):
            assert torch.equal(optimizer.state[a][key], after.state[b][key]), key


def test_a_rounded_copy_would_be_seen():
    """Negative control: torch's own way of loading casts the copies to bfloat16, and another run comes out."""
    net = model()
    optimizer = MasterAdamW(net.parameters(), lr=1e-4)
    train(net, optimizer, 5)
    other = MasterAdamW(copy.deepcopy(net).parameters(), lr=1e-4)
    torch.optim.Optimizer.load_state_dict(other, optimizer.state_dict())
    pairs = zip(optimizer.state.values(), other.state.values(), strict=True)
    assert any(not torch.equal(a["master"], b["master"].float()) for a, b in pairs)


def test_a_state_without_copies_takes_the_weights_at_hand():
    net = model()
    plain = torch.optim.AdamW(net.parameters(), lr=1e-4)
    train(net, plain, 3)
    optimizer = MasterAdamW(net.parameters(), lr=1e-4)
    optimizer.load_state_dict(plain.state_dict())
    for parameter in net.parameters():
        assert torch.equal(optimizer.state[parameter]["master"], parameter.detach().float())


@pytest.mark.parametrize(
    ("dtype", "wanted", "kind"),
    [("bfloat16", True, MasterAdamW), ("bfloat16", False, torch.optim.AdamW), ("float32", True, torch.optim.AdamW)],
)
def test_when_copies_are_kept(dtype, wanted, kind):
    config = load(None, [f"update.master_weights={str(wanted).lower()}", f"model.dtype={dtype}"]).config
    net = model().to(getattr(torch, dtype))
    assert type(make_optimizer(net, config, "actor")["optimizer"]) is kind
