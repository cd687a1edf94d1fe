"""Stage 6: the critic's values before this step's updates; only with an estimator that needs them."""

from ppo_lightning.protocol.data_proto import DataProto
from ppo_lightning.stages.context import StepContext
from ppo_lightning.stages.forward import FORWARD_KEYS, without_grad


def values(batch: DataProto, context: StepContext) -> None:
    """Run the critic forward.

    Reads: input_ids, attention_mask, response_mask.
    Writes: values (B, R), 0 at masked positions.
    """
    critic = context.critic
    assert critic is not None, "values runs only with a critic"

    def forward(micro: DataProto) -> tuple:
        ids, mask, valid = (micro.batch[key] for key in FORWARD_KEYS)
        return (critic.values(ids, mask, valid.bool()),)

    (batch.batch["values"],) = without_grad(batch, context.config.update, forward)
