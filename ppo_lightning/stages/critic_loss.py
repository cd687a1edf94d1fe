"""The critic's loss on one micro-batch."""

from torch import Tensor

from ppo_lightning.algorithms.aggregation import LossCounts, aggregate
from ppo_lightning.algorithms.value_loss import value_loss
from ppo_lightning.metrics.values import MetricBook
from ppo_lightning.protocol.data_proto import DataProto
from ppo_lightning.stages.chunks import Chunk
from ppo_lightning.stages.context import StepContext
from ppo_lightning.stages.forward import values
from ppo_lightning.stages.forward_only import without_weight


class CriticLoss:
    """Clipped value loss; see `algorithms/value_loss.py`."""

    name = "critic"
    reads: tuple[str, ...] = ("values", "returns")

    def __init__(self, context: StepContext) -> None:
        assert context.critic is not None, "the critic's loss needs a critic"
        self.model, self.config = context.critic, context.config
        self.grad_clip = context.config.critic.grad_clip

    def prepare(self, mini: DataProto) -> bool:
        """Nothing is picked over the whole mini-batch; the mask is as it was."""
        return False

    def weightless(self, mini: DataProto) -> Tensor:
        """Mark the rows (B,) without a valid token."""
        return without_weight(mini, by_advantage=False)

    def idle(self, micro: Chunk) -> Tensor:
        """Return a zero that depends on every parameter, from a micro-batch without valid tokens."""
        return values(self.model, micro).sum()

    def close(self, mini: DataProto) -> None:
        """Nothing is measured over the whole mini-batch."""

    def finish(self) -> None:
        """Nothing is left to write."""

    def __call__(self, micro: Chunk, counts: LossCounts, book: MetricBook) -> Tensor:
        """Return this micro-batch's share of the mini-batch loss and write its metrics."""
        tensors = micro.tensors
        mask = micro.mask
        predicted = values(self.model, micro)
        clip = self.config.critic.cliprange_value
        losses, metrics = value_loss(predicted, tensors["values"], tensors["returns"], mask, clip)
        update = self.config.update
        horizon = update.loss_scale_factor or self.config.rollout.response_tokens
        loss = aggregate(losses, mask, update.loss_agg_mode, counts, horizon)
        for key, numerator in metrics.items():
            book.masked_mean(key, numerator, mask)
        book.loss("critic/vf_loss", loss.detach())
        return loss
