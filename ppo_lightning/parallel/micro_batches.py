"""Micro-batches: which rows share a forward pass, trimmed to what they hold, and results put back in order.

Legend: B rows of a rank's mini-batch, b rows of a micro-batch, P prompt width, R response width, S = P + R.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ppo_lightning.errors import DataError
from ppo_lightning.protocol.data_proto import DataProto
from ppo_lightning.protocol.fields import FIELDS

EMPTY = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True)
class MicroBatch:
    """Rows of one forward pass.

    Attributes:
        rows: (b,) int64, which rows of the mini-batch these are.
        tensors: of these rows, without the columns that are padding in all of them.
    """

    rows: np.ndarray
    tensors: dict[str, Tensor]


def split_rows(
    prompts: np.ndarray, responses: np.ndarray, sequences: int, tokens: int | None = None
) -> list[np.ndarray]:
    """Choose the rows of each micro-batch: rows of similar length together, the longest first.

    Args:
        prompts: (B,) tokens of each prompt.
        responses: (B,) tokens of each response.
        sequences: Rows per micro-batch when `tokens` is None.
        tokens: Budget of one micro-batch, padding included; see `by_tokens`.

    Returns:
        Row indices (b,) int64 of each micro-batch; every row is in exactly one.

    Raises:
        DataError: a row alone is above the token budget.
    """
    return by_count(prompts + responses, sequences) if tokens is None else by_tokens(prompts, responses, tokens)


def token_lengths(batch: DataProto) -> tuple[np.ndarray, np.ndarray]:
    """Return the tokens of each row's prompt and response, (B,) int64 each, from attention_mask (B, S)."""
    tensors = batch.tensors()
    mask, width = tensors["attention_mask"], tensors["responses"].shape[1]
    split = mask.shape[1] - width
    return mask[:, :split].sum(dim=1).cpu().numpy(), mask[:, split:].sum(dim=1).cpu().numpy()


def by_count(lengths: np.ndarray, sequences: int) -> list[np.ndarray]:
    """Cut rows of `lengths` (B,), the longest first, into micro-batches of `sequences`; the last may be smaller.

    Raises:
        DataError: `sequences` is below 1.
    """
    if sequences < 1:
        raise DataError(f"update.sequences_per_microbatch must be at least 1, got {sequences}")
    order = longest_first(lengths)
    return [order[start : start + sequences] for start in range(0, len(order), sequences)]


def by_tokens(prompts: np.ndarray, responses: np.ndarray, budget: int) -> list[np.ndarray]:
    """Fill micro-batches, from the longest row to the shortest, up to a token budget that is never exceeded.

    What counts is what the model computes: the number of rows times the longest of them.

    Args:
        prompts: (B,) tokens of each prompt.
        responses: (B,) tokens of each response.
        budget: Largest rows x width.

    Raises:
        DataError: a row alone is above the budget.
    """
    widths = prompts + responses
    check_budget(widths, budget)
    found: list[np.ndarray] = []
    order = longest_first(widths)
    while len(order):
        count = budget // max(1, int(widths[order[0]]))
        found.append(order[:count])
        order = order[count:]
    return found


def check_budget(widths: np.ndarray, budget: int) -> None:
    """Make sure that a forward pass of `budget` tokens can hold each row.

    Raises:
        DataError: one is longer.
    """
    if len(widths) and widths.max() > budget:
        row, longest = int(widths.argmax()), int(widths.max())
        raise DataError(
            f"update.tokens_per_microbatch={budget} must hold the longest row, got {longest} tokens in row {row}: "
            f"set it to {longest} or more, or shorten data.max_prompt_tokens or rollout.response_tokens"
        )


def longest_first(lengths: np.ndarray) -> np.ndarray:
    """Order rows from the longest to the shortest; rows of equal length keep their order."""
    return np.argsort(-np.asarray(lengths).astype(np.int64), kind="stable")


def micro_batches(
    batch: DataProto, row_lists: Sequence[np.ndarray], prompts: np.ndarray, responses: np.ndarray
) -> Iterator[MicroBatch]:
    """Yield the rows of each list, trimmed: columns that are padding in all of them are dropped.

    Only what is left is copied, when its turn comes, into memory that is small enough to be used again by the next.

    Prompts lose columns on the left, responses on the right, and at least one column of each stays. Which tensors have
    such columns is declared in `protocol.fields`; undeclared tensors keep their width.

    Args:
        batch: Reads attention_mask (B, S) and responses (B, R).
        row_lists: Rows of each micro-batch (`split_rows`).
        prompts: (B,) tokens of each row's prompt (`token_lengths`).
        responses: (B,) tokens of each row's response.
    """
    if not row_lists:
        return
    tensors = batch.tensors()
    prompt_width = tensors["attention_mask"].shape[1] - tensors["responses"].shape[1]
    axis = {key: _cut_axis(key) for key in tensors}
    ends = np.cumsum([len(rows) for rows in row_lists])
    starts, order = np.concatenate([[0], ends[:-1]]), np.concatenate(row_lists)
    longest = (np.maximum.reduceat(lengths[order], starts).clip(min=1).tolist() for lengths in (prompts, responses))
    for rows, prompt, response in zip(row_lists, *longest, strict=True):
        places = torch.from_numpy(rows).to(tensors["responses"].device)
        left, right = prompt_width - prompt, prompt_width + response
        kept = {"P": slice(left, prompt_width), "R": slice(response), "S": slice(left, right)}
        trimmed = {key: value[:, kept[axis[key]]] if axis[key] in kept else value for key, value in tensors.items()}
        yield MicroBatch(rows, {key: value.index_select(0, places) for key, value in trimmed.items()})


def restore(parts: Sequence[tuple[np.ndarray, Tensor]], rows: int, width: int) -> Tensor:
    """Put per-token results of micro-batches back into the order and width of the mini-batch.

    Args:
        parts: For each micro-batch its rows (b,) and its values (b, r), r <= R, trimmed on the right.
        rows: B.
        width: R.

    Returns:
        (B, R), zeros where a micro-batch had no column.

    Raises:
        DataError: a row is missing or there twice, or values do not fit their rows or the width.
    """
    if not parts and not rows:
        return torch.zeros(0, width)
    order = np.concatenate([EMPTY, *(part for part, _ in parts)])
    counts = np.bincount(order, minlength=rows)
    wrong = np.flatnonzero(counts != (np.arange(len(counts)) < rows))
    if wrong.size:
        row = int(wrong[0])
        raise DataError(f"micro-batches must hold each of {rows} rows once, got row {row} {int(counts[row])} times")
    together = parts[0][1].new_zeros(rows, width)
    for part, values in parts:
        if values.ndim != 2 or len(values) != len(part) or values.shape[1] > width:
            raise DataError(f"values of {len(part)} rows must be at most {width} wide, got shape {tuple(values.shape)}")
        places = torch.from_numpy(part).to(together.device)
        together[:, : values.shape[1]].index_copy_(0, places, values)
    return together


def _cut_axis(key: str) -> str:
    """Return the name of a tensor's second axis, along which it may be trimmed; "" where there is none."""
    axes = FIELDS[key].axes if key in FIELDS else ()
    return axes[1] if len(axes) > 1 else ""
