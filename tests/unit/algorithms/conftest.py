import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch


class Meeting:
    """Collectives of ranks that are threads of one process."""

    def __init__(self, size):
        self.barrier, self.slots = threading.Barrier(size, timeout=30), [None] * size

    def gather(self, rank, item):
        self.slots[rank] = item
        self.barrier.wait()
        items = list(self.slots)
        self.barrier.wait()
        return items

    def run(self, function):
        """Return function(rank, all_reduce, gather) of every rank, run at the same time."""

        def one(rank):
            return function(
                rank,
                lambda tensor: torch.stack(self.gather(rank, tensor)).sum(0),
                lambda item: self.gather(rank, item),
            )

        with ThreadPoolExecutor(len(self.slots)) as pool:
            return list(pool.map(one, range(len(self.slots))))


@pytest.fixture
def meeting():
    return Meeting


@pytest.fixture
def ranks():
    """Run function(all_reduce) of every rank at the same time."""
    return lambda functions: Meeting(len(functions)).run(lambda rank, all_reduce, _: functions[rank](all_reduce))
