"""Counter-based sampling: the random number of a token depends on its response's key and its position only."""

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import nn

from ppo_lightning.algorithms.running_sum import running_sum
from ppo_lightning.engines.base import Request, Sampling

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)

BLOCK = 256
"""Tokens of the vocabulary that are added up at once when a token is drawn."""


def stream(keys: list[tuple[int, ...]]) -> np.ndarray:
    """Return one 64-bit stream number per key: a hash of the key's integers (SplitMix64 rounds)."""
    state = np.zeros(len(keys), dtype=np.uint64)
    for column in zip(*keys, strict=True):
        state = _mix(state ^ _mix(np.array(column, dtype=np.int64).astype(np.uint64) + _GOLDEN))
    return state


def seeds(requests: list[Request]) -> list[int]:
    """Return one non-negative 63-bit seed per request, from its key alone."""
    return [int(number) >> 1 for number in stream([request.key for request in requests])]


def uniforms(streams: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """Return one number in [0, 1) per stream at its position: 53 random bits each (float64)."""
    with np.errstate(over="ignore"):
        mixed = _mix(streams + _GOLDEN * (positions.astype(np.uint64) + np.uint64(1)))
    return (mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53


def draw(
    logits: Float[torch.Tensor, "B V"], sampling: Sampling, uniform: Float[torch.Tensor, "B"]
) -> tuple[Int[torch.Tensor, "B"], Float[torch.Tensor, "B"]]:
    """Draw one token per row and return it with its log-probability under the distribution drawn from.

    The token is found by inverting the cumulative distribution at `uniform`, in vocabulary order, so the same uniform
    gives the same token in any batch. Greedy (temperature 0) reports the log-probability at temperature 1.
    """
    logits = logits.float()
    if sampling.temperature <= 0:
        token = logits.argmax(-1)
        return token, logits.gather(-1, token.unsqueeze(-1)).squeeze(-1) - torch.logsumexp(logits, -1)
    if sampling.temperature != 1.0:
        logits = logits / sampling.temperature
    if sampling.truncated:
        logits = _truncate(logits, sampling)
    probs = torch.softmax(logits, -1)
    token = _invert(probs, uniform.to(probs.device))
    return token, probs.gather(-1, token.unsqueeze(-1)).squeeze(-1).log()


def _invert(probs: Float[torch.Tensor, "B V"], uniform: Float[torch.Tensor, "B"]) -> Int[torch.Tensor, "B"]:
    """Return the first token whose cumulative probability is above `uniform` x the sum, of those that are possible.

    The block of the vocabulary is found first, so that only one block is added up token by token, in float64.
    """
    size = min(BLOCK, probs.shape[-1])
    short = -probs.shape[-1] % size
    blocks = (nn.functional.pad(probs, (0, short)) if short else probs).unflatten(-1, (-1, size))
    masses = blocks.sum(-1).double()
    ends = running_sum(masses)
    total = ends[:, -1:]
    target = torch.minimum(uniform.double().unsqueeze(-1) * total, total.nextafter(torch.zeros_like(total)))
    block = torch.searchsorted(ends, target, right=True)
    inside = blocks.gather(1, block.unsqueeze(-1).expand(-1, -1, size)).squeeze(1)
    rest = target - (ends - masses).gather(-1, block)
    place = torch.searchsorted(running_sum(inside.double()), rest, right=True)
    last = size - 1 - inside.flip(-1).ne(0).to(torch.int8).argmax(-1, keepdim=True)
    return (block * size + torch.minimum(place, last)).squeeze(-1)


def _truncate(logits: Float[torch.Tensor, "B V"], sampling: Sampling) -> Float[torch.Tensor, "B V"]:
    """Remove tokens outside top-k, then outside the nucleus, then below min-p of the likeliest."""
    if sampling.top_k > 0:
        kept = logits.topk(min(sampling.top_k, logits.shape[-1]), -1).values[:, -1:]
        logits = logits.masked_fill(logits < kept, -torch.inf)
    if sampling.top_p < 1.0:
        ordered, index = logits.sort(-1, descending=True)
        before = running_sum(torch.softmax(ordered, -1)) - torch.softmax(ordered, -1)
        removed = torch.zeros_like(logits, dtype=torch.bool).scatter(-1, index, before >= sampling.top_p)
        logits = logits.masked_fill(removed, -torch.inf)
    if sampling.min_p > 0.0:
        probs = torch.softmax(logits, -1)
        logits = logits.masked_fill(probs < sampling.min_p * probs.amax(-1, keepdim=True), -torch.inf)
    return logits


def _mix(state: np.ndarray) -> np.ndarray:
    """One SplitMix64 output round on unsigned 64-bit integers."""
    with np.errstate(over="ignore"):
        state = (state ^ (state >> np.uint64(30))) * _MIX_1
        state = (state ^ (state >> np.uint64(27))) * _MIX_2
    return state ^ (state >> np.uint64(31))
