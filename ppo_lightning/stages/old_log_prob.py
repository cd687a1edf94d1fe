"""Stage 4: log-probabilities of the sampled tokens under the policy before this step's updates."""

import torch

from ppo_lightning.algorithms.aggregation import LossCounts, aggregate, count
from ppo_lightning.protocol.data_proto import DataProto
from ppo_lightning.stages.context import StepContext
from ppo_lightning.stages.forward import log_probs, without_grad


def old_log_prob(batch: DataProto, context: StepContext) -> None:
    """Run the actor forward; the entropy is logged here and popped.

    Reads: input_ids, attention_mask, response_mask.
    Writes: old_log_probs (B, R); actor/entropy.
    """
    temperature = batch.meta_info["temperature"]
    update, sharing = context.config.update, context.sharing
    found = without_grad(
        batch, update, sharing, lambda chunk: log_probs(context.actor, chunk, temperature, entropy=True)
    )
    batch.batch["old_log_probs"], batch.batch["entropys"] = found
    log_entropy(batch.batch.pop("entropys"), batch, context)


def log_entropy(entropys: torch.Tensor, batch: DataProto, context: StepContext) -> None:
    """Log actor/entropy: the token entropies (B, R) aggregated with the loss mode over the global batch."""
    update = context.config.update
    mask = batch.batch["response_mask"]
    tokens, sequences = context.ranks.sum(count(mask)).tolist()
    if not tokens:
        return
    counts = LossCounts(tokens, sequences, context.ranks.size)
    horizon = update.loss_scale_factor or mask.shape[1]
    context.book.loss("actor/entropy", aggregate(entropys, mask, update.loss_agg_mode, counts, horizon))
