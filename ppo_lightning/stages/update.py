"""Stage 8: update the critic, then the actor (which waits during critic warm-up)."""

import torch

from ppo_lightning.protocol.data_proto import DataProto
from ppo_lightning.stages.actor_loss import ActorLoss
from ppo_lightning.stages.context import StepContext
from ppo_lightning.stages.critic_loss import CriticLoss
from ppo_lightning.stages.finite import find_fault
from ppo_lightning.stages.optimise import optimise


def update(batch: DataProto, context: StepContext) -> None:
    """Run the mini-batches of every PPO epoch through the critic and then the actor.

    A step counts whole or not at all: a number that is not finite where it counts, in the batch or in a mini-batch of
    either model, leaves both as they were (with trainer.undo_bad_steps=false: as they were before that mini-batch).

    Reads: input_ids, attention_mask, response_mask, advantages, returns, (old_log_probs, ref_log_prob, values).
    Writes: old_log_probs (B, R) where stage 4 was left out.
    """
    context.fault = find_fault(batch, context.ranks)
    warming_up = context.critic is not None and context.step <= context.config.critic.warmup_steps
    if context.critic is not None and context.fault is None:
        with context.timer("update_critic"), context.offload.awake(context.optimizers["critic"]):
            optimise(batch, context, CriticLoss(context), last=warming_up)
    if not warming_up and context.fault is None:
        with context.timer("update_actor"), context.offload.awake(context.optimizers["actor"]):
            optimise(batch, context, ActorLoss(context, batch))
    if context.fault is not None:
        _leave_out(batch, context)


def _leave_out(batch: DataProto, context: StepContext) -> None:
    """Take the step back and count it; numbers that only the update would have measured are unknown."""
    context.undo.take_back()
    if context.ranks.first:
        context.book.sum("training/skipped_steps", 1.0)
    if "old_log_probs" not in batch.tensors():
        batch.batch["old_log_probs"] = torch.full_like(batch.batch["rollout_log_probs"], torch.nan)
