"""What the stages of one step share besides the batch."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from ppo_lightning.algorithms.kl_control import AdaptiveKLController, FixedKLController
from ppo_lightning.config.schema import Config
from ppo_lightning.metrics.values import MetricBook
from ppo_lightning.models.critic import Critic
from ppo_lightning.models.offload import Offload
from ppo_lightning.parallel.balance import Layout
from ppo_lightning.parallel.ranks import Ranks
from ppo_lightning.protocol.data_proto import DataProto
from ppo_lightning.stages.finite import Fault
from ppo_lightning.stages.undo import Undo


@dataclass
class StepContext:
    """One step's surroundings.

    Attributes:
        config: the run's configuration.
        step: number of the training step, from 1.
        ranks: the data-parallel group.
        actor: the policy.
        critic: the value model, if the estimator needs one.
        reference: the frozen policy, if KL is on; None with LoRA, where it is the actor with its adapter off.
        sharing: whether rows of one prompt share its computation.
        offload: moves reference and optimizers to their phases.
        score_batch: route B: takes the batch, returns its RowScores; None: no reward model.
        roller: what generates (RolloutCallback's).
        announce: told the name of each stage as it begins.
        kl_controller: the coefficient of KL in the reward.
        optimizers: by model name; each can step.
        backward: the strategy's backward.
        book: metrics of this step.
        seconds: wall seconds by timer.
        recorded: names of the stages that ran, in order.
        layout: where the rows of the step are, with several ranks.
        fault: what was not finite: from then on nothing is updated in this step; None: all is well.
        undo: puts back what the step has changed.
        commit: called when models are about to change for good: from then on the step is not broken off.
        look: called at borders of the work: breaks the step off if the run was asked to end.
        draws: prompt draws consumed.
        draw_rows: takes the number of a further draw of this step, from 1, and returns its rows, ready for a rollout.
        epoch: passes over the training prompts before this step's draw.
        gradient_norms: of each optimizer step, by model name.
        trained: of each optimizer step, by model name: the rows with a backward pass, and all.
        started: when the step began, on the performance counter.
    """

    config: Config
    step: int
    ranks: Ranks
    actor: nn.Module
    critic: Critic | None
    reference: nn.Module | None
    kl_controller: FixedKLController | AdaptiveKLController
    optimizers: dict[str, Any]
    backward: Callable[..., None]
    sharing: bool = False
    offload: Offload = field(default_factory=Offload)
    score_batch: Callable[..., Any] | None = None
    roller: Any = None
    announce: Callable[[str], None] = lambda stage: None
    book: MetricBook = field(default_factory=MetricBook)
    seconds: dict[str, float] = field(default_factory=dict)
    recorded: list[str] = field(default_factory=list)
    layout: Layout | None = None
    fault: Fault | None = None
    undo: Undo = field(default_factory=Undo)
    commit: Callable[[], None] = lambda: None
    look: Callable[[], None] = lambda: None
    draws: int = 1
    draw_rows: Callable[[int], DataProto] | None = None
    epoch: int = 0
    gradient_norms: dict[str, list[float]] = field(default_factory=dict)
    trained: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    started: float = field(default_factory=time.perf_counter)

    @contextmanager
    def timer(self, name: str) -> Iterator[None]:
        """Add the wall seconds of the block to a timer."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start
