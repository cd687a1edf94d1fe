"""Matrix products with weights laid out for them once per rollout.

On a CPU a product with few rows spends more time on bringing the weight into its kernel's layout than on multiplying,
and a rollout does that for every token. oneDNN takes a weight that is in this layout already.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn

from ppo_lightning.models.products import onednn_linear, onednn_takes

ROWS = 64
"""What the layout is chosen for; products with any number of rows are right."""


@contextmanager
def packed_linears(model: nn.Module) -> Iterator[None]:
    """Make the float32 linear layers of a model on the CPU multiply with packed copies of their weights.

    The copies take as much memory as the weights and are gone afterwards; weights must not change within.
    """
    packed = [module for module in model.modules() if isinstance(module, nn.Linear) and _can_pack(module)]
    try:
        for module in packed:
            weight = torch.ops.mkldnn._reorder_linear_weight(module.weight, ROWS)
            module.forward = partial(_multiply, weight, module)  # type: ignore[method-assign]
        yield
    finally:
        for module in packed:
            del module.forward


def _can_pack(module: nn.Linear) -> bool:
    if type(module) is not nn.Linear or "forward" in vars(module):
        return False
    return onednn_takes(module.weight)


def _multiply(weight: Tensor, module: nn.Linear, states: Tensor) -> Tensor:
    return onednn_linear(states, weight, module.bias)
