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


def resample_rows(batch: DataProto, context: StepContext) -> None:
    """Draw this rank's rows again in proportion to their weights, in place; settle's metrics are of the rows drawn.

    Reads: token_level_scores. Writes: every row; global_token_num.
    """
    algorithm, tensors = context.config.algorithm, batch.tensors()
    scores = row_sum(tensors["token_level_scores"]).cpu()
    counted = ~tensors[MARKER].cpu() if MARKER in tensors else torch.ones(len(scores), dtype=torch.bool)
    extremes = _extremes(scores[counted], context)
    if extremes is None:
        return
    weights = row_weights(scores, algorithm.pf_ppo_reweight, algorithm.pf_ppo_weight_pow, extremes)
    weights = torch.where(counted, weights, 0.0)
    if not bool(weights.any()):
        return
    seed = np.random.SeedSequence((context.config.seed, context.step, context.ranks.rank)).generate_state(1)[0]
    batch.become(batch.select_idxs(resample(weights, torch.Generator().manual_seed(int(seed)))))
    count_tokens(batch, context)


def _extremes(scores: Tensor, context: StepContext) -> tuple[float, float] | None:
    """Return the smallest and the largest score over ranks; None without any."""
    mine = (scores.min().item(), scores.max().item()) if len(scores) else None
    found = [pair for pair in context.ranks.gather(mine) if pair is not None]
    return (min(low for low, _ in found), max(high for _, high in found)) if found else None
