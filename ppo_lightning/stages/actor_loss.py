"""The actor's loss on one micro-batch: policy loss, entropy bonus, KL to the reference."""

from typing import Any

import numpy as np
from torch import Tensor

from ppo_lightning.algorithms import POLICY_LOSSES
from ppo_lightning.algorithms.aggregation import LossCounts, aggregate
from ppo_lightning.algorithms.kl import k3_clamped, kl
from ppo_lightning.algorithms.policy_losses.arguments import find_policy_loss, loss_arguments
from ppo_lightning.algorithms.tables import resolve
from ppo_lightning.metrics.values import MetricBook
from ppo_lightning.parallel.micro_batches import restore
from ppo_lightning.protocol.data_proto import DataProto
from ppo_lightning.stages.context import StepContext
from ppo_lightning.stages.forward import Chunk, log_probs, without_grad
from ppo_lightning.stages.old_log_prob import log_entropy


class ActorLoss:
    """The policy loss that `actor.policy_loss` names, with its additions.

    Where stage 4 was left out (one optimizer step per rollout), the first forward's own log-probabilities are the old
    ones: the ratio is 1 and the gradient is the same. They are written into the batch when the step ends.
    """

    name = "actor"

    def __init__(self, context: StepContext, batch: DataProto) -> None:
        self.context, self.batch = context, batch
        self.model, self.config = context.actor, context.config
        self.grad_clip = self.config.actor.grad_clip
        self.temperature = batch.meta_info["temperature"]
        record = find_policy_loss(POLICY_LOSSES, self.config.actor.policy_loss)
        self.policy_loss, self.mode = resolve(record.path), record.loss_agg_mode or self.config.update.loss_agg_mode
        self.options = loss_arguments(self.policy_loss, self.config.actor)
        self.select = resolve(record.selection) if record.selection else None
        self.on_policy = "old_log_probs" not in batch.batch.keys()  # noqa: SIM118 - a TensorDict is no dict
        self.measured: list[tuple[np.ndarray, Tensor, Tensor]] = []

    def prepare(self, mini: DataProto) -> None:
        """Pick tokens over the whole mini-batch where the loss asks for it, before its first backward."""
        if self.select is None:
            return
        (current,) = without_grad(
            mini,
            self.config.update,
            self.context.sharing,
            lambda chunk: log_probs(self.model, chunk, self.temperature, entropy=False)[:1],
        )
        tensors = mini.batch
        options = loss_arguments(self.select, self.config.actor)
        arguments = (tensors["old_log_probs"], current, tensors["advantages"], tensors["response_mask"])
        mini.batch["selection"] = self.select(*arguments, **options)

    def __call__(self, micro: Chunk, counts: LossCounts, book: MetricBook) -> Tensor:
        """Return this micro-batch's share of the mini-batch loss and write its metrics."""
        tensors, mask = micro.batch.batch, micro.mask
        actor = self.config.actor
        with_entropy = self.on_policy or actor.entropy_coeff != 0.0
        current, entropy = log_probs(self.model, micro, self.temperature, entropy=with_entropy)
        old = self._old(micro, current, entropy)
        extra: dict[str, Any] = {"selection": tensors["selection"]} if self.select else {}
        weights = tensors.get("rollout_is_weights", None)
        losses, metrics = self.policy_loss(
            old, current, tensors["advantages"], mask, rollout_is_weights=weights, **self.options, **extra
        )
        loss = self._aggregate(losses, mask, counts)
        book.loss("actor/pg_loss", loss.detach())
        if actor.entropy_coeff != 0.0 and entropy is not None:
            loss = loss - actor.entropy_coeff * self._aggregate(entropy, mask, counts)
        if actor.use_kl_loss:
            loss = loss + actor.kl_loss_coef * self._kl(current, tensors["ref_log_prob"], mask, counts, book)
        for key, numerator in metrics.items():
            book.masked_mean(key, numerator, mask)
        book.loss("actor/loss", loss.detach())
        return loss

    def finish(self) -> None:
        """Write what the update itself measured: old log-probabilities and the entropy of the unchanged policy."""
        if self.on_policy:
            rows, width = self.batch.batch["response_mask"].shape
            old = [(part, log_prob) for part, log_prob, _ in self.measured]
            entropys = [(part, entropy) for part, _, entropy in self.measured]
            self.batch.batch["old_log_probs"] = restore(old, rows, width)
            log_entropy(restore(entropys, rows, width), self.batch, self.context)

    def _old(self, micro: Chunk, current: Tensor, entropy: Tensor | None) -> Tensor:
        if not self.on_policy:
            return micro.batch.batch["old_log_probs"]
        self.measured.append((micro.rows, current.detach(), entropy.detach()))
        return current.detach()

    def _kl(self, current: Tensor, reference: Tensor, mask: Tensor, counts: LossCounts, book: MetricBook) -> Tensor:
        kind = self.config.actor.kl_loss_type
        loss = self._aggregate(kl(current, reference, mask, kind), mask, counts)
        book.loss("actor/kl_loss", loss.detach())
        book.masked_mean("actor/kl_clamped_frac", k3_clamped(current, reference, mask, kind), mask)
        book.mean("actor/kl_coef", self.config.actor.kl_loss_coef)
        return loss

    def _aggregate(self, losses: Tensor, mask: Tensor, counts: LossCounts) -> Tensor:
        horizon = self.config.update.loss_scale_factor or self.config.rollout.response_tokens
        return aggregate(losses, mask, self.mode, counts, horizon)
