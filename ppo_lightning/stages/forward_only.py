"""Which rows of a mini-batch need no backward pass: their part of the loss is 0 whatever the model says.

A group of equal rewards has advantage 0. Its rows are run forward, for the metrics, and their gradient is not computed.
"""

import numpy as np
from jaxtyping import Bool
from torch import Tensor

from ppo_lightning.protocol.data_proto import DataProto


def apart(mini: DataProto, weightless: Bool[Tensor, "B"]) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows (int64) that are only run forward, and those that are trained on: at least one, if there is any.

    Rows of one prompt stay together, so that it is computed once. One row is trained on even if none has a gradient:
    every parameter that the model uses gets one of 0, and the optimizer goes on with its momentum.

    Args:
        mini: reads attention_mask (B, S); uid if it is there.
        weightless: rows whose part of the loss is constant.
    """
    everything = np.arange(len(mini))
    if not bool(weightless.any()):
        return everything[:0], everything
    still = weightless.cpu().numpy()
    if "uid" in mini.non_tensor_batch:
        uids = mini.non_tensor_batch["uid"].tolist()
        moving = {uid for uid, constant in zip(uids, still.tolist(), strict=True) if not constant}
        still = np.array([uid not in moving for uid in uids])
    if still.all():
        still[int(mini.batch["attention_mask"].sum(-1).argmin())] = False
    return everything[still], everything[~still]


def without_weight(mini: DataProto, by_advantage: bool) -> Bool[Tensor, "B"]:
    """Mark the rows without a valid token or, by advantage, without one whose advantage is not 0.

    Reads: response_mask (B, R); advantages (B, R) if asked for.
    """
    valid = mini.batch["response_mask"].bool()
    return ~(valid & (mini.batch["advantages"] != 0) if by_advantage else valid).any(-1)
