"""Rollout correction within the step: in stage 7 before the estimator, or in bypass mode per mini-batch of stage 8."""

import numpy as np
from torch import Tensor

from ppo_lightning.algorithms.rollout_correction.correct import correct, keep_detached, needs_minibatch
from ppo_lightning.algorithms.rollout_correction.ledger import Measurements
from ppo_lightning.algorithms.rollout_correction.settings import Settings, read_settings
from ppo_lightning.algorithms.rollout_correction.weights import importance_weights
from ppo_lightning.algorithms.tables import PolicyLoss
from ppo_lightning.parallel.micro_batches import restore
from ppo_lightning.protocol.data_proto import DataProto
from ppo_lightning.stages.chunks import Chunk
from ppo_lightning.stages.context import StepContext


def correct_rollout(batch: DataProto, context: StepContext) -> None:
    """Weigh and reject this step's tokens by how far the engine's probabilities are from the policy's.

    Reads: old_log_probs, rollout_log_probs, response_mask.
    Writes: response_mask without the rejected tokens; rollout_is_weights where weights are on; rollout_corr/*.
    """
    tensors = batch.batch
    settings = read_settings(context.config.rollout_correction)
    arguments = (tensors["old_log_probs"], tensors["rollout_log_probs"], tensors["response_mask"])
    found = correct(*arguments, settings, context.ranks.sum)
    tensors["response_mask"] = found.response_mask
    if found.weights is not None:
        tensors["rollout_is_weights"] = found.weights.float()
    write_measurements(found.metrics, context)


def measure_distance(batch: DataProto, context: StepContext) -> None:
    """Write how far engine and policy are apart, where no correction has done so.

    Reads: old_log_probs, rollout_log_probs, response_mask.
    """
    tensors = batch.batch
    arguments = (tensors["old_log_probs"], tensors["rollout_log_probs"], tensors["response_mask"])
    write_measurements(correct(*arguments, Settings(), context.ranks.sum).metrics, context)


def write_measurements(found: Measurements, context: StepContext) -> None:
    """Write means, which are global already, on the first rank only, and extremes on every rank."""
    book = context.book
    if context.ranks.first:
        for key, (total, count) in found.means.items():
            book.mean(key, total, count)
    for key, value in found.maxima.items():
        book.max(key, value)
    for key, value in found.minima.items():
        book.min(key, value)


class Bypass:
    """Correction in bypass mode: old_log_probs are the engine's, and the policy being trained is what is compared.

    Args:
        context: of the step.
        loss: record of the policy loss; one that holds the ratio to the engine corrects by itself and gets no weights.

    Attributes:
        whole: whether a mini-batch's log-probabilities are needed before its first backward.
    """

    def __init__(self, context: StepContext, loss: PolicyLoss) -> None:
        self.context, self.settings = context, read_settings(context.config.rollout_correction)
        self.weighted = self.settings.level != "off" and not loss.ratio
        self.whole = needs_minibatch(self.settings, loss)
        self._measured: list[tuple[np.ndarray, Tensor]] = []

    def correct(self, mini: DataProto, current: Tensor) -> None:
        """Weigh and reject a whole mini-batch by the policy's log-probabilities (B, R) before its first backward."""
        tensors = mini.batch
        arguments = (current, tensors["rollout_log_probs"], tensors["response_mask"])
        found = correct(*arguments, self.settings, self.context.ranks.sum)
        tensors["response_mask"] = found.response_mask
        if found.weights is not None and self.weighted:
            tensors["rollout_is_weights"] = found.weights.float()
        write_measurements(found.metrics, self.context)

    def weights(self, micro: Chunk, current: Tensor) -> Tensor | None:
        """Return the weights of a micro-batch from its own forward, or those of the mini-batch; None: no weights."""
        tensors = micro.tensors
        if self.whole or not self.weighted:
            return tensors.get("rollout_is_weights")
        log_ratio = keep_detached(current, micro.mask) - keep_detached(tensors["rollout_log_probs"], micro.mask)
        return importance_weights(log_ratio, micro.mask, self.settings)[0]

    def record(self, micro: Chunk, current: Tensor) -> None:
        """Keep the log-probabilities of a micro-batch for the metrics of its mini-batch."""
        if not self.whole:
            self._measured.append((micro.rows, current.detach()))

    def measure(self, mini: DataProto) -> None:
        """Write the metrics of a mini-batch whose correction needed no forward of its own."""
        if self.whole:
            return
        tensors = mini.batch
        current = restore(self._measured, *tensors["response_mask"].shape)
        self._measured = []
        arguments = (current, tensors["rollout_log_probs"], tensors["response_mask"])
        write_measurements(correct(*arguments, self.settings, self.context.ranks.sum).metrics, self.context)
