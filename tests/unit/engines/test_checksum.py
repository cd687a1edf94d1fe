"""Checksums tell equal weights from others, in whatever layout an engine keeps them."""

import pytest
import torch
from torch import nn

from ppo_lightning.engines.checksum import HEAD, agree, checksum, checksum_of_policy, column_checksum, columns, pick
from ppo_lightning.engines.vllm_worker import PolicyWeights, readers


class Policy(nn.Module):
    """Two projections that an engine fuses, a bias, embeddings tied to the head."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(20, 16)
        self.q_proj, self.k_proj = nn.Linear(16, 16), nn.Linear(16, 4)

    def get_output_embeddings(self):
        head = nn.Linear(16, 20, bias=False)
        head.weight = self.embed.weight
        return head


class Packed(nn.Module):
    """A layer whose weight can only be had through its kernel."""

    def __init__(self, weight, sizes=()):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(0))
        self.secret, self.output_sizes, self.input_size = weight.clone(), list(sizes), weight.shape[1]
        self.params_dtype, self.cpu_linear, self.quant_method = weight.dtype, None, self

    def apply(self, layer, x, bias):
        return x @ self.secret.T


class Engine(nn.Module):
    packed_modules_mapping = {"qk_proj": ["q_proj", "k_proj"]}  # noqa: RUF012

    def __init__(self, policy):
        super().__init__()
        self.embed = nn.Embedding(64, 16)
        self.embed.weight.data[:20] = policy.embed.weight.data
        self.embed.org_vocab_size = 20
        self.qk_proj = Packed(torch.cat([policy.q_proj.weight, policy.k_proj.weight]).detach(), (16, 4))
        self.qk_proj.bias = nn.Parameter(torch.cat([policy.q_proj.bias, policy.k_proj.bias]).detach())
        self.lm_head = Packed(self.embed.weight.detach())
        self.lm_head.embedding_dim, self.lm_head.org_vocab_size = 16, 20


class Worker(PolicyWeights):
    def __init__(self, model):
        self.model = model

    def get_model(self):
        return self.model


@pytest.fixture
def pair():
    torch.manual_seed(0)
    policy = Policy()
    return policy, Engine(policy)


def test_by_hand():
    """a: 97 -> weight 1; two columns of [[1, 2], [3, 4]] and a vector."""
    weight = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    assert checksum([("a", weight)]) == 10.0
    assert checksum([("a", torch.tensor([1.0, 2.5]))]) == 3.5
    assert torch.equal(columns(16, 1), torch.arange(1, 17, 2))
    assert torch.equal(pick(torch.arange(16.0).repeat(2, 1), 1)[0], torch.arange(1.0, 17.0, 2.0))


def test_every_column_is_read_at_some_version():
    assert {int(c) for version in range(2) for c in columns(16, version)} == set(range(16))


@pytest.mark.parametrize("version", [0, 1, 7])
def test_fused_and_packed_weights_are_read_exactly(pair, version):
    policy, engine = pair
    names = sorted(readers(engine))
    assert names == ["embed.weight", "k_proj.bias", "k_proj.weight", HEAD, "q_proj.bias", "q_proj.weight"]
    found = Worker(engine).ppo_checksum(names, version)
    assert found == pytest.approx(column_checksum(policy, torch.float32, version, names), rel=1e-13)


@pytest.mark.parametrize("left_behind", ["q_proj.weight", "k_proj.bias", "embed.weight", HEAD])
def test_what_is_left_behind_shows(pair, left_behind):
    """One weight of the engine is off by as much as one optimizer step moves it."""
    policy, engine = pair
    with torch.no_grad():
        if left_behind == HEAD:
            engine.lm_head.secret += 1e-6
        elif left_behind == "embed.weight":
            engine.embed.weight += 1e-6
        elif left_behind == "q_proj.weight":
            engine.qk_proj.secret[:16] += 1e-6
        else:
            engine.qk_proj.bias[16:] += 1e-6
    names = sorted(readers(engine))
    assert not agree(Worker(engine).ppo_checksum(names, 3), column_checksum(policy, torch.float32, 3, names))


def test_exchanged_tensors_show():
    a, b = torch.ones(3), torch.zeros(3)
    assert checksum([("x", a), ("y", b)]) != checksum([("x", b), ("y", a)])


def test_weights_that_cannot_be_read_back_are_named(pair):
    policy, _ = pair
    with pytest.warns(UserWarning, match=r"2 of 5 weights, such as k_proj.bias, cannot be read back"):
        checksum_of_policy(policy, torch.float32, 0, ["embed.weight", "q_proj.weight", "q_proj.bias"])
    with pytest.warns(UserWarning, match="5 of 5"):
        assert checksum_of_policy(policy, torch.float32, 0, []) is None


def test_not_a_number_never_agrees():
    assert agree(5.0, 5.0)
    assert not agree(float("nan"), 5.0)
    assert not agree(float("nan"), float("nan"))
