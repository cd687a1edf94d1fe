"""Stages 2 to 9 of one step on given rows, with optimizers that keep the gradients and leave the weights alone."""

import importlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ppo_lightning.algorithms.kl_control import kl_controller
from ppo_lightning.config.schema import Config
from ppo_lightning.errors import DataError
from ppo_lightning.models.sharing import sharing_of
from ppo_lightning.module import PPOModule
from ppo_lightning.parallel.ranks import Ranks
from ppo_lightning.protocol.data_proto import DataProto
from ppo_lightning.stages import STAGES, uses_critic
from ppo_lightning.stages.context import StepContext
from ppo_lightning.stages.forward import log_probs, without_grad

NOISE = "check_noise"
"""Column (B, R) by which old log-probabilities are moved, so that ratios are not 1 and tokens clip."""

VOLATILE = ("timing", "perf/", "global_seqlen/")


@dataclass
class Measured:
    """What one way of splitting gave.

    Attributes:
        gradients: by model, of each mini-batch, one tensor per parameter (None: no gradient).
        metrics: everything that is logged, but for clocks.
    """

    gradients: dict[str, list[list[Tensor | None]]] = field(default_factory=dict)
    metrics: dict[str, float | None] = field(default_factory=dict)


class Keeper:
    """Stands in for an optimizer: keeps each gradient, averaged over ranks, that it is asked to apply."""

    def __init__(self, model: nn.Module, ranks: Ranks) -> None:
        self.model, self.ranks, self.kept = model, ranks, list[list[Tensor | None]]()
        self.param_groups = [{"lr": 0.0}]

    def step(self) -> None:
        """Keep the gradient of a mini-batch."""
        trained = [p for p in self.model.parameters() if p.requires_grad]
        self.kept.append([None if p.grad is None else self._mean(p.grad.detach().clone()) for p in trained])

    def _mean(self, gradient: Tensor) -> Tensor:
        return self.ranks.sum(gradient) / self.ranks.size

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients."""
        self.model.zero_grad(set_to_none=set_to_none)


def prepare(module: PPOModule, layers: int) -> PPOModule:
    """Make the models small, exact and lively.

    Rounding must not be mistaken for a fault: they compute in float64. Of the decoder the first layers are enough. A
    value head starts at zero, behind which no gradient reaches the critic's decoder: it is drawn anew.
    """
    for model in filter(None, (module.actor, module.critic, module.reference)):
        decoder = model.get_decoder()
        if layers and isinstance(getattr(decoder, "layers", None), nn.ModuleList):
            decoder.layers = decoder.layers[:layers]
            decoder.config.num_hidden_layers = len(decoder.layers)
            if getattr(decoder.config, "layer_types", None):
                decoder.config.layer_types = decoder.config.layer_types[:layers]
    if module.critic is not None:
        nn.init.normal_(module.critic.head.weight, std=0.1)
    return module.double()


def write_log_probs(rows: DataProto, module: PPOModule, config: Config) -> None:
    """Write what the engine would have said, and by how much old log-probabilities are moved."""
    shape, generator = rows.batch["responses"].shape, torch.Generator().manual_seed(2)
    noise, gap = (scale * torch.randn(shape, generator=generator) for scale in (0.3, 0.1))
    temperature = rows.meta_info["temperature"]
    (own,) = without_grad(rows, config.update, False, lambda chunk: log_probs(module.actor, chunk, temperature)[:1])
    apart = gap + noise if config.rollout_correction.bypass_mode else gap
    rows.batch[NOISE] = noise
    rows.batch["rollout_log_probs"] = own + apart * rows.batch["response_mask"]
    rows.batch["global_row"] = torch.arange(len(rows))


def measure(rows: DataProto, module: PPOModule, config: Config, ranks: Ranks | None = None) -> Measured:
    """Run the stages on a copy of the rows (this rank's) and return gradients and metrics."""
    ranks = ranks or Ranks()
    batch = rows.select()
    critic = module.critic if uses_critic(config) else None
    models: dict[str, Any] = {"actor": module.actor} | ({"critic": critic} if critic else {})
    algorithm = config.algorithm
    context = StepContext(
        config=config,
        step=max(1, config.critic.warmup_steps + 1),
        ranks=ranks,
        actor=module.actor,
        critic=critic,
        reference=module.reference,
        kl_controller=kl_controller(algorithm.kl_ctrl, algorithm.kl_coef, algorithm.kl_target, algorithm.kl_horizon),
        optimizers={name: Keeper(model, ranks) for name, model in models.items()},
        backward=lambda loss: loss.backward(),
        sharing=sharing_of(config, module.actor, critic),
    )
    for stage in STAGES[1:]:
        if stage.skipped_because(config) is None:
            getattr(importlib.import_module(f"ppo_lightning.stages.{stage.name}"), stage.name)(batch, context)
            if stage.name == "old_log_prob":
                move_old_log_probs(batch)
    if context.fault is not None:
        raise DataError(f"check-invariance needs an update to compare, but there was none: {context.fault}")
    numbers = context.book.compute(ranks.gather)
    metrics = {key: value for key, value in numbers.items() if not key.startswith(VOLATILE)}
    return Measured({name: optimizer.kept for name, optimizer in context.optimizers.items()}, metrics)


def move_old_log_probs(batch: DataProto) -> None:
    """Move the old log-probabilities away from the current ones."""
    tensors = batch.batch
    tensors["old_log_probs"] = tensors["old_log_probs"] + tensors[NOISE] * tensors["response_mask"]


def relative(left: Sequence[Tensor | None], right: Sequence[Tensor | None]) -> float:
    """Return the norm of the difference of two gradients over the norm of the second; inf if one alone is there."""
    if [part is None for part in left] != [part is None for part in right]:
        return float("inf")
    pairs = [(a, b) for a, b in zip(left, right, strict=True) if a is not None and b is not None]
    apart = sum(float((a - b).double().square().sum()) for a, b in pairs)
    size = sum(float(b.double().square().sum()) for _, b in pairs)
    return (apart / size) ** 0.5 if size else float(apart > 0)
