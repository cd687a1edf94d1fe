import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch


class Meeting:
    """Ranks that are threads of one process, with their collectives."""

    def __init__(self, size):
        self.barrier, self.brought = threading.Barrier(size, timeout=30), [None] * size

    def gather(self, rank, item):
        self.brought[rank] = item
        self.barrier.wait()
        items = list(self.brought)
        self.barrier.wait()
        return items

    def run(self, function):
        """Return function(rank, all_reduce, gather) of every rank."""

        def one(rank):
            return function(
                rank,
                lambda tensor: torch.stack(self.gather(rank, tensor)).sum(0),
                lambda item: self.gather(rank, item),
            )

        with ThreadPoolExecutor(len(self.brought)) as pool:
            return list(pool.map(one, range(len(self.brought))))


def on_ranks(functions: list) -> list[torch.Tensor]:
    """Run one function per rank in threads; each gets an `all_reduce` that adds up what all ranks bring."""
    return Meeting(len(functions)).run(lambda rank, all_reduce, gather: functions[rank](all_reduce))


@pytest.fixture
def ranks():
    return on_ranks


@pytest.fixture
def meeting():
    return Meeting
