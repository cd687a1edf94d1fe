"""The three layers of a batch, held together: building, looking, moving and storing them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, cast

import numpy as np
import torch
from tensordict import TensorDict
from torch import Tensor

from ppo_lightning.errors import DataError
from ppo_lightning.protocol import storage
from ppo_lightning.protocol.columns import as_column
from ppo_lightning.protocol.consistency import check_layers, rows_of


@dataclass(eq=False)
class Layers:
    """A batch in three layers that belong together.

    Attributes:
        batch: Per-token and per-sequence tensors, exactly one batch dim; None if there are none.
        non_tensor_batch: Per-sample objects, each column a numpy array whose first axis is B.
        meta_info: Per-step values. Operations on rows hand on this very dict.

    Raises:
        DataError: the layers do not belong together, on construction and in every operation.
    """

    batch: TensorDict | None = None
    non_tensor_batch: dict[str, np.ndarray] = field(default_factory=dict)
    meta_info: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.check_consistency()

    @classmethod
    def from_dict(
        cls,
        tensors: dict[str, Tensor] | None = None,
        non_tensors: Mapping[str, np.ndarray | Sequence[Any]] | None = None,
        meta_info: dict[str, Any] | None = None,
    ) -> Self:
        """Build a batch from tensors (B, ...), columns (arrays, or sequences of B objects) and per-step values.

        Raises:
            DataError: first axes differ.
        """
        batch = None
        if tensors:
            sizes = {key: tuple(value.shape[:1]) for key, value in tensors.items()}
            if len(set(sizes.values())) != 1 or () in sizes.values():
                raise DataError(f"all tensors must have the same first axis, got {sizes}")
            batch = TensorDict(dict(tensors), batch_size=next(iter(sizes.values())))
        made = {key: as_column(value) for key, value in (non_tensors or {}).items()}
        return cls(batch, made, {} if meta_info is None else meta_info)

    @classmethod
    def from_single_dict(cls, data: dict[str, Tensor | np.ndarray], meta_info: dict[str, Any] | None = None) -> Self:
        """Build a batch from one dict, sorting tensors and arrays into their layers.

        Raises:
            DataError: a value is neither a tensor nor an array.
        """
        for key, value in data.items():
            if not isinstance(value, Tensor | np.ndarray):
                raise DataError(f"{key!r} must be a tensor or a numpy array, got {type(value).__name__}")
        tensors = {key: value for key, value in data.items() if isinstance(value, Tensor)}
        arrays = {key: value for key, value in data.items() if isinstance(value, np.ndarray)}
        return cls.from_dict(tensors, arrays, meta_info)

    def check_consistency(self) -> None:
        """Raise DataError unless the three layers belong together."""
        check_layers(self.batch, self.non_tensor_batch, self.meta_info)

    def __len__(self) -> int:
        return rows_of(self.batch, self.non_tensor_batch)

    def __contains__(self, key: str) -> bool:
        return key in self.row_keys()

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensor layer as a plain dict."""
        return {} if self.batch is None else cast(dict[str, Tensor], dict(self.batch.items()))

    def row_keys(self) -> list[str]:
        """Return the keys of both row layers."""
        return [*self.tensors(), *self.non_tensor_batch]

    def become(self, other: "Layers") -> Self:
        """Replace all three layers by those of `other`, in place, so that every holder sees them; return this batch."""
        other.check_consistency()
        self.batch, self.non_tensor_batch, self.meta_info = other.batch, other.non_tensor_batch, other.meta_info
        return self

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Self:
        """Move the tensors to `device`, in place, and return this batch."""
        self.check_consistency()
        if self.batch is not None:
            moved = {key: value.to(device, non_blocking=non_blocking) for key, value in self.tensors().items()}
            self.batch = TensorDict(moved, batch_size=[len(self)])
        return self

    def save(self, path: str | Path) -> None:
        """Write the batch into one safetensors file (objects as JSON), without pickle; see `storage.save`."""
        self.check_consistency()
        storage.save(Path(path), self.batch, self.non_tensor_batch, self.meta_info)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a batch that `save` wrote, onto the CPU."""
        return cls(*storage.load(Path(path)))
