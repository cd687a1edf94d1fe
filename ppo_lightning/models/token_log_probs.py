"""Log-probabilities and entropies of response tokens, from hidden states in tiles: no (B, S, V) tensor is made.

Row i's response token t is predicted by the hidden state one position before it. Everything is float32 log-softmax at
the sampling temperature (float64 where the model is).
"""

from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from ppo_lightning.models.products import onednn_linear, onednn_takes

ROWS = 2048
"""Tokens whose logits are worked on at once."""

TILE_ELEMENTS = 2**22
"""Logits worked on at once, twice: 16 MiB of float32 each."""

KEPT_ELEMENTS = 2**26
"""Logits held from the forward to the backward pass: 256 MiB of float32. Those of more tokens are computed again."""


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
    keep = torch.is_grad_enabled() and len(targets) * len(head.weight) <= KEPT_ELEMENTS
    wanted = (with_entropy, with_squares, keep)
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
    """Linear head, log-softmax, gather and entropy over N tokens; many tokens' logits are not kept, but recomputed.

    Tokens and vocabulary are cut into tiles that stay in a CPU's cache while they are worked on.
    """

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, temperature: float, wanted: tuple[bool, bool, bool]
    ) -> tuple[Tensor, Tensor, Tensor]:
        ctx.kept = [] if wanted[2] else None
        parts = [
            _score(hidden[rows], weight, targets[rows], temperature, *wanted[:2], ctx.kept)
            for rows in _rows(len(targets), weight)
        ]
        log_prob, entropy, squares, log_norm = (torch.cat(column) for column in zip(*parts, strict=True))
        ctx.save_for_backward(hidden, weight, targets, log_norm, entropy)
        ctx.mark_non_differentiable(squares)
        ctx.set_materialize_grads(False)
        ctx.temperature = temperature
        return log_prob, entropy, squares

    @staticmethod
    def backward(
        ctx: Any, grad_log_prob: Tensor | None, grad_entropy: Tensor | None, grad_squares: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        """D logp = onehot - p; d H = -p (log p + H); both over T."""
        hidden, weight, targets, log_norm, entropy = ctx.saved_tensors
        kept, ctx.kept = ctx.kept, None  # they are overwritten: another backward pass computes them again
        grad_hidden = torch.zeros_like(hidden, dtype=at_least_float32(hidden))
        grad_weight = torch.zeros_like(weight, dtype=at_least_float32(weight)) if ctx.needs_input_grad[1] else None
        direct = torch.zeros_like(log_norm) if grad_log_prob is None else grad_log_prob / ctx.temperature
        for rows in _rows(len(targets), weight):
            states, target, norm = hidden[rows], targets[rows], log_norm[rows]
            for columns in _tiles(len(target), weight):
                if kept is None:
                    log_p = head_logits(states, weight[columns], ctx.temperature).sub_(norm[:, None])
                else:
                    logits, above = kept.pop(0)
                    log_p = logits.add_((above - norm)[:, None])
                grad = log_p.exp()
                if grad_entropy is None:
                    grad.mul_(-direct[rows, None])
                else:
                    slope = (grad_entropy[rows] / ctx.temperature)[:, None]
                    grad.mul_(log_p.add_(entropy[rows, None]).mul_(slope).add_(direct[rows, None]).neg_())
                here, place = _inside(target, columns)
                grad[here, place] += direct[rows][here]
                fast = hidden.dtype if hidden.is_cuda else grad.dtype
                grad_hidden[rows] += grad.to(fast) @ weight[columns].to(fast)
                if grad_weight is not None:
                    grad_weight[columns].addmm_(grad.T, states.to(grad.dtype))
        return grad_hidden.to(hidden.dtype), None if grad_weight is None else grad_weight.to(weight.dtype), *[None] * 3


def _score(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    temperature: float,
    with_entropy: bool,
    with_squares: bool,
    kept: list[tuple[Tensor, Tensor]] | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return log-probabilities, entropies, sums of squared probabilities and log-normalisers (N,), tile by tile.

    Sums are relative to the largest logit so far; what is not wanted is zeros. A list takes each tile's logits below
    the largest so far, and that.
    """
    largest = torch.full((len(hidden),), -torch.inf, dtype=at_least_float32(hidden), device=hidden.device)
    chosen, total, weighted, squares = (torch.zeros_like(largest) for _ in range(4))
    for columns in _tiles(len(targets), weight):
        logits = head_logits(hidden, weight[columns], temperature)
        here, place = _inside(targets, columns)
        chosen[here] = logits[here, place]
        before, largest = largest, torch.maximum(largest, logits.amax(-1))
        logits.sub_(largest[:, None])
        probs = logits.exp()
        shift = before - largest
        scale = shift.exp()
        if with_entropy:
            moved = torch.where(total > 0, weighted + shift * total, 0.0)
            weighted = moved * scale + torch.linalg.vecdot(probs, logits)
        if with_squares:
            squares = squares * scale.square() + torch.linalg.vecdot(probs, probs)
        total = total * scale + probs.sum(-1)
        if kept is not None:
            kept.append((logits, largest))
    log_norm = largest + total.log()
    entropy = total.log() - weighted / total if with_entropy else torch.zeros_like(total)
    return chosen - log_norm, entropy, squares / total.square(), log_norm


def head_logits(hidden: Tensor, weight: Tensor, temperature: float = 1.0) -> Tensor:
    """Multiply by the output head in float32 at least, and divide by the temperature.

    Logits rounded to bfloat16 would be off by up to 0.06.
    """
    dtype = at_least_float32(hidden)
    if weight.is_cuda and weight.dtype != dtype:
        logits = torch.mm(hidden, weight.T, out_dtype=dtype)
    else:
        states, weight = hidden.to(dtype), weight.to(dtype)
        logits = onednn_linear(states, weight) if onednn_takes(weight) else states @ weight.T
    return logits if temperature == 1.0 else logits.div_(temperature)


def _inside(targets: Tensor, columns: slice) -> tuple[Tensor, Tensor]:
    """Return the rows whose target lies in a tile, and its place there."""
    here = ((targets >= columns.start) & (targets < columns.stop)).nonzero().squeeze(-1)
    return here, targets[here] - columns.start


def _rows(count: int, weight: Tensor) -> list[slice]:
    size = max(1, TILE_ELEMENTS // len(weight)) if weight.is_cuda else ROWS
    return [slice(start, start + size) for start in range(0, count, size)] or [slice(0, 0)]


def _tiles(rows: int, weight: Tensor) -> Iterator[slice]:
    """Yield the vocabulary in parts; a GPU takes it whole. Products of even widths are faster."""
    vocabulary = len(weight)
    width = vocabulary if weight.is_cuda else max(64, TILE_ELEMENTS // max(rows, 1) // 64 * 64)
    for start in range(0, vocabulary, width):
        yield slice(start, min(start + width, vocabulary))
