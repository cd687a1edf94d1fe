"""Stage 4: log-probabilities of the sampled tokens under the policy before this step's updates."""

import torch

from ppo_lightning.algorithms.aggregation import LossCounts, aggregate, count
from ppo_lightning.protocol.data_proto import DataProto
from ppo_lightning.stages import reads_squares
from ppo_lightning.stages.chunks import Chunk
from ppo_lightning.stages.context import StepContext
from ppo_lightning.stages.forward import log_probs, without_grad


def old_log_prob(batch: DataProto, context: StepContext) -> None:
    """Run the actor forward; the entropy is logged here and popped.

    Reads: input_ids, attention_mask, response_mask.
    Writes: old_log_probs (B, R); sum_pi_squared (B, R) where the estimator reads it; actor/entropy.
    """
    temperature = batch.meta_info["temperature"]
    update, sharing = context.config.update, context.sharing
    squares = reads_squares(context.config)

    def forward(chunk: Chunk) -> tuple[torch.Tensor, ...]:
        found = log_probs(context.actor, chunk, temperature, entropy=True, squares=squares)
        return tuple(part for part in found if part is not None)

    names = ("old_log_probs", "entropys", "sum_pi_squared")
    for name, found in zip(names, without_grad(batch, update, sharing, forward, context.ranks), strict=False):
        batch.batch[name] = found
    log_entropy(batch.pop(["entropys"]).tensors()["entropys"], batch, context)


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
