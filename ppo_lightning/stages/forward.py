"""Run a model over a batch's rows in micro-batches, and put the results back in the batch's order and width."""

from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from ppo_lightning.config.schema import UpdateConfig
from ppo_lightning.models.token_log_probs import token_log_probs
from ppo_lightning.parallel.micro_batches import MicroBatch, micro_batches, restore, split_rows
from ppo_lightning.protocol.data_proto import DataProto

FORWARD_KEYS = ("input_ids", "attention_mask", "response_mask")


def micros(batch: DataProto, update: UpdateConfig) -> Iterator[MicroBatch]:
    """Cut a batch's rows into trimmed micro-batches as `update` says, of similar lengths."""
    yield from micro_batches(batch, split_rows(batch, update.sequences_per_microbatch, update.tokens_per_microbatch))


def log_probs(
    model: torch.nn.Module, micro: DataProto, temperature: float, entropy: bool
) -> tuple[Tensor, Tensor | None]:
    """Return log-probabilities and entropies (b, R') of a micro-batch."""
    ids, mask, valid = (micro.batch[key] for key in FORWARD_KEYS)
    return token_log_probs(model, ids, mask, valid.bool(), temperature, with_entropy=entropy)


def without_grad(
    batch: DataProto, update: UpdateConfig, forward: Callable[[DataProto], tuple[Tensor, ...]]
) -> tuple[Tensor, ...]:
    """Apply `forward` to every micro-batch without gradients and return its results (B, R), rows in order."""
    rows, width = batch.batch["response_mask"].shape
    parts: list[list[tuple[np.ndarray, Tensor]]] = []
    with torch.no_grad():
        for micro in micros(batch, update):
            found = forward(micro.batch)
            parts = parts or [[] for _ in found]
            for part, values in zip(parts, found, strict=True):
                part.append((micro.rows, values))
    return tuple(restore(part, rows, width) for part in parts)
