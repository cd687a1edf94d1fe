"""Run a model over a batch's rows in micro-batches, and put the results back in the batch's order and width."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from ppo_lightning.config.schema import UpdateConfig
from ppo_lightning.models.critic import Critic
from ppo_lightning.models.packing import packed_states
from ppo_lightning.models.token_log_probs import plain_states, token_log_probs
from ppo_lightning.parallel.micro_batches import restore
from ppo_lightning.parallel.ranks import Ranks
from ppo_lightning.parallel.sharding import within
from ppo_lightning.protocol.data_proto import DataProto
from ppo_lightning.stages.chunks import READ_BY_MODELS, Chunk, idle, micros

ALONE = Ranks()


def states(model: nn.Module, chunk: Chunk) -> Tensor:
    """Return the hidden state before each valid response token of a micro-batch, (N, H)."""
    tensors = chunk.tensors
    arguments = (tensors["input_ids"], tensors["attention_mask"], tensors["response_mask"].bool())
    return plain_states(model, *arguments) if chunk.groups is None else packed_states(model, *arguments, chunk.groups)


def log_probs(
    model: nn.Module, chunk: Chunk, temperature: float, entropy: bool = False, squares: bool = False
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Return log-probabilities, entropies and sums of squared probabilities (b, R') of a micro-batch.

    All are 0 where the mask is 0; what is not asked for is None.
    """
    valid = chunk.mask.bool()
    targets = chunk.tensors["responses"][valid]

    def compute() -> tuple[Tensor, Tensor | None, Tensor | None]:
        hidden = states(model, chunk)
        return token_log_probs(model, hidden, targets, temperature, with_entropy=entropy, with_squares=squares)

    found = within(model, compute)
    return tuple(None if part is None else laid_out(part, valid) for part in found)  # type: ignore[return-value]


def values(critic: Critic, chunk: Chunk) -> Tensor:
    """Return the critic's values (b, R') of a micro-batch, 0 where the mask is 0."""
    return laid_out(within(critic, lambda: critic.values(states(critic, chunk))), chunk.mask.bool())


def laid_out(found: Tensor, valid: Tensor) -> Tensor:
    """Put N numbers at the valid positions of zeros (b, R'); differentiable."""
    return found.new_zeros(valid.shape).masked_scatter(valid, found)


def without_grad(
    batch: DataProto,
    update: UpdateConfig,
    sharing: bool,
    forward: Callable[[Chunk], tuple[Tensor, ...]],
    ranks: Ranks = ALONE,
) -> tuple[Tensor, ...]:
    """Apply `forward` to every micro-batch without gradients; return its results (B, R) in float32, rows in order."""
    rows, width = batch.batch["response_mask"].shape
    batch = batch.select(READ_BY_MODELS)
    parts: list[list[tuple[np.ndarray, Tensor]]] = []
    done = 0
    with torch.no_grad():
        for chunk in micros(batch, update, sharing):
            found = forward(chunk)
            parts = parts or [[] for _ in found]
            for part, numbers in zip(parts, found, strict=True):
                part.append((chunk.rows, numbers))
            done += 1
        if ranks.sharded:  # a forward pass is a collective
            for _ in range(ranks.most(done) - done):
                forward(idle(batch, update, sharing))
    return tuple(restore(part, rows, width).float() for part in parts)
