"""The data-parallel group of this process: the collectives of a step go through here."""

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


@dataclass(frozen=True)
class Ranks:
    """This process's place among the processes that share a step.

    Attributes:
        rank: number of this process.
        size: number of processes (dp_size).
        device: where collectives take their tensors.
        sharded: whether models are sharded, so that a forward pass is itself a collective.
    """

    rank: int = 0
    size: int = 1
    device: torch.device = torch.device("cpu")
    sharded: bool = False

    def sum(self, tensor: Tensor) -> Tensor:
        """Return the sum of `tensor` over all ranks; with one rank the tensor itself."""
        if self.size == 1:
            return tensor
        total = tensor.detach().clone().to(self.device)
        dist.all_reduce(total)
        return total.to(tensor.device)

    def most(self, number: int) -> int:
        """Return the largest of the ranks' numbers."""
        if self.size == 1:
            return number
        found = torch.tensor(number, device=self.device)
        dist.all_reduce(found, dist.ReduceOp.MAX)
        return int(found)

    def table(self, tensor: Tensor) -> Tensor:
        """Return the tensors of all ranks, equal in shape, stacked in the order of ranks: (size, ...), on the CPU."""
        if self.size == 1:
            return tensor.detach().cpu().unsqueeze(0)
        mine = tensor.detach().to(self.device).contiguous()
        rows = torch.empty(self.size, *mine.shape, dtype=mine.dtype, device=self.device)
        dist.all_gather_into_tensor(rows.flatten(0, 1) if mine.ndim else rows, mine)
        return rows.cpu()

    def gather(self, item: Any) -> list[Any]:
        """Return every rank's object, in the order of ranks, on every rank."""
        if self.size == 1:
            return [item]
        items: list[Any] = [None] * self.size
        dist.all_gather_object(items, item)
        return items

    def gather_first(self, item: Any) -> list[Any]:
        """Return every rank's object on the first rank, and nothing elsewhere."""
        if self.size == 1:
            return [item]
        items: list[Any] | None = [None] * self.size if self.first else None
        dist.gather_object(item, items)
        return items or []

    def of_first(self, item: Any) -> Any:
        """Return the first rank's object on every rank."""
        if self.size == 1:
            return item
        items = [item]
        dist.broadcast_object_list(items, device=self.device)
        return items[0]

    @property
    def first(self) -> bool:
        """Whether this rank writes files and speaks."""
        return self.rank == 0


def ranks_of(trainer: Any) -> Ranks:
    """Read rank, size and device off a Lightning trainer's strategy.

    The engine may start a process group of its own before the strategy does; then Lightning would train alone and say
    nothing, so both sizes are compared.
    """
    size = trainer.world_size
    initialized = dist.is_available() and dist.is_initialized()
    found = dist.get_world_size() if initialized and size > 1 else 1
    assert size == found, f"the trainer counts {size} ranks but its process group has {found}"
    sharded = getattr(trainer.strategy, "shards", False)
    return Ranks(trainer.global_rank, size, trainer.strategy.root_device, sharded)
