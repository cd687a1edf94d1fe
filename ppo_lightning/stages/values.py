"""Stage 6: the critic's values before this step's updates; only with an estimator that needs them."""

from ppo_lightning.protocol.data_proto import DataProto
from ppo_lightning.stages import forward
from ppo_lightning.stages.context import StepContext
from ppo_lightning.stages.forward import without_grad


def values(batch: DataProto, context: StepContext) -> None:
    """Run the critic forward.

    Reads: input_ids, attention_mask, response_mask.
    Writes: values (B, R), 0 at masked positions.
    """
    critic = context.critic
    assert critic is not None, "values runs only with a critic"

    update, sharing = context.config.update, context.sharing
    (batch.batch["values"],) = without_grad(
        batch, update, sharing, lambda chunk: (forward.values(critic, chunk),), context.ranks
    )
