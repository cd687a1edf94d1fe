import torch
from torch import nn

from ppo_lightning.engines.packed_linear import packed_linears


def test_products_equal_plain_ones_and_the_copies_are_gone_afterwards():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(48, 96), nn.Tanh(), nn.Linear(96, 7, bias=False))
    states = torch.randn(3, 5, 48)
    with torch.inference_mode():
        expected = model(states)
        with packed_linears(model):
            assert "forward" in vars(model[0])
            assert torch.allclose(model(states), expected, atol=1e-6)
            with packed_linears(model):  # a rollout within a rollout keeps the first one's copies
                pass
            assert "forward" in vars(model[0])
        assert "forward" not in vars(model[0])
        assert torch.equal(model(states), expected)


def test_other_types_are_left_alone():
    model = nn.Sequential(nn.Linear(8, 8, dtype=torch.bfloat16), nn.Conv1d(1, 1, 1))
    with packed_linears(model):
        assert not any("forward" in vars(module) for module in model)
