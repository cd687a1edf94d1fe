"""ReMax's baseline, part of stage 1: the score of the greedy response to each prompt."""

import numpy as np
import torch

from ppo_lightning.metrics.entries import row_sum
from ppo_lightning.protocol.data_proto import DataProto
from ppo_lightning.protocol.padding import MARKER, drop_rows
from ppo_lightning.stages.context import StepContext
from ppo_lightning.stages.score import score

TENSORS = ("dataset_index", "sample_index")
COLUMNS = ("uid", "raw_prompt", "raw_prompt_ids", "data_source", "reward_model", "extra_info")
VALUES = ("global_steps", "validate", "eos_token_id", "pad_token_id")


def greedy_baseline(batch: DataProto, context: StepContext) -> None:
    """Generate one greedy response per prompt, score it as any other, and give its score to every row of the prompt.

    Rows whose prompt has no baseline, because the reward of the greedy response failed and was dropped, count nowhere.

    Reads: what a rollout reads.
    Writes: reward_baselines (B,).
    """
    if not len(batch):  # dynamic sampling has left this rank without rows
        batch.batch["reward_baselines"] = torch.zeros(0)
        return
    with context.timer("gen_max"):
        _, first, group = np.unique(batch.non_tensor_batch["uid"], return_index=True, return_inverse=True)
        prompts = batch.select(TENSORS, COLUMNS, VALUES).select_idxs(first)
        prompts.meta_info = dict(prompts.meta_info)
        context.roller.fill(prompts, {}, context.book, greedy=True)
        score(prompts, context)
    tensors = prompts.tensors()
    rows = torch.from_numpy(group).to(tensors["rm_scores"].device)
    batch.batch["reward_baselines"] = row_sum(tensors["rm_scores"]).float()[rows]
    if MARKER in tensors:
        drop_rows(batch, tensors[MARKER][rows])
