"""DAPO's dynamic sampling: which groups can teach anything."""

from jaxtyping import Bool, Float, Int64
from torch import Tensor

from ppo_lightning.algorithms.groups import compare


def rows_with_signal(scores: Float[Tensor, "B"], group: Int64[Tensor, "B"]) -> Bool[Tensor, "B"]:
    """Mark the rows whose group has differing scores; the others would all get advantage 0.

    The scores are those of the task as scored, before length penalties and KL: those two differ between equally right
    answers and would hide that a group is all right or all wrong. The test is the one
    by which estimators give exactly 0 (`Groups.signal`); a lone row is dropped.

    Source: DAPO, https://arxiv.org/abs/2503.14476, section 3.2.
    """
    return compare(scores.double(), group).signal[group]
