"""Two ranks in one process: a thread each, with models of its own, that meet where real ranks use collectives."""

import threading
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ppo_lightning.config.schema import Config
from ppo_lightning.invariance.measure import Measured, measure
from ppo_lightning.module import PPOModule
from ppo_lightning.parallel.ranks import Ranks
from ppo_lightning.protocol.data_proto import DataProto

SIZE = 2
PATIENCE_S = 600.0


class Meeting:
    """Where the threads exchange what a collective would."""

    def __init__(self, size: int) -> None:
        self.barrier, self.brought = threading.Barrier(size, timeout=PATIENCE_S), [None] * size

    def exchange(self, rank: int, item: Any) -> list[Any]:
        """Return what every rank brought, in the order of ranks."""
        self.brought[rank] = item
        self.barrier.wait()
        found = list(self.brought)
        self.barrier.wait()
        return found


@dataclass(frozen=True)
class ThreadRanks(Ranks):
    """A rank that is a thread."""

    meeting: Meeting = field(default_factory=lambda: Meeting(SIZE))

    def sum(self, tensor: Tensor) -> Tensor:
        """Return the sum over all ranks."""
        return torch.stack(self.meeting.exchange(self.rank, tensor.detach().clone())).sum(0)

    def most(self, number: int) -> int:
        """Return the largest of the ranks' numbers."""
        return max(self.meeting.exchange(self.rank, number))

    def table(self, tensor: Tensor) -> Tensor:
        """Return the tensors of all ranks, stacked."""
        return torch.stack(self.meeting.exchange(self.rank, tensor.detach().cpu()))

    def gather(self, item: Any) -> list[Any]:
        """Return every rank's object."""
        return self.meeting.exchange(self.rank, item)

    def gather_first(self, item: Any) -> list[Any]:
        """Return every rank's object on the first rank."""
        found = self.meeting.exchange(self.rank, item)
        return found if self.first else []

    def of_first(self, item: Any) -> Any:
        """Return the first rank's object."""
        return self.meeting.exchange(self.rank, item)[0]


def can_halve(config: Config, rows: int) -> bool:
    """Whether each mini-batch is an even number of whole groups."""
    mini, n = config.update.sequences_per_minibatch or rows, config.rollout.rollouts_per_prompt
    return rows % mini == 0 and mini % (SIZE * n) == 0


def measure_on_ranks(rows: DataProto, module: PPOModule, config: Config) -> Measured:
    """Run the step on two ranks, each with half of every mini-batch, and return what the first one has to show."""
    size = config.update.sequences_per_minibatch or len(rows)
    number = np.arange(len(rows))
    halves = [number[number % size * SIZE // size == rank] for rank in range(SIZE)]
    meeting = Meeting(SIZE)
    found: dict[int, Measured | BaseException] = {}

    def work(rank: int) -> None:
        try:
            ranks = ThreadRanks(rank=rank, size=SIZE, meeting=meeting)
            found[rank] = measure(rows.select_idxs(halves[rank]), own[rank], config, ranks)
        except BaseException as error:  # noqa: BLE001 - raised by the main thread; the other rank must not wait
            found.setdefault(rank, error)
            meeting.barrier.abort()

    own = [deepcopy(module) for _ in range(SIZE)]
    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(SIZE)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    errors = [error for error in found.values() if isinstance(error, BaseException)]
    for error in sorted(errors, key=lambda error: isinstance(error, threading.BrokenBarrierError)):
        raise error
    first = found[0]
    assert isinstance(first, Measured)
    return first
