"""The actor's loss on one micro-batch: policy loss, entropy bonus, KL to the reference."""

from typing import Any

import numpy as np
from torch import Tensor

from ppo_lightning.algorithms import POLICY_LOSSES
from ppo_lightning.algorithms.aggregation import LossCounts, aggregate
from ppo_lightning.algorithms.kl import k3_clamped, kl
from ppo_lightning.algorithms.policy_losses.arguments import find_policy_loss, loss_arguments
from ppo_lightning.algorithms.policy_losses.covariance import Scope
from ppo_lightning.algorithms.tables import resolve
from ppo_lightning.metrics.values import MetricBook
from ppo_lightning.parallel.micro_batches import restore
from ppo_lightning.protocol.data_proto import DataProto
from ppo_lightning.stages.chunks import Chunk
from ppo_lightning.stages.context import StepContext
from ppo_lightning.stages.correction import Bypass
from ppo_lightning.stages.forward import log_probs, without_grad
from ppo_lightning.stages.forward_only import without_weight
from ppo_lightning.stages.old_log_prob import log_entropy


class ActorLoss:
    """The policy loss that `actor.policy_loss` names, with its additions.

    Where stage 4 was left out (one optimizer step per rollout), the first forward's own log-probabilities are the old
    ones: the ratio is 1 and the gradient is the same. They are written into the batch when the step ends.
    """

    name = "actor"
    reads: tuple[str, ...] = (
        "advantages",
        "old_log_probs",
        "ref_log_prob",
        "rollout_log_probs",
        "rollout_is_weights",
        "dataset_index",
    )

    def __init__(self, context: StepContext, batch: DataProto) -> None:
        self.context, self.batch = context, batch
        self.model, self.config = context.actor, context.config
        self.grad_clip = self.config.actor.grad_clip
        self.temperature = batch.meta_info["temperature"]
        record = find_policy_loss(POLICY_LOSSES, self.config.actor.policy_loss)
        self.policy_loss, self.mode = resolve(record.path), record.loss_agg_mode or self.config.update.loss_agg_mode
        self.scales = record.scales
        self.options = loss_arguments(self.policy_loss, self.config.actor)
        self.select = resolve(record.selection) if record.selection else None
        self.bypass = Bypass(context, record) if self.config.rollout_correction.bypass_mode else None
        self.on_policy = "old_log_probs" not in batch.batch.keys()  # noqa: SIM118 - a TensorDict is no dict
        self.measured: list[tuple[np.ndarray, Tensor, Tensor]] = []
        self.prepared = 0

    def prepare(self, mini: DataProto) -> bool:
        """Correct the rollout and pick tokens over the whole mini-batch where that is asked for.

        Returns whether the response mask changed, so that counts are to be taken anew.
        """
        self.prepared += 1
        corrects = self.bypass is not None and self.bypass.whole
        if not corrects and self.select is None:
            return False
        (current,) = without_grad(
            mini,
            self.config.update,
            self.context.sharing,
            lambda chunk: log_probs(self.model, chunk, self.temperature)[:1],
            self.context.ranks,
        )
        if corrects:
            self.bypass.correct(mini, current)
        if self.select is not None:
            tensors = mini.batch
            arguments = (tensors["old_log_probs"], current, tensors["advantages"], tensors["response_mask"])
            options = loss_arguments(self.select, self.config.actor)
            tensors["selection"] = self.select(*arguments, scope=self._scope(mini), **options)
        return corrects

    def _scope(self, mini: DataProto) -> Scope:
        """Return the mini-batch over all ranks; a row's id is that of its sample, wherever the row lies."""
        tensors, n = mini.batch, self.config.rollout.rollouts_per_prompt
        seed = int(np.random.SeedSequence((self.config.seed, self.context.step, self.prepared)).generate_state(1)[0])
        rows = tensors["dataset_index"] * n + tensors["sample_index"]
        return Scope(rows, seed, self.context.ranks.sum, self.context.ranks.gather)

    def __call__(self, micro: Chunk, counts: LossCounts, book: MetricBook) -> Tensor:
        """Return this micro-batch's share of the mini-batch loss and write its metrics."""
        tensors, mask = micro.tensors, micro.mask
        actor = self.config.actor
        with_entropy = self.on_policy or actor.entropy_coeff != 0.0
        current, entropy, _ = log_probs(self.model, micro, self.temperature, entropy=with_entropy)
        old = self._old(micro, current, entropy)
        extra: dict[str, Any] = {"selection": tensors["selection"]} if self.select else {}
        losses, metrics = self.policy_loss(
            old,
            current,
            tensors["advantages"],
            mask,
            rollout_is_weights=self._weights(micro, current),
            **self.options,
            **extra,
        )
        loss = self._aggregate(losses, mask, counts)
        book.loss("actor/pg_loss", loss.detach())
        if actor.entropy_coeff != 0.0 and entropy is not None:
            bonus = self._aggregate(entropy, mask, counts)
            book.loss("actor/entropy_loss", bonus.detach())
            loss = loss - actor.entropy_coeff * bonus
        if actor.use_kl_loss:
            loss = loss + actor.kl_loss_coef * self._kl(current, tensors["ref_log_prob"], mask, counts, book)
        for key, numerator in metrics.items():
            book.masked_mean(key, numerator, mask)
        book.loss("actor/loss", loss.detach())
        return loss

    def weightless(self, mini: DataProto) -> Tensor:
        """Mark the rows (B,) without a valid token or, where the policy loss is all there is, without an advantage."""
        alone = self.config.actor.entropy_coeff == 0.0 and not self.config.actor.use_kl_loss
        return without_weight(mini, by_advantage=alone and self.scales)

    def idle(self, micro: Chunk) -> Tensor:
        """Return a zero that depends on every parameter, from a micro-batch without valid tokens."""
        return log_probs(self.model, micro, self.temperature)[0].sum()

    def close(self, mini: DataProto) -> None:
        """Write the correction's metrics of a mini-batch in bypass mode."""
        if self.bypass is not None:
            self.bypass.measure(mini)

    def _weights(self, micro: Chunk, current: Tensor) -> Tensor | None:
        if self.bypass is None:
            return micro.tensors.get("rollout_is_weights")
        self.bypass.record(micro, current)
        return self.bypass.weights(micro, current)

    def finish(self) -> None:
        """Write what the update itself measured: old log-probabilities and the entropy of the unchanged policy."""
        if self.on_policy:
            rows, width = self.batch.batch["response_mask"].shape
            if not self.measured:  # no valid token anywhere
                self.batch.batch["old_log_probs"] = self.batch.batch["rollout_log_probs"].new_zeros(rows, width)
                return
            old = [(part, log_prob) for part, log_prob, _ in self.measured]
            entropys = [(part, entropy) for part, _, entropy in self.measured]
            self.batch.batch["old_log_probs"] = restore(old, rows, width).float()
            log_entropy(restore(entropys, rows, width), self.batch, self.context)

    def _old(self, micro: Chunk, current: Tensor, entropy: Tensor | None) -> Tensor:
        if not self.on_policy:
            return micro.tensors["old_log_probs"]
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
