"""DAPO's dynamic sampling, part of stage 1: draw prompts until the step is full of groups that can teach something."""

import numpy as np
import torch
from torch import Tensor

from ppo_lightning.algorithms.group_filter import rows_with_signal
from ppo_lightning.algorithms.groups import group_ids
from ppo_lightning.metrics.data import is_number
from ppo_lightning.metrics.entries import row_sum
from ppo_lightning.protocol.data_proto import DataProto
from ppo_lightning.protocol.padding import MARKER, alike, drop_rows
from ppo_lightning.stages.context import StepContext
from ppo_lightning.stages.score import score

RAW_SCORES = ("score", "acc")
"""Columns that hold the score of the task as scored, before a length penalty; the first that every row has is taken."""


def refill(batch: DataProto, context: StepContext) -> None:
    """Replace groups without signal by groups of further draws, in place; the batch has been generated.

    All ranks draw while they lack groups together, and the first groups with signal in the order of the draws are kept,
    whichever rank has them: a step is the same for any number of ranks, and `spread` evens out their shares. After
    algorithm.filter_groups_max_batches draws what is still missing is filled up with groups without signal, marked as
    padding: they keep the shape and count nowhere.

    Reads: uid, response_mask, and what the score stage reads.
    Writes: the whole batch; training/num_gen_batches, training/dropped_groups; the draws of the step.
    """
    assert context.draw_rows is not None, "RolloutCallback must be among the callbacks: it draws"
    wanted = len(set(batch.non_tensor_batch["uid"])) * context.ranks.size
    kept: list[DataProto] = []
    spare: list[DataProto] = []
    current = batch.select()
    draws, found, dropped = 1, 0, 0
    while True:
        score(current, context)
        group, signal = group_ids(current.non_tensor_batch["uid"]), groups_with_signal(current)
        kept.append(current.select_idxs(signal[group]))
        spare.append(current.select_idxs(~signal[group]))
        found, dropped = found + int(signal.sum()), dropped + int((~signal).sum())
        together = float(context.ranks.sum(torch.tensor(found, dtype=torch.float64)))
        if together >= wanted or draws >= context.config.algorithm.filter_groups_max_batches:
            break
        current = context.draw_rows(draws)
        context.roller.fill(current, context.seconds, context.book)
        draws += 1
    batch.become(first_groups(alike(kept), alike(spare), wanted, context))
    context.draws = draws
    context.book.max("training/num_gen_batches", draws)
    context.book.sum("training/dropped_groups", dropped)


def groups_with_signal(batch: DataProto) -> Tensor:
    """Mark the groups (G,) whose scored rows have differing raw task scores."""
    scores, group = raw_scores(batch), group_ids(batch.non_tensor_batch["uid"])
    keep = ~batch.tensors()[MARKER] if MARKER in batch.tensors() else torch.ones_like(group, dtype=torch.bool)
    keep = keep.cpu()
    signal = torch.zeros(int(group.max()) + 1, dtype=torch.bool)
    signal[group[keep][rows_with_signal(scores.cpu()[keep], group[keep])]] = True
    return signal


def raw_scores(batch: DataProto) -> Tensor:
    """Return the score of each row (B,) before any length penalty: a column of RAW_SCORES, else the sum of rm_scores.

    A row whose reward failed has none; it counts nowhere.
    """
    tensors = batch.tensors()
    counted = [not dropped for dropped in tensors[MARKER].tolist()] if MARKER in tensors else [True] * len(batch)
    for name in RAW_SCORES:
        values = batch.non_tensor_batch.get(name)
        if values is not None and all(map(is_number, values[np.array(counted, dtype=bool)])):
            return torch.tensor([float(v) if is_number(v) else 0.0 for v in values], dtype=torch.float64)
    return row_sum(tensors["rm_scores"])


def first_groups(kept: DataProto, spare: DataProto, wanted: int, context: StepContext) -> DataProto:
    """Return this rank's part of the first `wanted` groups of all ranks, and number its rows anew."""
    n = context.config.rollout.rollouts_per_prompt
    numbers = [(part.tensors()["global_row"][::n] // n).tolist() for part in (kept, spare)]
    found = context.ranks.gather(numbers)
    chosen = sorted(number for mine, _ in found for number in mine)[:wanted]
    chosen += sorted(number for _, mine in found for number in mine)[: wanted - len(chosen)]
    places = {number: place for place, number in enumerate(chosen)}
    full = fill_up(kept, spare, sum(number in places for part in numbers for number in part))
    groups = (full.tensors()["global_row"] // n).tolist()
    new = torch.tensor([places[number] * n for number in groups], dtype=torch.int64)
    full.batch["global_row"] = new.to(full.batch["sample_index"]) + full.batch["sample_index"]
    return full


def fill_up(kept: DataProto, spare: DataProto, groups: int) -> DataProto:
    """Return the first `groups` groups of `kept`, filled up with groups of `spare` that count nowhere."""
    numbers = group_ids(kept.non_tensor_batch["uid"])
    chosen = kept.select_idxs(numbers < groups)
    missing = groups - (int(numbers.max()) + 1 if len(numbers) else 0)
    if missing <= 0:
        return chosen
    idle = spare.select_idxs(group_ids(spare.non_tensor_batch["uid"]) < missing)
    drop_rows(idle, torch.ones(len(idle), dtype=torch.bool))
    return alike([chosen, idle])
