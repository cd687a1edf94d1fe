"""Run a model over a batch's rows in micro-batches, and put the results back in the batch's order and width."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from ppo_lightning.config.schema import UpdateConfig
from ppo_lightning.models.critic import Critic
from ppo_lightning.models.packing import packed_states, tokens_read
from ppo_lightning.models.token_log_probs import plain_states, token_log_probs
from ppo_lightning.parallel.micro_batches import (
    check_budget,
    longest_first,
    micro_batches,
    restore,
    split_rows,
    token_lengths,
)
from ppo_lightning.parallel.ranks import Ranks
from ppo_lightning.parallel.sharding import within
from ppo_lightning.protocol.data_proto import DataProto

READ_BY_MODELS = ("input_ids", "attention_mask", "responses", "response_mask")
ALONE = Ranks()


@dataclass(frozen=True)
class Chunk:
    """Rows of one forward pass: the trimmed micro-batch, and which of its rows share a prompt.

    Attributes:
        rows: of the batch.
        batch: these rows.
        groups: rows of each packed segment; None: padded rows.
        computed: tokens that the model computes, padding included.
    """

    rows: np.ndarray
    batch: DataProto
    groups: list[list[int]] | None
    computed: int

    @property
    def mask(self) -> Tensor:
        """The response mask (b, R')."""
        return self.batch.batch["response_mask"]

    @property
    def needed(self) -> int:
        """The tokens that are no padding; a prompt that is computed once counts once."""
        return self.computed if self.groups is not None else int(self.batch.batch["attention_mask"].sum())


def micros(batch: DataProto, update: UpdateConfig, sharing: bool, rows: np.ndarray | None = None) -> Iterator[Chunk]:
    """Cut a batch's rows, or some of them, into trimmed micro-batches as `update` says.

    Rows of similar lengths and of one prompt are together.
    """
    if rows is not None and len(rows) < len(batch):
        for chunk in micros(batch.select_idxs(rows), update, sharing):
            yield replace(chunk, rows=rows[chunk.rows])
        return
    if not sharing:
        for micro in micro_batches(
            batch, split_rows(batch, update.sequences_per_microbatch, update.tokens_per_microbatch)
        ):
            longest = int(micro.batch.batch["attention_mask"].sum(-1).max())
            yield Chunk(micro.rows, micro.batch, None, len(micro.rows) * max(1, longest))
        return
    prompts, responses = token_lengths(batch)
    packs = share_prompts(batch, update)
    widths = [pack_width(prompts, responses, pack) for pack in packs]
    filled = list(fill([len(pack) for pack in packs], widths, update))
    row_lists = [np.array([row for place in places for row in packs[place]], dtype=np.int64) for places in filled]
    for places, micro in zip(filled, micro_batches(batch, row_lists), strict=True):
        ends = np.cumsum([len(packs[place]) for place in places]).tolist()
        groups = [list(range(end - len(packs[place]), end)) for end, place in zip(ends, places, strict=True)]
        yield Chunk(micro.rows, micro.batch, groups, sum(widths[place] for place in places))


def share_prompts(batch: DataProto, update: UpdateConfig) -> list[list[int]]:
    """Return the rows of each packed segment, the widest first; a pack is never above the micro-batch limits.

    Raises:
        DataError: a row alone is above update.tokens_per_microbatch.
    """
    prompts, responses = token_lengths(batch)
    members: dict[object, list[int]] = {}
    for row, uid in enumerate(batch.non_tensor_batch["uid"]):
        members.setdefault(uid, []).append(row)
    packs = []
    for rows in members.values():
        size = update.sequences_per_microbatch
        packs += [rows[start : start + size] for start in range(0, len(rows), size)]
    if update.tokens_per_microbatch is not None:
        check_budget(prompts + responses, update.tokens_per_microbatch)
        packs = [part for pack in packs for part in _within(pack, prompts, responses, update.tokens_per_microbatch)]
    widths = np.array([pack_width(prompts, responses, pack) for pack in packs])
    return [packs[place] for place in longest_first(widths)]


def pack_width(prompts: np.ndarray, responses: np.ndarray, pack: list[int]) -> int:
    """Return the tokens of a packed segment, from those of each row's prompt and response."""
    return int(prompts[pack[0]] + tokens_read(responses[pack]).sum())


def fill(rows: list[int], widths: list[int], update: UpdateConfig) -> Iterator[list[int]]:
    """Group packs of so many rows and tokens into micro-batches under the token budget or the number of rows."""
    sizes, limit = (rows, update.sequences_per_microbatch)
    if update.tokens_per_microbatch is not None:
        sizes, limit = widths, update.tokens_per_microbatch
    chosen: list[int] = []
    for place, size in enumerate(sizes):
        if chosen and sum(sizes[other] for other in chosen) + size > limit:
            yield chosen
            chosen = []
        chosen.append(place)
    if chosen:
        yield chosen


def _within(pack: list[int], prompts: np.ndarray, responses: np.ndarray, budget: int) -> list[list[int]]:
    """Cut a pack so that no part is wider than the token budget."""
    parts: list[list[int]] = [[]]
    for row in pack:
        if parts[-1] and pack_width(prompts, responses, [*parts[-1], row]) > budget:
            parts.append([])
        parts[-1].append(row)
    return parts


def states(model: nn.Module, chunk: Chunk) -> Tensor:
    """Return the hidden state before each valid response token of a micro-batch, (N, H)."""
    tensors = chunk.batch.batch
    arguments = (tensors["input_ids"], tensors["attention_mask"], tensors["response_mask"].bool())
    return plain_states(model, *arguments) if chunk.groups is None else packed_states(model, *arguments, chunk.groups)


def log_probs(
    model: nn.Module, chunk: Chunk, temperature: float, entropy: bool = False, squares: bool = False
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Return log-probabilities, entropies and sums of squared probabilities (b, R') of a micro-batch.

    All are 0 where the mask is 0; what is not asked for is None.
    """
    valid = chunk.mask.bool()
    targets = chunk.batch.batch["responses"][valid]

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


def idle(batch: DataProto, update: UpdateConfig, sharing: bool) -> Chunk:
    """Return a micro-batch of weight 0, for a rank that has none left while others of a sharded model do."""
    row = batch.select_idxs([0])
    row.batch["response_mask"].zero_()
    return next(iter(micros(row, update, sharing)))


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
