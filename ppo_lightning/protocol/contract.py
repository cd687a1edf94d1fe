"""Stage boundaries: a batch is checked against the table of fields before a stage reads and after it wrote."""

from collections.abc import Iterable
from difflib import get_close_matches

from ppo_lightning.errors import DataError
from ppo_lightning.protocol.data_proto import DataProto
from ppo_lightning.protocol.fields import BATCH, FIELDS, META, NON_TENSOR, Field


def require(batch: DataProto, reads: Iterable[str], stage: str) -> None:
    """Check that `batch` holds what `stage` reads, and that every declared tensor has its dtype and axes.

    Raises:
        DataError: a key is missing (names the stage that has not run), or a tensor is not as declared.
    """
    for key in reads:
        if not has(batch, key):
            raise DataError(f"`{key}` is missing: {_why_missing(key)}; stage {stage} reads it")
    check_fields(batch)


def require_written(batch: DataProto, writes: Iterable[str], stage: str) -> None:
    """Check that `batch` holds what `stage` has to write, as declared.

    Raises:
        DataError: a key is missing, or a tensor is not as declared.
    """
    for key in writes:
        if not has(batch, key):
            raise DataError(f"`{key}` is missing: stage {stage} has run but did not write it")
    check_fields(batch)


def has(batch: DataProto, key: str) -> bool:
    """Tell whether `key` is in the layer that the table of fields gives it (in any layer if undeclared)."""
    layers = {BATCH: set(batch.tensors()), NON_TENSOR: set(batch.non_tensor_batch), META: set(batch.meta_info)}
    if key in FIELDS:
        return key in layers[FIELDS[key].layer]
    return any(key in layer for layer in layers.values())


def check_fields(batch: DataProto) -> None:
    """Check layer, dtype and axes of every declared key that `batch` holds; undeclared keys are the user's.

    Raises:
        DataError: names the key, what was declared and what was got.
    """
    widths = {"B": (len(batch), "the batch")}
    for key, tensor in batch.tensors().items():
        if key in FIELDS:
            _check_tensor(FIELDS[key], str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), widths)
    for key in [*batch.non_tensor_batch, *batch.meta_info]:
        layer = NON_TENSOR if key in batch.non_tensor_batch else META
        if key in FIELDS and FIELDS[key].layer != layer:
            raise DataError(f"`{key}` must be in {FIELDS[key].layer}, got it in {layer}")
    if {"P", "R", "S"} <= widths.keys() and widths["P"][0] + widths["R"][0] != widths["S"][0]:
        text = ", ".join(f"{axis} = {widths[axis][0]} ({widths[axis][1]})" for axis in "PRS")
        raise DataError(f"S must be P + R, got {text}")


def _check_tensor(declared: Field, dtype: str, shape: tuple[int, ...], widths: dict[str, tuple[int, str]]) -> None:
    if declared.layer != BATCH:
        raise DataError(f"`{declared.name}` must be in {declared.layer}, got it in {BATCH}")
    if dtype != declared.dtype:
        raise DataError(f"`{declared.name}` must be {declared.dtype}, got {dtype}: stage {declared.stage} writes it")
    if len(shape) != len(declared.axes):
        raise DataError(f"`{declared.name}` must have axes ({', '.join(declared.axes)}), got shape {shape}")
    for axis, size in zip(declared.axes, shape, strict=True):
        known, source = widths.setdefault(axis, (size, f"`{declared.name}`"))
        if size != known:
            raise DataError(
                f"`{declared.name}` must have {axis} = {known} as {source} has, got {size} in shape {shape}"
            )


def _why_missing(key: str) -> str:
    if key in FIELDS:
        return f"stage {FIELDS[key].stage} has not run"
    near = get_close_matches(key, FIELDS, n=1)
    return "no stage writes it" + (f" (did you mean `{near[0]}`?)" if near else "")
