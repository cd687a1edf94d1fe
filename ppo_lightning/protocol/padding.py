"""Padding of rows (to a divisor, with a marker) and of tokens (prompts on the left, responses on the right).

Legend: B rows, P prompt width, R response width, S = P + R.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from ppo_lightning.errors import DataError
from ppo_lightning.protocol.columns import as_column
from ppo_lightning.protocol.data_proto import DataProto

MARKER = "is_padding"


def pad_to_divisor(batch: DataProto, divisor: int) -> tuple[DataProto, int]:
    """Repeat rows from the head of the batch onto its tail until the number of rows is divisible.

    Rows that are added are marked in `is_padding` (B,) bool, and their `response_mask` is zero, so that they carry no
    weight; they own their objects. The given batch is left as it is.

    Returns:
        The padded batch and the number of rows added: -B % divisor.

    Raises:
        DataError: `divisor` is below 1.
    """
    if divisor < 1:
        raise DataError(f"the divisor of a padded batch must be at least 1, got {divisor}")
    rows = len(batch)
    pad_size = -rows % divisor
    padded = batch.select()
    if pad_size:
        head = batch.slice(0, pad_size)
        padded = DataProto.concat([batch, head.repeat(-(-pad_size // len(head)), interleave=False).slice(0, pad_size)])
    tensors = padded.tensors()
    if MARKER not in tensors:
        device = next(iter(tensors.values())).device if tensors else None
        tensors[MARKER] = torch.zeros(rows + pad_size, dtype=torch.bool, device=device)
        padded.union(DataProto.from_dict({MARKER: tensors[MARKER]}))
    if pad_size:
        tensors[MARKER][rows:] = True
        if "response_mask" in tensors:
            tensors["response_mask"][rows:] = 0
    return padded, pad_size


def drop_rows(batch: DataProto, dropped: Tensor) -> None:
    """Mark rows (B,) bool as padding, in place: they keep their place and count nowhere; others keep their mark.

    Reads: response_mask (B, R). Writes: is_padding, response_mask.
    """
    tensors = batch.tensors()
    mask = tensors["response_mask"]
    dropped = dropped.to(mask.device)
    if MARKER in tensors:
        dropped = dropped | tensors[MARKER]
        batch.pop([MARKER])
    batch.pop(["response_mask"])
    kept = torch.where(dropped.unsqueeze(-1), torch.zeros_like(mask), mask)
    batch.union(DataProto.from_dict({MARKER: dropped, "response_mask": kept}))


def alike(parts: Sequence[DataProto]) -> DataProto:
    """Join batches whose rewards gave different columns; a row has None in a column that its batch lacked."""
    parts = [part.select() for part in parts]
    names = list(dict.fromkeys(name for part in parts for name in part.non_tensor_batch))
    marked = any(MARKER in part.tensors() for part in parts)
    for part in parts:
        for name in names:
            if name not in part.non_tensor_batch:
                part.non_tensor_batch[name] = as_column([None] * len(part))
        if marked and MARKER not in part.tensors():
            drop_rows(part, torch.zeros(len(part), dtype=torch.bool))
    return DataProto.concat(parts)


def unpad(batch: DataProto, pad_size: int) -> DataProto:
    """Cut the `pad_size` rows that `pad_to_divisor` added; the marker goes with the last padding row.

    Raises:
        DataError: fewer rows than that, or the rows to cut are not those that are marked as padding.
    """
    rows = len(batch) - pad_size
    if pad_size < 0 or rows < 0:
        raise DataError(f"cannot cut {pad_size} padding rows off a batch of {len(batch)} rows")
    cut = batch[:rows]
    if MARKER not in batch:
        return cut
    marker = batch.tensors()[MARKER]
    if not marker[rows:].all():
        row = rows + int((~marker[rows:]).nonzero()[0])
        raise DataError(f"the last {pad_size} rows must be padding, but row {row} is not: was the order not restored?")
    if not marker[:rows].any():
        cut.pop([MARKER])
    return cut


def without_padding(batch: DataProto) -> DataProto:
    """Return the rows that are not padding: what metrics and group statistics are computed over."""
    if MARKER not in batch or not batch.tensors()[MARKER].any():
        return batch
    return batch.select_idxs(~batch.tensors()[MARKER])


def group_ids(batch: DataProto) -> Tensor:
    """Number the groups: rows of one `uid` share an id (B,) int64 from 0, in order of appearance.

    A padding row gets an id of its own, so that no group's statistics ever see it.
    """
    ids: dict[object, int] = {}
    uids: list[object] = batch.non_tensor_batch["uid"].tolist()
    if MARKER in batch:
        padding = batch.tensors()[MARKER].tolist()
        uids = [("padding", row) if pad else uid for row, (uid, pad) in enumerate(zip(uids, padding, strict=True))]
    return torch.tensor([ids.setdefault(uid, len(ids)) for uid in uids], dtype=torch.int64)


def pad_left(sequences: Sequence[Sequence[int]], width: int, value: int) -> tuple[Tensor, Tensor]:
    """Put token ids at the right end of rows of `width`: ids (B, width) int64 and their mask (B, width) int64.

    Raises:
        DataError: a sequence is longer than `width`.
    """
    ids, mask = pad_right([sequence[::-1] for sequence in sequences], width, value)
    return ids.flip(1), mask.flip(1)


def pad_right(sequences: Sequence[Sequence[int]], width: int, value: int) -> tuple[Tensor, Tensor]:
    """Put token ids at the left end of rows of `width`: ids (B, width) int64 and their mask (B, width) int64.

    Raises:
        DataError: a sequence is longer than `width`.
    """
    lengths = torch.tensor([len(sequence) for sequence in sequences], dtype=torch.int64)
    mask = response_mask_from_lengths(lengths, width)
    ids = torch.full((len(sequences), width), value, dtype=torch.int64)
    ids[mask.bool()] = torch.tensor([token for sequence in sequences for token in sequence], dtype=torch.int64)
    return ids, mask


def response_mask_from_lengths(lengths: Tensor, width: int) -> Tensor:
    """Return (B, width) int64 with 1 on the first `lengths[i]` (B,) tokens of row i, 0 behind them.

    Token ids are never looked at: an end-of-sequence token that was sampled counts, whatever the pad token is, and
    none is added to a truncated response.

    Raises:
        DataError: a length is negative or above `width` (names the row).
    """
    wrong = ((lengths < 0) | (lengths > width)).nonzero()
    if len(wrong):
        row = int(wrong[0])
        raise DataError(f"every length must be from 0 to the width {width}, got {int(lengths[row])} in row {row}")
    return (torch.arange(width, device=lengths.device) < lengths.unsqueeze(1)).to(torch.int64)


def position_ids_from_mask(attention_mask: Tensor) -> Tensor:
    """Count tokens (B, S) int64 from 0 at the first one that the mask (B, S) shows; padding before it gets 0."""
    return (attention_mask.cumsum(dim=1) - 1).clamp_(min=0)


def verify_convention(batch: DataProto) -> None:
    """Check the layout of tokens that everything downstream relies on.

    `input_ids` is prompts ++ responses; `attention_mask` holds only 0 and 1: zeros before ones in the prompt (padded on
    the left), ones before zeros in the response (padded on the right); `response_mask`, if there, shows no padding.

    Reads: prompts (B, P), responses (B, R), input_ids (B, S), attention_mask (B, S), response_mask (B, R) if present.

    Raises:
        DataError: names the row and what it breaks.
    """
    tensors = batch.tensors()
    prompts, responses = tensors["prompts"], tensors["responses"]
    ids, mask = tensors["input_ids"], tensors["attention_mask"]
    width = prompts.shape[1]
    if not ids.shape == mask.shape == (len(batch), width + responses.shape[1]):
        raise DataError(
            f"input_ids and attention_mask must be as wide as prompts and responses together, got {tuple(ids.shape)} "
            f"and {tuple(mask.shape)} for prompts {tuple(prompts.shape)} and responses {tuple(responses.shape)}"
        )
    _check_equal(ids[:, :width], prompts, "input_ids must begin with the row's prompt")
    _check_equal(ids[:, width:], responses, "input_ids must end with the row's response")
    if mask.numel() and not 0 <= mask.min() <= mask.max() <= 1:
        _check_rows((mask == 0) | (mask == 1), "attention_mask must hold only 0 and 1")
    kept = mask.bool()
    before, after = kept[:, :width], kept[:, width:]
    _check_rows(before[:, 1:] >= before[:, :-1], "prompts must be padded on the left only")
    _check_rows(after[:, 1:] <= after[:, :-1], "responses must be padded on the right only")
    if "response_mask" in tensors:
        _check_rows(tensors["response_mask"].bool() <= after, "response_mask must be 0 on padding")


def _check_equal(values: Tensor, expected: Tensor, must: str) -> None:
    """Raise DataError with the first row and column where two tensors (B, width) differ."""
    # Integers are told apart by their bits: three times as fast as `torch.equal` on a CPU.
    if values.dtype != expected.dtype or (values ^ expected).view(torch.uint8).any():
        _check_rows(values == expected, must)


def _check_rows(holds: Tensor, must: str) -> None:
    """Raise DataError with the first row and column where `holds` (B, width) is false."""
    if not holds.view(torch.uint8).all():  # PyTorch looks through bytes thirty times faster than through booleans
        row, column = (~holds).nonzero()[0].tolist()
        raise DataError(
            f"{must}, but row {row} breaks it (at column {column}): check the collate function or the engine"
        )
