import pytest
import torch

from ppo_lightning.models import token_log_probs as module
from ppo_lightning.models.token_log_probs import check_head, plain_states, token_log_probs


def gradients(model, number):
    model.zero_grad()
    number.backward()
    return [p.grad.clone() for p in model.parameters()]


def naive(model, ids, mask, valid, temperature):
    """The textbook form: all logits, log-softmax, gather; response token t is scored by the position before it."""
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    logits = model(input_ids=ids, attention_mask=mask, position_ids=positions).logits.float() / temperature
    log_p = logits[:, -valid.shape[1] - 1 : -1].log_softmax(-1)
    chosen = log_p.gather(-1, ids[:, -valid.shape[1] :, None]).squeeze(-1)
    return chosen[valid], -(log_p.exp() * log_p).sum(-1)[valid]


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("entropy", [False, True])
@pytest.mark.parametrize("kept", [False, True])
def test_values_and_gradients_equal_the_naive_form(llama, rows, monkeypatch, temperature, entropy, kept):
    monkeypatch.setattr(module, "KEPT_ELEMENTS", 16 * 97 - (not kept))
    monkeypatch.setattr(module, "ROWS", 5)
    monkeypatch.setattr(module, "TILE_ELEMENTS", 5 * 30)
    ids, mask, valid = rows
    states = plain_states(llama, ids, mask, valid)
    targets = ids[:, -5:][valid]
    found = token_log_probs(llama, states, targets, temperature, with_entropy=entropy)
    expected = naive(llama, ids, mask, valid, temperature)
    assert (found[0].grad_fn.kept is not None) == kept
    assert torch.allclose(found[0], expected[0], atol=1e-5)
    weights = torch.randn(2, len(targets))
    loss, reference = (found[0] * weights[0]).sum(), (expected[0] * weights[0]).sum()
    if entropy:
        assert torch.allclose(found[1], expected[1], atol=1e-5)
        loss, reference = loss + (found[1] * weights[1]).sum(), reference + (expected[1] * weights[1]).sum()
    else:
        assert found[1] is None
    for ours, theirs in zip(gradients(llama, loss), gradients(llama, reference), strict=True):
        assert float((ours - theirs).norm() / theirs.norm()) < 1e-5


def test_a_second_backward_pass_is_the_first_again(llama, rows):
    """The logits that were kept are used up by the first."""
    ids, mask, valid = rows
    states, targets = plain_states(llama, ids, mask, valid), ids[:, -5:][valid]
    log_prob, entropy, _ = token_log_probs(llama, states, targets, 0.7, with_entropy=True)
    weight = llama.get_output_embeddings().weight
    first, second = (
        torch.autograd.grad(log_prob.sum() + entropy.sum(), [states, weight], retain_graph=True) for _ in range(2)
    )
    for one, other in zip(first, second, strict=True):
        assert float((one - other).norm() / one.norm()) < 1e-6


def test_a_float64_model_is_scored_in_float64(llama, rows):
    """To 1e-12, as a float32 forward (negative control) is not."""
    ids, mask, valid = rows
    targets = ids[:, -5:][valid]
    rough = token_log_probs(llama, plain_states(llama, ids, mask, valid), targets, 0.7)[0]
    llama.double()
    states = plain_states(llama, ids, mask, valid)
    found, entropy, _ = token_log_probs(llama, states, targets, 0.7, with_entropy=True)
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    logits = llama(input_ids=ids, attention_mask=mask, position_ids=positions).logits / 0.7
    log_p = logits[:, -6:-1].log_softmax(-1)
    expected = log_p.gather(-1, ids[:, -5:, None]).squeeze(-1)[valid]
    assert found.dtype == entropy.dtype == torch.float64
    assert float((found - expected).abs().max()) < 1e-12 < float((rough - expected).abs().max())
    for ours, theirs in zip(gradients(llama, found.sum()), gradients(llama, expected.sum()), strict=True):
        assert float((ours - theirs).norm() / theirs.norm()) < 1e-12


def test_pitfall_19_a_certain_token_has_log_prob_zero_there_only(llama):
    """The head is made to answer with the id of the token it sees: certain of a repeated token, of no other."""
    width = llama.config.hidden_size
    with torch.no_grad():
        llama.model.embed_tokens.weight.copy_(torch.randn(97, width))
        states = llama.model.embed_tokens.weight[torch.tensor([5, 5, 6])] * 100
    found, _, _ = token_log_probs(llama, states, torch.tensor([5, 6, 6]), 1.0)
    log_prob = found.tolist()
    assert log_prob[0] == pytest.approx(0.0, abs=1e-4)
    assert log_prob[2] == pytest.approx(0.0, abs=1e-4)
    assert log_prob[1] < -100


@pytest.mark.parametrize("place", [0, 2])
def test_pitfall_19_a_response_token_is_scored_by_the_position_before_it(llama, rows, place):
    """The first one too: certain of it in that state, and not in the one of its own position (negative control)."""
    ids, mask, valid = rows
    states, targets = plain_states(llama, ids, mask, valid).detach(), ids[:, -5:][valid]
    own = llama.model(input_ids=ids, attention_mask=mask, position_ids=(mask.cumsum(-1) - 1).clamp(min=0))
    own = own.last_hidden_state[:, -5:][valid].detach()
    before, after = states[place], own[place]
    across = before - (before @ after) / (after @ after) * after
    certain = torch.zeros(97, len(before))
    certain[targets[place]] = 100 * across / (across @ before)
    head = torch.nn.Linear(len(before), 97, bias=False)
    head.weight = torch.nn.Parameter(certain)
    llama.set_output_embeddings(head)
    found, shifted = (token_log_probs(llama, each, targets, 1.0)[0] for each in (states, own))
    assert float(found[place]) == pytest.approx(0.0, abs=1e-4)
    assert float(found[targets != targets[place]].max()) < -3
    assert float(shifted[place]) < -3


def test_heads_that_are_more_than_a_matrix_are_seen(llama):
    assert check_head(llama)
    original = llama.forward

    def scaled(*args, **kwargs):
        out = original(*args, **kwargs)
        out.logits = out.logits * 0.5
        return out

    llama.forward = scaled
    assert not check_head(llama)


def test_sums_of_squared_probabilities(llama):
    torch.manual_seed(0)
    states, targets = torch.randn(7, llama.config.hidden_size), torch.arange(7)
    _, nothing, squares = token_log_probs(llama, states, targets, 0.7, with_squares=True)
    probs = torch.softmax(llama.get_output_embeddings()(states).double() / 0.7, -1)
    assert nothing is None
    assert torch.allclose(squares.double(), probs.square().sum(-1), atol=1e-6)
    assert not squares.requires_grad
    log_prob, _, none = token_log_probs(llama, states, targets, 0.7)
    assert none is None
    assert log_prob.requires_grad


def test_no_tokens_have_no_log_probs_and_a_gradient_of_zeros(llama):
    states = torch.zeros(0, llama.config.hidden_size, requires_grad=True)
    log_prob, entropy, _ = token_log_probs(llama, states, torch.zeros(0, dtype=torch.int64), 1.0, with_entropy=True)
    (log_prob.sum() + entropy.sum()).backward()
    assert log_prob.shape == entropy.shape == (0,)
    assert float(llama.get_output_embeddings().weight.grad.abs().max()) == 0.0
