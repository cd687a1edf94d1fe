"""What rests is at home, what works is on the device, and the numbers are the same."""

import pytest
import torch
from torch import nn

from ppo_lightning.models.master_weights import MasterAdamW
from ppo_lightning.models.offload import Offload

OPTIMIZERS = [torch.optim.AdamW, MasterAdamW]


def trained(kind, device="cpu", offload=None, steps=3):
    torch.manual_seed(0)
    net = nn.Linear(8, 8).to(device)
    optimizer = kind(net.parameters(), lr=1e-2)
    offload = offload or Offload()
    for _ in range(steps):
        with offload.awake(optimizer):
            net(torch.ones(2, 8, device=device)).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    return net, optimizer


def places(optimizer):
    return {
        (key, value.device.type)
        for state in optimizer.state.values()
        for key, value in state.items()
        if isinstance(value, torch.Tensor)
    }


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_resting_frees_the_device(kind):
    """The CPU plays the device and torch's meta device, which holds no bytes, the home."""
    net, optimizer = trained(kind)
    keys = {key for key, _ in places(optimizer)}
    offload = Offload(on=True, device="cpu", home="meta")
    offload.rest(optimizer, None)
    assert places(optimizer) == {("step", "cpu")} | {(key, "meta") for key in keys - {"step"}}
    assert next(net.parameters()).device.type == "cpu"  # the policy itself stays


def test_awake_is_on_the_device():
    reference, seen = nn.Linear(8, 8), []

    def look():
        with Offload(on=True, device="meta").awake(reference):
            seen.extend(p.device.type for p in reference.parameters())

    with pytest.raises(NotImplementedError, match="meta"):  # nothing comes back from a device that holds no bytes
        look()
    assert seen == ["meta", "meta"]


@pytest.mark.parametrize(("on", "device"), [(False, "meta"), (True, "cpu")])
def test_off_or_on_a_cpu_nothing_moves(on, device):
    net, optimizer = trained(torch.optim.AdamW, offload=Offload(on, device))
    assert {device for _, device in places(optimizer)} == {"cpu"}
    assert not Offload(on, device).on
    plain, _ = trained(torch.optim.AdamW)
    assert all(torch.equal(a, b) for a, b in zip(net.parameters(), plain.parameters(), strict=True))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_on_a_gpu(kind):
    plain, _ = trained(kind, "cuda")
    net, optimizer = trained(kind, "cuda", Offload(on=True, device="cuda"))
    assert all(device == "cpu" for key, device in places(optimizer) if key != "step")
    assert all(torch.equal(a, b) for a, b in zip(net.parameters(), plain.parameters(), strict=True))
    reference = nn.Linear(1024, 1024).cuda()
    offload = Offload(on=True, device="cuda")
    offload.rest(reference)
    resting = torch.cuda.memory_allocated()
    with offload.awake(reference):
        assert torch.cuda.memory_allocated() - resting >= 4 * 1024 * 1024
    assert torch.cuda.memory_allocated() == resting
