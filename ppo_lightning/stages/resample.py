"""PF-PPO's resampling at the end of stage 7: the update sees telling rows more often."""

import numpy as np
import torch
from torch import Tensor

from ppo_lightning.algorithms.pf_ppo import resample, row_weights
from ppo_lightning.metrics.entries import row_sum
from ppo_lightning.protocol.data_proto import DataProto
from ppo_lightning.protocol.padding import MARKER
from ppo_lightning.stages.align import count_tokens
from ppo_lightning.stages.context import StepContext
from ppo_lightning.stages.spread import take_drawn


def resample_rows(batch: DataProto, context: StepContext) -> None:
    """Draw the step's rows again in proportion to their weights, in place; settle's metrics are of the rows drawn.

    The draw is over the rows of all ranks, so it is the same for any number of them; rows go where they are needed.

    Reads: token_level_scores. Writes: every row; global_token_num.
    """
    algorithm = context.config.algorithm
    scores, counted = _of_all_ranks(batch, context)
    if not bool(counted.any()):
        return
    extremes = (scores[counted].min().item(), scores[counted].max().item())
    weights = row_weights(scores, algorithm.pf_ppo_reweight, algorithm.pf_ppo_weight_pow, extremes)
    weights = torch.where(counted, weights, 0.0)
    if not bool(weights.any()):
        return
    seed = np.random.SeedSequence((context.config.seed, context.step, 0)).generate_state(1)[0]
    drawn = resample(weights, torch.Generator().manual_seed(int(seed)))
    if context.layout is None:
        batch.become(batch.select_idxs(drawn))
        if "global_row" in batch.batch:
            batch.batch["global_row"] = torch.arange(len(batch)).to(batch.batch["global_row"])
    else:
        take_drawn(batch, drawn.numpy(), context)
    count_tokens(batch, context)


def _of_all_ranks(batch: DataProto, context: StepContext) -> tuple[Tensor, Tensor]:
    """Return the score of every row (B,) and whether it counts (B,), in the common order of all ranks' rows."""
    tensors = batch.tensors()
    scores = row_sum(tensors["token_level_scores"]).cpu()
    counted = ~tensors[MARKER].cpu() if MARKER in tensors else torch.ones(len(scores), dtype=torch.bool)
    if context.ranks.size == 1:
        return scores, counted
    mine = torch.stack([tensors["global_row"].cpu().double(), scores.double(), counted.double()])
    numbers, scores, counted = context.ranks.table(mine).transpose(0, 1).flatten(1)
    order = numbers.argsort()
    return scores[order], counted[order].bool()
