"""How many bytes the data flow of a step allocates, next to those of its batch: a number no machine changes."""

import sys
from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))
import dataflow_step
from dataflow_inputs import Size

SIZE = Size(rows=64, tokens=128, rollouts=8)
BOUNDS = {
    "repeat": (0.01, 0.01),
    "union": (0.01, 0.01),
    "convention": (0.23, 0.23),
    "balancing": (0.01, 0.01),
    "contract": (0.01, 0.01),
    "log-probs and values": (0.52, 1.04),
    "advantages": (0.07, 0.51),
    "mini- and micro-batches": (0.66, 1.27),
    "metrics": (0.29, 0.40),
}
"""The most that a part allocates, over the bytes of the batch: for GRPO, and for PPO with its two models."""


class Allocated(TorchDispatchMode):
    """Counts the bytes of tensors that are new: views and results that live where an argument does are not."""

    def __init__(self):
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        known = {storage(leaf) for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)}
        out = operation(*args, **kwargs)
        made = {storage(leaf): leaf for leaf in tree_leaves(out) if isinstance(leaf, torch.Tensor)}
        self.bytes += sum(leaf.untyped_storage().nbytes() for place, leaf in made.items() if place not in known)
        return out


def storage(tensor):
    return tensor.untyped_storage().data_ptr()


def allocations(critic, spoil=None):
    """Return the bytes that each part of a step allocates over those of the batch."""
    step = dataflow_step.Step(SIZE, critic)
    found = {}
    for name, call in step.parts():
        with Allocated() as counted:
            call()
            if name == spoil:
                [value.clone() for value in step.given.values()]
        found[name] = counted.bytes
    whole = sum(value.nbytes for value in step.batch.tensors().values())
    return {name: count / whole for name, count in found.items()}


@pytest.mark.parametrize("critic", [False, True], ids=["grpo", "ppo"])
def test_a_part_of_the_data_flow_allocates_no_more_than_it_must(critic):
    found = allocations(critic)
    assert list(found) == list(BOUNDS)
    assert {name: share for name, share in found.items() if share > BOUNDS[name][critic]} == {}


def test_a_copy_of_the_batch_is_seen():
    """Negative control: one copy more breaks the bound of any part."""
    for name, (bound, _) in BOUNDS.items():
        assert allocations(False, spoil=name)[name] > bound, name
