"""Policy losses that go wrong on one rank, for tests of how a run of several ranks ends."""

import os
import time
from pathlib import Path

import torch.distributed as dist

from ppo_lightning.algorithms.policy_losses.ppo_clip import ppo_clip

calls = 0


def breaks(old_log_prob, log_prob, advantages, response_mask, rollout_is_weights=None, **_):
    """Raise in the second mini-batch on the second rank; note when, beside the file RANK_LOSSES_NOTE."""
    global calls
    calls += 1
    if dist.get_rank() == 1 and calls > 1:
        Path(os.environ["RANK_LOSSES_NOTE"]).write_text(str(time.time()))
        raise ZeroDivisionError("the second rank cannot go on")
    clips = {"clip_ratio_low": 0.2, "clip_ratio_high": 0.2, "clip_ratio_c": 3.0}
    return ppo_clip(old_log_prob, log_prob, advantages, response_mask, rollout_is_weights, **clips)
