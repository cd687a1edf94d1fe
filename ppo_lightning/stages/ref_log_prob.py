"""Stage 5: log-probabilities under the reference policy; only when KL is in the reward or in the loss."""

from ppo_lightning.protocol.data_proto import DataProto
from ppo_lightning.stages.context import StepContext
from ppo_lightning.stages.forward import log_probs, without_grad


def ref_log_prob(batch: DataProto, context: StepContext) -> None:
    """Run the reference forward.

    Reads: input_ids, attention_mask, response_mask.
    Writes: ref_log_prob (B, R).
    """
    reference, temperature = context.reference, batch.meta_info["temperature"]
    assert reference is not None, "ref_log_prob runs only with a reference"
    (batch.batch["ref_log_prob"],) = without_grad(
        batch,
        context.config.update,
        context.sharing,
        lambda chunk: log_probs(reference, chunk, temperature)[:1],
        context.ranks,
    )
