"""Log-probabilities and entropies of response tokens, from hidden states in chunks: no (B, S, V) tensor is made.

Row i's response token t is predicted by the hidden state one position before it. Everything is float32 log-softmax at
the sampling temperature (float64 where the model is).
"""

from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

CHUNK_ELEMENTS = 2**24
"""Logits held at once: 64 MiB of float32."""


def token_log_probs(
    model: nn.Module,
    states: Float[Tensor, "N H"],
    targets: Int[Tensor, "N"],
    temperature: float,
    *,
    with_entropy: bool = False,
    with_squares: bool = False,
) -> tuple[Float[Tensor, "N"], Float[Tensor, "N"] | None, Float[Tensor, "N"] | None]:
    """Return log-probabilities of N sampled tokens and, if asked for, entropies and sums of squared probabilities.

    The first two carry gradients to the model. Source: log_softmax(logits / T) gathered at the token; H = -sum p log p;
    sum p^2.

    Args:
        model: the policy, for its output head.
        states: the hidden state before each token (`plain_states`, or `packing.packed_states`).
        targets: the sampled tokens.
        temperature: T.
        with_entropy: whether entropies are wanted.
        with_squares: whether the sums over the vocabulary of squared probabilities are wanted.
    """
    head = model.get_output_embeddings()
    wanted = (with_entropy, with_squares)
    log_prob, entropy, squares = _HeadLogProb.apply(states, head.weight, targets, temperature, wanted)
    return log_prob, entropy if with_entropy else None, squares if with_squares else None


def plain_states(
    model: nn.Module,
    input_ids: Int[Tensor, "b S"],
    attention_mask: Int[Tensor, "b S"],
    response_mask: Bool[Tensor, "b R"],
) -> Float[Tensor, "N H"]:
    """Return the hidden state before each valid response token, row by row.

    A row's prompt and response are moved together, so that the model computes rows x the longest row: left and right
    padding of unlike rows do not add up.
    """
    width = max(1, int(attention_mask.sum(-1).max()))
    order = attention_mask.argsort(dim=-1, descending=True, stable=True)[:, :width]
    hidden = last_hidden(model, input_ids.gather(-1, order), attention_mask.gather(-1, order))
    before = (attention_mask.cumsum(-1) - 2).clamp(min=0)[:, -response_mask.shape[1] :]
    return hidden[response_mask.nonzero()[:, 0], before[response_mask]]


def last_hidden(
    model: nn.Module, input_ids: Int[Tensor, "b S"], attention_mask: Int[Tensor, "b S"]
) -> Float[Tensor, "b S H"]:
    """Return the decoder's last hidden states; positions count valid tokens only."""
    position_ids = (attention_mask.cumsum(-1) - 1).clamp(min=0)
    decoder = model.get_decoder()
    out = decoder(input_ids=input_ids, attention_mask=attention_mask, position_ids=position_ids, use_cache=False)
    return out.last_hidden_state


def check_head(model: nn.Module) -> bool:
    """Tell whether logits are exactly `hidden @ head.weight.T`, as `token_log_probs` takes them to be.

    Models that scale, cap or bias their logits are found by comparing both on a few tokens.
    """
    head = model.get_output_embeddings()
    if not isinstance(head, nn.Linear) or head.bias is not None:
        return False
    ids = torch.arange(4, device=head.weight.device).unsqueeze(0)
    with torch.no_grad():
        ours = last_hidden(model, ids, torch.ones_like(ids)) @ head.weight.T
        return torch.allclose(ours, model(input_ids=ids, use_cache=False).logits, rtol=1e-3, atol=1e-3)


def at_least_float32(tensor: Tensor) -> torch.dtype:
    """Return the type of losses and log-probabilities of a model with such weights."""
    return torch.promote_types(tensor.dtype, torch.float32)


class _HeadLogProb(torch.autograd.Function):
    """Linear head, log-softmax, gather and entropy over N tokens, recomputing logits in the backward pass."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, temperature: float, wanted: tuple[bool, bool]
    ) -> tuple[Tensor, Tensor, Tensor]:
        with_entropy, with_squares = wanted
        log_prob = torch.empty(len(targets), dtype=at_least_float32(weight), device=hidden.device)
        log_norm, entropy, squares = torch.empty_like(log_prob), torch.zeros_like(log_prob), torch.zeros_like(log_prob)
        for rows in _chunks(len(targets), weight.shape[0]):
            logits = head_logits(hidden[rows], weight, temperature)
            log_norm[rows] = torch.logsumexp(logits, -1)
            log_prob[rows] = logits.gather(-1, targets[rows, None]).squeeze(-1) - log_norm[rows]
            if with_entropy or with_squares:
                logits.sub_(log_norm[rows, None])
                probs = logits.exp()
                if with_squares:
                    squares[rows] = torch.linalg.vector_norm(probs, dim=-1).square()
                if with_entropy:
                    entropy[rows] = -probs.mul_(logits).sum(-1)
        ctx.save_for_backward(hidden, weight, targets, log_norm, entropy)
        ctx.mark_non_differentiable(squares)
        ctx.temperature, ctx.with_entropy = temperature, with_entropy
        return log_prob, entropy, squares

    @staticmethod
    def backward(
        ctx: Any, grad_log_prob: Tensor, grad_entropy: Tensor, grad_squares: Tensor
    ) -> tuple[Tensor | None, ...]:
        """D logp = onehot - p; d H = -p (log p + H); both over T."""
        hidden, weight, targets, log_norm, entropy = ctx.saved_tensors
        grad_hidden = torch.empty_like(hidden)
        grad_weight = torch.zeros_like(weight, dtype=at_least_float32(weight)) if ctx.needs_input_grad[1] else None
        for rows in _chunks(len(targets), weight.shape[0]):
            log_p = head_logits(hidden[rows], weight, ctx.temperature).sub_(log_norm[rows, None])
            grad = _logits_grad(
                log_p, targets[rows], grad_log_prob[rows], (grad_entropy[rows], entropy[rows]), ctx.with_entropy
            )
            grad = grad.div_(ctx.temperature).to(hidden.dtype)
            grad_hidden[rows] = grad @ weight
            if grad_weight is not None:
                grad_weight.addmm_(grad.T.to(grad_weight.dtype), hidden[rows].to(grad_weight.dtype))
        return grad_hidden, None if grad_weight is None else grad_weight.to(weight.dtype), None, None, None


def head_logits(hidden: Tensor, weight: Tensor, temperature: float = 1.0) -> Tensor:
    """Multiply by the output head in float32 at least, and divide by the temperature.

    Logits rounded to bfloat16 would be off by up to 0.06.
    """
    if weight.dtype.itemsize >= torch.float32.itemsize:
        logits = hidden @ weight.T
    elif weight.is_cuda:
        logits = torch.mm(hidden, weight.T, out_dtype=torch.float32)
    else:
        logits = hidden.float() @ weight.float().T
    return logits if temperature == 1.0 else logits.div_(temperature)


def _logits_grad(
    log_p: Tensor, targets: Tensor, grad: Tensor, entropy: tuple[Tensor, Tensor], with_entropy: bool
) -> Tensor:
    if with_entropy:
        grad_entropy, value = entropy
        out = log_p.exp()
        out.mul_(log_p.add_(value[:, None]).mul_(grad_entropy[:, None]).add_(grad[:, None])).neg_()
    else:
        out = log_p.exp_().mul_(grad[:, None]).neg_()
    out[torch.arange(len(targets), device=out.device), targets] += grad
    return out


def _chunks(rows: int, vocabulary: int) -> list[slice]:
    size = max(1, CHUNK_ELEMENTS // vocabulary)
    return [slice(start, start + size) for start in range(0, rows, size)]
