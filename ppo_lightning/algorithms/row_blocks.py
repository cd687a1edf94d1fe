"""Large tensors a few rows at a time: what one operation writes is still in the cache when the next one reads it.

Going through memory costs a CPU more than most arithmetic on a tensor of tokens does.
"""

from collections.abc import Callable

from jaxtyping import Shaped
from torch import Tensor

BLOCK_ELEMENTS = 1 << 18


def row_blocks(tensor: Shaped[Tensor, "B R"]) -> list[slice]:
    """Return slices that cut the rows into blocks of about a quarter of a million elements; one on an accelerator."""
    rows, width = tensor.shape
    size = max(1, BLOCK_ELEMENTS // max(width, 1)) if tensor.device.type == "cpu" else max(rows, 1)
    return [slice(start, start + size) for start in range(0, max(rows, 1), size)]


def by_blocks(function: Callable[..., tuple[Tensor, ...]], *tensors: Tensor | None) -> tuple[Tensor, ...]:
    """Apply a function that treats every row by itself to blocks of rows, and join each of its results.

    Args:
        function: takes the rows of a block of each tensor, and None for None.
        tensors: the first is (B, R), all others have B rows.
    """
    first = tensors[0]
    assert first is not None, "the first tensor says how rows are cut"
    blocks = row_blocks(first)
    if len(blocks) == 1:
        return function(*tensors)
    joined: tuple[Tensor, ...] = ()
    for block in blocks:
        found = function(*(None if tensor is None else tensor[block] for tensor in tensors))
        joined = joined or tuple(part.new_empty(len(first), *part.shape[1:]) for part in found)
        for whole, part in zip(joined, found, strict=True):
            whole[block] = part
    return joined
