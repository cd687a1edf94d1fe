"""DataProto: the batch that travels through a step, in three layers, with the operators that keep them aligned.

Legend: B rows; tensors (B, ...) in `batch`, columns of B objects in `non_tensor_batch`, per-step values in `meta_info`.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self, overload

import numpy as np
import torch
from tensordict import TensorDict
from torch import Tensor

from ppo_lightning.errors import DataError
from ppo_lightning.protocol import columns, union
from ppo_lightning.protocol.layers import Layers
from ppo_lightning.protocol.rows import DataProtoItem, Index, as_indices, repeat_tensor


class DataProto(Layers):
    """A batch in three layers, with operators that act on both row layers alike.

    Every operation checks that the layers belong together. Operations on rows hand on the very `meta_info` they got.

    Raises:
        DataError: the layers do not belong together, on construction and in every operation.
    """

    @overload
    def __getitem__(self, index: int) -> DataProtoItem: ...

    @overload
    def __getitem__(self, index: slice | Index) -> "DataProto": ...

    def __getitem__(self, index: int | slice | Index) -> "DataProto | DataProtoItem":
        """Return one row (int), a slice (tensors are views) or a selection of rows."""
        if isinstance(index, slice):
            return self.slice(index.start, index.stop, index.step)
        if isinstance(index, int | np.integer):
            if not -len(self) <= index < len(self):
                raise IndexError(f"row {index} of a batch of {len(self)} rows")
            item = None if self.batch is None else self.batch[int(index)]
            objects = {key: column[index] for key, column in self.non_tensor_batch.items()}
            return DataProtoItem(item, objects, self.meta_info)
        return self.select_idxs(index)

    # ---- choosing keys ------------------------------------------------------------------------------------------

    def select(
        self,
        batch_keys: Sequence[str] | None = None,
        non_tensor_batch_keys: Sequence[str] | None = None,
        meta_info_keys: Sequence[str] | None = None,
    ) -> "DataProto":
        """Return a batch with only the given keys of each layer (None: all of that layer); nothing is copied."""
        self.check_consistency()
        batch = None
        if self.batch is not None or batch_keys:
            kept = _chosen(self.tensors(), batch_keys, "batch")
            batch = None if self.batch is None else self.batch.select(*kept)
        return DataProto(
            batch,
            _chosen(self.non_tensor_batch, non_tensor_batch_keys, "non_tensor_batch"),
            self.meta_info if meta_info_keys is None else _chosen(self.meta_info, meta_info_keys, "meta_info"),
        )

    def pop(
        self,
        batch_keys: Sequence[str] = (),
        non_tensor_batch_keys: Sequence[str] = (),
        meta_info_keys: Sequence[str] = (),
    ) -> "DataProto":
        """Remove the given keys from this batch and return them as a batch of their own.

        Raises:
            DataError: a key is missing; nothing has been removed then.
        """
        taken = self.select(batch_keys, non_tensor_batch_keys, meta_info_keys)
        if self.batch is not None:
            self.batch.exclude(*batch_keys, inplace=True)
        for layer, keys in ((self.non_tensor_batch, non_tensor_batch_keys), (self.meta_info, meta_info_keys)):
            for key in keys:
                del layer[key]
        return taken

    def rename(self, old_keys: str | Sequence[str], new_keys: str | Sequence[str]) -> Self:
        """Rename tensors or columns in place and return this batch.

        Raises:
            DataError: unequal numbers of keys, a key is missing, or a new name is taken.
        """
        old = [old_keys] if isinstance(old_keys, str) else list(old_keys)
        new = [new_keys] if isinstance(new_keys, str) else list(new_keys)
        keys = self.row_keys()
        _chosen(dict.fromkeys(keys), old, "batch and non_tensor_batch")
        after = [key for key in keys if key not in old] + new
        if len(old) != len(new) or len(set(after)) != len(keys):
            raise DataError(f"rename needs one unused new name per key, got {old} -> {new} in a batch with {keys}")
        tensors = {key: self.tensors()[key] for key in old if key not in self.non_tensor_batch}
        columns_ = {key: self.non_tensor_batch[key] for key in old if key in self.non_tensor_batch}
        self.pop(list(tensors), list(columns_))
        names = dict(zip(old, new, strict=True))
        return self.union(
            DataProto.from_dict(
                {names[key]: value for key, value in tensors.items()},
                {names[key]: value for key, value in columns_.items()},
            )
        )

    # ---- choosing rows ------------------------------------------------------------------------------------------

    def select_idxs(self, idxs: Index) -> "DataProto":
        """Return the given rows: integers (negative count from the end) or one boolean per row; tensors are copied.

        A row taken twice gets its own copy of its objects.
        """
        index = as_indices(idxs, len(self))
        places, again = torch.from_numpy(index), columns.taken_again(index)
        return self._mapped(
            len(index),
            lambda tensor: tensor.index_select(0, places.to(tensor.device)),
            lambda column: columns.take(column, index, again),
        )

    def slice(self, start: int | None = None, end: int | None = None, step: int | None = None) -> "DataProto":
        """Return rows start:end:step; tensors are views of this batch's."""
        places = range(len(self))[start:end:step]
        if places.step < 0:
            return self.select_idxs(places)
        return self._mapped(len(places), lambda tensor: tensor[start:end:step], lambda column: column[start:end:step])

    def reorder(self, indices: Index) -> None:
        """Put the rows into the order of `indices`, a permutation, in place: row i becomes the old row indices[i].

        Raises:
            DataError: `indices` is not a permutation of the rows.
        """
        index = as_indices(indices, len(self))
        if not np.array_equal(np.sort(index), np.arange(len(self))):
            raise DataError(f"reorder needs every row of {len(self)} exactly once, got {index.tolist()[:20]}")
        ordered = self.select_idxs(index)
        if self.batch is not None:
            self.batch.update(ordered.batch)
        self.non_tensor_batch.update(ordered.non_tensor_batch)

    def repeat(self, repeat_times: int = 2, interleave: bool = True) -> "DataProto":
        """Return every row `repeat_times` times: `a a b b` if interleaved, else `a b a b`; rows own their objects."""
        if repeat_times < 1:
            raise DataError(f"repeat_times must be at least 1, got {repeat_times}")
        return self._mapped(
            len(self) * repeat_times,
            lambda tensor: repeat_tensor(tensor, repeat_times, interleave),
            lambda column: columns.repeat(column, repeat_times, interleave),
        )

    def chunk(self, chunks: int) -> list["DataProto"]:
        """Cut the batch into `chunks` equal parts; both row layers are cut at the same boundaries.

        Raises:
            DataError: the number of rows is not divisible.
        """
        if chunks < 1 or len(self) % chunks:
            raise DataError(
                f"the number of rows must be divisible by the number of chunks, got {len(self)} rows, {chunks} chunks: "
                "pad the batch with padding.pad_to_divisor"
            )
        return self.split(len(self) // chunks) if len(self) else [self.slice() for _ in range(chunks)]

    def split(self, split_size: int) -> list["DataProto"]:
        """Cut the batch into parts of `split_size` rows; the last may be shorter."""
        if split_size < 1:
            raise DataError(f"split_size must be at least 1, got {split_size}")
        self.check_consistency()
        starts = range(0, len(self), split_size)
        batches = [None] * len(starts) if self.batch is None or not len(self) else self.batch.split(split_size)
        return [
            DataProto(
                batch,
                {key: column[start : start + split_size] for key, column in self.non_tensor_batch.items()},
                self.meta_info,
            )
            for start, batch in zip(starts, batches, strict=True)
        ]

    def minibatches(self, size: int, seed: int | None = None) -> Iterator["DataProto"]:
        """Yield mini-batches of `size` rows: in order, or, with a seed, of rows drawn without replacement.

        Raises:
            DataError: the number of rows is not divisible by `size`.
        """
        if size < 1 or len(self) % size:
            raise DataError(f"{len(self)} rows must be divisible by the mini-batch size {size}")
        if seed is None:
            yield from self.split(size)
            return
        order = np.random.default_rng(seed).permutation(len(self))
        for start in range(0, len(self), size):
            yield self.select_idxs(order[start : start + size])

    # ---- joining ------------------------------------------------------------------------------------------------

    def union(self, other: "DataProto") -> Self:
        """Merge all three layers of `other` into this batch, in place, and return this batch.

        A key on both sides must be equal (tensors and columns deeply, NaN equals NaN; meta by `==`). Nothing is ever
        overwritten, and nothing is merged unless everything can be.

        Raises:
            DataError: unequal numbers of rows, or a key whose values differ: names key, layer, rows and both values.
        """
        self.check_consistency()
        other.check_consistency()
        ours, theirs = self.tensors(), other.tensors()
        if len(self) != len(other) and self.row_keys() and other.row_keys():
            raise DataError(f"union needs the same rows on both sides, got {len(self)} and {len(other)}")
        union.check_tensors(ours, theirs)
        union.check_columns(self.non_tensor_batch, other.non_tensor_batch)
        union.check_meta(self.meta_info, other.meta_info)
        union.check_layers_apart(ours, other.non_tensor_batch)
        union.check_layers_apart(theirs, self.non_tensor_batch)
        if self.batch is None:
            self.batch = None if other.batch is None else other.batch.copy()
        else:
            for key in [key for key in theirs if key not in ours]:
                self.batch[key] = theirs[key]
        union.add_missing(self.non_tensor_batch, other.non_tensor_batch)
        union.add_missing(self.meta_info, other.meta_info)
        self.check_consistency()
        return self

    @staticmethod
    def concat(data: Sequence["DataProto"]) -> "DataProto":
        """Join batches along their rows; all must have the same keys, and equal `meta_info` where they share keys.

        Raises:
            DataError: nothing to join, or the keys or the per-step values differ.
        """
        if not data:
            raise DataError("concat needs at least one batch, got none")
        first, meta_info = data[0], data[0].meta_info
        for place, part in enumerate(data):
            part.check_consistency()
            if set(part.row_keys()) != set(first.row_keys()) or (part.batch is None) != (first.batch is None):
                raise DataError(
                    "concat needs the same keys in every part, got "
                    f"{sorted(first.row_keys())} in part 0 and {sorted(part.row_keys())} in part {place}"
                )
            if part.meta_info is not meta_info:
                union.check_meta(meta_info, part.meta_info)
                meta_info = {**meta_info, **part.meta_info}
        batch = None
        if first.batch is not None:
            tensors = [part.tensors() for part in data]
            joined = {key: torch.cat([part[key] for part in tensors]) for key in tensors[0]}
            batch = TensorDict(joined, batch_size=[sum(len(part) for part in data)])
        made = {key: np.concatenate([part.non_tensor_batch[key] for part in data]) for key in first.non_tensor_batch}
        return DataProto(batch, made, meta_info)

    # ---- shape --------------------------------------------------------------------------------------------------

    def fold(self, size: int) -> "DataProto":
        """Turn B rows into `size` rows of B / size consecutive ones: (B, ...) becomes (size, B / size, ...)."""
        if size < 1 or len(self) % size:
            raise DataError(f"{len(self)} rows must be divisible by the number of folded rows {size}")
        inner = len(self) // size
        return self._mapped(
            size,
            lambda tensor: tensor.reshape(size, inner, *tensor.shape[1:]),
            lambda column: column.reshape(size, inner, *column.shape[1:]),
        )

    def unfold(self) -> "DataProto":
        """Undo `fold`: merge the first two axes of every tensor and column.

        Raises:
            DataError: the second axes differ or are missing.
        """
        shapes = {key: tuple(tensor.shape[:2]) for key, tensor in self.tensors().items()}
        shapes |= {key: column.shape[:2] for key, column in self.non_tensor_batch.items()}
        if len(set(shapes.values())) != 1 or any(len(shape) < 2 for shape in shapes.values()):
            raise DataError(f"unfold needs the same first two axes everywhere, got {shapes}")
        outer, inner = next(iter(shapes.values()))
        return self._mapped(
            outer * inner,
            lambda tensor: tensor.reshape(outer * inner, *tensor.shape[2:]),
            lambda column: column.reshape(outer * inner, *column.shape[2:]),
        )

    def _mapped(
        self,
        rows: int,
        on_tensor: Callable[[Tensor], Tensor],
        on_column: Callable[[np.ndarray], np.ndarray],
    ) -> "DataProto":
        self.check_consistency()
        batch = None
        if self.batch is not None:
            batch = TensorDict({key: on_tensor(tensor) for key, tensor in self.tensors().items()}, batch_size=[rows])
        made = {key: on_column(column) for key, column in self.non_tensor_batch.items()}
        return DataProto(batch, made, self.meta_info)


def _chosen(layer: dict[str, Any], keys: Sequence[str] | None, name: str) -> dict[str, Any]:
    missing = [key for key in keys or () if key not in layer]
    if missing:
        raise DataError(f"{name} must hold {missing}, but has only {sorted(layer)}")
    return {key: layer[key] for key in (layer if keys is None else keys)}
