"""A batch in one safetensors file, without pickle: tensors as they are, columns of objects and meta_info as JSON."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from tensordict import TensorDict
from torch import Tensor

from ppo_lightning.errors import DataError

FORMAT = "ppo_lightning.batch.1"
TENSOR, ARRAY, DOCUMENT = "tensor/", "array/", "document"
STORABLE_KINDS = "biuf"


def save(path: Path, batch: TensorDict | None, columns: dict[str, np.ndarray], meta_info: dict[str, Any]) -> None:
    """Write the three layers to `path`; a torn file never appears under that name.

    Numeric columns are stored as arrays of their own dtype; object and string columns, and `meta_info`, as JSON.

    Raises:
        DataError: a value that JSON cannot give back as it was (its place is named).
    """
    stored: dict[str, Tensor] = {}
    document: dict[str, Any] = {"format": FORMAT, "batch": None, "columns": {}, "meta_info": meta_info}
    if batch is not None:
        document["batch"] = [list(batch.batch_size), sorted(str(key) for key in batch.keys())]  # noqa: SIM118
        stored |= {f"{TENSOR}{key}": cast(Tensor, value).detach().cpu().contiguous() for key, value in batch.items()}
    for key, column in columns.items():
        document["columns"][key] = {"dtype": column.dtype.str, "shape": list(column.shape)}
        if column.dtype.kind in STORABLE_KINDS:
            stored[f"{ARRAY}{key}"] = torch.from_numpy(np.ascontiguousarray(column))
        elif column.dtype == object or column.dtype.kind == "U":
            document["columns"][key]["values"] = column.tolist()
        else:
            raise DataError(
                f"non_tensor_batch[{key!r}] has dtype {column.dtype}, which cannot be stored: convert it first"
            )
    _check_document(document)
    stored[DOCUMENT] = torch.frombuffer(bytearray(json.dumps(document).encode()), dtype=torch.uint8)
    _write(path, _without_shared_memory(stored))


def load(path: Path) -> tuple[TensorDict | None, dict[str, np.ndarray], dict[str, Any]]:
    """Read the three layers back from `path`, onto the CPU.

    Raises:
        DataError: `path` is missing, damaged or not written by `save`.
    """
    try:
        stored = load_file(path)
        document = json.loads(stored.pop(DOCUMENT).numpy().tobytes())
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise DataError(f"{path} must be a batch written by DataProto.save, but cannot be read: {error}") from error
    if document["format"] != FORMAT:
        raise DataError(f"{path} must have format {FORMAT}, got {document['format']!r}")
    batch = None
    if document["batch"] is not None:
        size, keys = document["batch"]
        batch = TensorDict({key: stored[f"{TENSOR}{key}"] for key in keys}, batch_size=size)
    columns = {key: _column(key, entry, stored) for key, entry in document["columns"].items()}
    return batch, columns, document["meta_info"]


def _column(key: str, entry: dict[str, Any], stored: dict[str, Tensor]) -> np.ndarray:
    if "values" not in entry:
        return stored[f"{ARRAY}{key}"].numpy().astype(entry["dtype"], copy=False)
    if np.dtype(entry["dtype"]) != object:
        return np.array(entry["values"], dtype=entry["dtype"]).reshape(entry["shape"])
    column = np.empty(entry["shape"], dtype=object)
    for place in np.ndindex(column.shape):
        value = entry["values"]
        for axis in place:
            value = value[axis]
        column[place] = value
    return column


def _check_document(document: dict[str, Any]) -> None:
    places = [("meta_info", document["meta_info"])]
    for key, entry in document["columns"].items():
        places += [(f"non_tensor_batch[{key!r}][{row}]", value) for row, value in enumerate(entry.get("values", []))]
    for place, value in places:
        for path, culprit in _not_json(value):
            raise DataError(
                f"{place}{path} is of type {type(culprit).__name__}, which cannot be stored: only str, int, float, "
                "bool, None, lists and dicts with str keys come back as they were; convert or pop it first"
            )


def _not_json(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield (path below `value`, object) of everything that JSON does not give back unchanged."""
    kind = type(value)
    if kind is dict:
        for key, item in value.items():
            if type(key) is not str:
                yield f" key {key!r}", key
            else:
                yield from ((f"[{key!r}]{path}", culprit) for path, culprit in _not_json(item))
    elif kind is list:
        for place, item in enumerate(value):
            yield from ((f"[{place}]{path}", culprit) for path, culprit in _not_json(item))
    elif kind not in (str, int, float, bool, type(None)):
        yield "", value


def _without_shared_memory(stored: dict[str, Tensor]) -> dict[str, Tensor]:
    seen: set[int] = set()
    apart = {}
    for key, value in stored.items():
        pointer = value.untyped_storage().data_ptr()
        apart[key] = value.clone() if pointer in seen else value
        seen.add(pointer)
    return apart


def _write(path: Path, stored: dict[str, Tensor]) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        save_file(stored, temporary, metadata={"format": FORMAT})
        with temporary.open("rb") as handle:
            os.fsync(handle.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
