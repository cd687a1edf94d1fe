"""Which rows share a forward pass: micro-batches of similar lengths, and of one prompt where it is computed once."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from ppo_lightning.config.schema import UpdateConfig
from ppo_lightning.models.packing import tokens_read
from ppo_lightning.parallel.micro_batches import (
    MicroBatch,
    check_budget,
    longest_first,
    micro_batches,
    split_rows,
    token_lengths,
)
from ppo_lightning.protocol.data_proto import DataProto

READ_BY_MODELS = ("input_ids", "attention_mask", "responses", "response_mask")


@dataclass(frozen=True)
class Chunk(MicroBatch):
    """A micro-batch, and which of its rows share a prompt.

    Attributes:
        groups: rows of each packed segment; None: padded rows.
        computed: tokens that the model computes, padding included.
        needed: the tokens that are no padding; a prompt that is computed once counts once.
    """

    groups: list[list[int]] | None
    computed: int
    needed: int

    @property
    def mask(self) -> Tensor:
        """The response mask (b, R')."""
        return self.tensors["response_mask"]


def micros(batch: DataProto, update: UpdateConfig, sharing: bool, rows: np.ndarray | None = None) -> Iterator[Chunk]:
    """Cut a batch's rows, or some of them, into trimmed micro-batches as `update` says.

    Rows of similar lengths and of one prompt are together.

    Args:
        batch: reads attention_mask (B, S) and responses (B, R); uid with `sharing`.
        update: sequences_per_microbatch or tokens_per_microbatch, which is never exceeded.
        sharing: whether rows of one prompt are packed behind it.
        rows: which rows (int64); None: all.

    Raises:
        DataError: a row alone is above update.tokens_per_microbatch.
    """
    prompts, responses = token_lengths(batch)
    rows = np.arange(len(batch)) if rows is None else rows
    widths = prompts + responses
    if not sharing:
        parts = split_rows(
            prompts[rows], responses[rows], update.sequences_per_microbatch, update.tokens_per_microbatch
        )
        row_lists = [rows[part] for part in parts]
        for micro in micro_batches(batch, row_lists, prompts, responses):
            of_rows = widths[micro.rows]
            computed = len(micro.rows) * max(1, int(of_rows.max()))
            yield Chunk(micro.rows, micro.tensors, None, computed, int(of_rows.sum()))
        return
    if update.tokens_per_microbatch is not None:
        check_budget(widths[rows], update.tokens_per_microbatch)
    read = tokens_read(responses).tolist()
    packs = share_prompts(rows.tolist(), batch.non_tensor_batch["uid"].tolist(), prompts.tolist(), read, update)
    sizes = np.array([prompts[pack[0]] + sum(read[row] for row in pack) for pack in packs], dtype=np.int64)
    order = longest_first(sizes).tolist()
    filled = list(fill([packs[place] for place in order], sizes[order].tolist(), update))
    row_lists = [np.array([row for pack in chosen for row in pack]) for chosen, _ in filled]
    for (chosen, computed), micro in zip(filled, micro_batches(batch, row_lists, prompts, responses), strict=True):
        ends = np.cumsum([len(pack) for pack in chosen]).tolist()
        groups = [list(range(end - len(pack), end)) for end, pack in zip(ends, chosen, strict=True)]
        yield Chunk(micro.rows, micro.tensors, groups, computed, computed)


def share_prompts(
    rows: Sequence[int], uids: Sequence[object], prompts: Sequence[int], read: Sequence[int], update: UpdateConfig
) -> list[list[int]]:
    """Return the rows of each packed segment: of one prompt, and never above the micro-batch limits.

    Args:
        rows: which rows of the batch are packed.
        uids: (B,) name of each row's prompt.
        prompts: (B,) tokens of it.
        read: (B,) tokens that are computed of each response.
        update: sequences_per_microbatch or tokens_per_microbatch; a row alone is not above it.
    """
    members: dict[object, list[int]] = {}
    for row in rows:
        members.setdefault(uids[row], []).append(row)
    packs: list[list[int]] = []
    most, budget = update.sequences_per_microbatch, update.tokens_per_microbatch
    for pack in members.values():
        parts = [pack[start : start + most] for start in range(0, len(pack), most)]
        packs += parts if budget is None else [cut for part in parts for cut in _within(part, prompts, read, budget)]
    return packs


def fill(
    packs: Sequence[list[int]], widths: Sequence[int], update: UpdateConfig
) -> Iterator[tuple[list[list[int]], int]]:
    """Group packs of so many tokens under the limit of rows or of tokens; yield each micro-batch with its tokens."""
    budget = update.tokens_per_microbatch
    limit = update.sequences_per_microbatch if budget is None else budget
    chosen: list[list[int]] = []
    room, tokens = limit, 0
    for pack, width in zip(packs, widths, strict=True):
        size = len(pack) if budget is None else width
        if chosen and size > room:
            yield chosen, tokens
            chosen, room, tokens = [], limit, 0
        chosen.append(pack)
        room, tokens = room - size, tokens + width
    if chosen:
        yield chosen, tokens


def _within(pack: list[int], prompts: Sequence[int], read: Sequence[int], budget: int) -> list[list[int]]:
    """Cut a pack so that no part is wider than the token budget."""
    parts: list[list[int]] = []
    room = 0
    for row in pack:
        if not parts or read[row] > room:
            parts.append([])
            room = budget - prompts[row]
        parts[-1].append(row)
        room -= read[row]
    return parts


def idle(batch: DataProto, update: UpdateConfig, sharing: bool) -> Chunk:
    """Return a micro-batch of weight 0, for a rank that has none left while others of a sharded model do."""
    row = batch.select_idxs([0])
    row.batch["response_mask"].zero_()
    return next(iter(micros(row, update, sharing)))
