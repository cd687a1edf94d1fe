"""Whether a step may update anything: what was not finite first, in the order of the stages, and in which rows."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ppo_lightning.parallel.micro_batches import MicroBatch
from ppo_lightning.parallel.ranks import Ranks
from ppo_lightning.parallel.sharding import local
from ppo_lightning.protocol.data_proto import DataProto
from ppo_lightning.protocol.fields import FIELDS
from ppo_lightning.protocol.padding import MARKER
from ppo_lightning.stages import STAGES

ANYWHERE = ("rm_scores",)
"""Counts at masked positions too: the score of an empty response lies on one, and its group is compared with it."""
NAMES_A_ROW = ("uid", "sample_index")
SHOWN = 8


@dataclass(frozen=True)
class Fault:
    """The first thing in a step that was not finite.

    Attributes:
        stage: the stage that wrote it.
        tensor: what it is: a key of the batch, or a loss or gradient of the update.
        rows: the rows it is in, as uid/sample; none where it cannot be said, or where they are on another rank.
    """

    stage: str
    tensor: str
    rows: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Return it as a sentence without its end."""
        named = ", ".join(self.rows[:SHOWN]) + (", ..." if len(self.rows) > SHOWN else "")
        where = f" in {len(self.rows)} row(s): {named}" if self.rows else ""
        return f"stage {self.stage}: {self.tensor} was not finite{where}"


def find_fault(batch: DataProto, ranks: Ranks) -> Fault | None:
    """Return the first float field of a batch that is not finite where it counts, the same on every rank."""
    order = {stage.name: place for place, stage in enumerate(STAGES)}
    tensors = batch.tensors()
    names = [name for name in FIELDS if name in tensors and FIELDS[name].stage in order]
    names = [name for name in names if tensors[name].is_floating_point()]
    names.sort(key=lambda name: order[FIELDS[name].stage])
    if not names:
        return None
    bad = torch.stack([_bad_rows(name, tensors) for name in names])
    counts = ranks.sum(bad.sum(-1).double()).tolist()
    first = next((place for place, count in enumerate(counts) if count), None)
    if first is None:
        return None
    return Fault(FIELDS[names[first]].stage, names[first], row_names(batch, bad[first].nonzero().flatten().tolist()))


def update_fault(
    name: str,
    model: nn.Module,
    norm: Tensor,
    mini: DataProto,
    losses: Sequence[tuple[MicroBatch, Tensor]],
    ranks: Ranks,
) -> Fault | None:
    """Return what was not finite in a mini-batch of the update, the same on every rank.

    Args:
        name: of the model.
        model: whose gradients are accumulated, and averaged over ranks.
        norm: of its gradient before clipping.
        mini: the mini-batch.
        losses: each of its micro-batches with its loss.
        ranks: the data-parallel group.
    """
    checked = [norm] if ranks.size > 1 else [norm, *(loss.to(norm.device) for _, loss in losses)]
    # Over ranks the norm decides, which is the same on all of them and not finite where a loss is not: no collective.
    if bool(torch.isfinite(torch.stack([number.float() for number in checked])).all()):
        return None
    for micro, loss in losses:
        if not torch.isfinite(loss):
            return Fault("update", f"the {name}'s loss", row_names(mini, micro.rows.tolist()))
    for weight, parameter in model.named_parameters():
        if parameter.grad is not None and not torch.isfinite(local(parameter.grad)).all():
            return Fault("update", f"the {name}'s gradient of {weight}")
    return Fault("update", f"the {name}'s loss or gradient")


def row_names(batch: DataProto, rows: Sequence[int]) -> tuple[str, ...]:
    """Return rows as uid/sample, which holds wherever they are moved."""
    uids, samples = batch.non_tensor_batch["uid"], batch.tensors()["sample_index"].tolist()
    return tuple(f"{uids[row]}/{samples[row]}" for row in rows)


def _bad_rows(name: str, tensors: dict[str, Tensor]) -> Tensor:
    """Mark the rows (B,) that hold a number that is not finite where it counts."""
    wrong = ~torch.isfinite(tensors[name])
    if wrong.ndim == 2 and name not in ANYWHERE:
        wrong = wrong & tensors["response_mask"].bool()
    wrong = wrong.flatten(1).any(-1) if wrong.ndim > 1 else wrong
    return wrong & ~tensors[MARKER] if MARKER in tensors else wrong
