"""Stage 8: update the critic, then the actor (which waits during critic warm-up)."""

from ppo_lightning.protocol.data_proto import DataProto
from ppo_lightning.stages.actor_loss import ActorLoss
from ppo_lightning.stages.context import StepContext
from ppo_lightning.stages.critic_loss import CriticLoss
from ppo_lightning.stages.optimise import optimise


def update(batch: DataProto, context: StepContext) -> None:
    """Run the mini-batches of every PPO epoch through the critic and then the actor.

    Reads: input_ids, attention_mask, response_mask, advantages, returns, (old_log_probs, ref_log_prob, values).
    Writes: old_log_probs (B, R) where stage 4 was left out.
    """
    if context.critic is not None:
        with context.timer("update_critic"), context.offload.awake(context.optimizers["critic"]):
            optimise(batch, context, CriticLoss(context))
    warming_up = context.critic is not None and context.step <= context.config.critic.warmup_steps
    if not warming_up:
        with context.timer("update_actor"), context.offload.awake(context.optimizers["actor"]):
            optimise(batch, context, ActorLoss(context, batch))
