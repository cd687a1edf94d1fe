"""From `trainer.strategy` to a Lightning strategy, and the start of the other ranks.

`python -m ppo_lightning fit` on several devices starts the other ranks itself (Lightning's subprocess launcher runs the
same command line again); under torchrun or SLURM they are there already, and Lightning's environments find them.
"""

from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

import lightning as L
import torch.distributed as dist
from lightning.fabric.utilities.distributed import _set_num_threads_if_needed
from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy, Strategy
from lightning.pytorch.strategies.launchers import _SubprocessScriptLauncher
from torch import nn

from ppo_lightning.config.schema import TrainerConfig
from ppo_lightning.parallel.failure import Watch

T = TypeVar("T")
TIMEOUT = timedelta(hours=2)
"""Longest wait in a collective: the longest difference between the ranks' rollouts."""


class Launcher(_SubprocessScriptLauncher):
    """Starts the other ranks of this machine once, before anything is loaded.

    Lightning's own would start them inside `trainer.fit`, after the first rank has loaded its models, and watches them
    with a thread that kills the first rank before it can say why (`failure.Watch` does that here).
    """

    launched = False

    def launch(self, function: Callable, *args: Any, trainer: Any = None, **kwargs: Any) -> Any:
        """Start the ranks, if that has not been done, and call the function."""
        if not self.launched:
            self.launched = True
            self.cluster_environment.validate_settings(num_devices=self.num_processes, num_nodes=self.num_nodes)
            if not self.cluster_environment.creates_processes_externally:
                self._call_children_scripts()
            _set_num_threads_if_needed(num_processes=self.num_processes)
        return function(*args, **kwargs)


class Group:
    """What both strategies share: the launcher, and a process group that is joined once.

    Attributes:
        shards: whether models are sharded.
        joined: whether this process is in the group.
    """

    shards = False
    joined = False
    launcher: Any

    def _configure_launcher(self: Any) -> None:
        self._launcher = Launcher(self.cluster_environment, self.num_processes, self.num_nodes)

    def setup_environment(self: Any) -> None:
        """Join the process group, if that has not been done."""
        if not self.joined:
            self.joined = True
            super().setup_environment()  # type: ignore[misc]


class ReplicatedStrategy(Group, DDPStrategy):  # type: ignore[misc]
    """DDP's processes without DistributedDataParallel's wrapper around the module.

    The wrapper reduces gradients in hooks of a backward pass that follows one forward of the wrapped module. A step
    here is several forwards and backwards of two models, through functions of hidden states and not `forward`, with a
    number of micro-batches that may differ between ranks: the wrapper would have to search for unused parameters, or
    reduce too early, or wait for ever. Gradients are complete when the last micro-batch is done, so
    `stages.optimise` sends them in one flattened all-reduce per optimizer step (`parallel.gradients`).
    """

    def configure_ddp(self) -> None:
        """Make every rank start from the first one's parameters and buffers."""
        assert self.model is not None, "the strategy is connected to the module"
        broadcast(self.model)


class ShardedStrategy(Group, ModelParallelStrategy):  # type: ignore[misc]
    """FSDP2 over all ranks; the module shards its models in `configure_model`.

    Lightning's FSDPStrategy is FSDP1: it refuses a CPU, wraps the module as DDP does, and hides parameters in flat
    ones, so that names, the output head's weight and single gradients cannot be read. FSDP2 keeps every parameter under
    its name as a DTensor, shards each model by itself, and runs on gloo, where it can be tested against DDP.
    """

    shards = True

    def __init__(self, ranks: int) -> None:
        super().__init__(data_parallel_size=ranks, tensor_parallel_size=1, timeout=TIMEOUT)

    def setup_environment(self) -> None:
        """Join the group; the mesh needs the module, which is not connected when the ranks are started."""
        if self.lightning_module is None:
            self.connect(nn.Identity())  # type: ignore[arg-type]
        super().setup_environment()


def broadcast(module: nn.Module) -> None:
    """Copy parameters and buffers of the first rank to all others, tied ones once."""
    for tensor in [*module.parameters(), *module.buffers()]:
        dist.broadcast(tensor.detach(), 0)


def strategy_of(config: TrainerConfig) -> Strategy | str:
    """Return what `L.Trainer(strategy=...)` takes for `trainer.strategy`."""
    if config.strategy == "ddp":
        return ReplicatedStrategy(timeout=TIMEOUT)
    if config.strategy == "fsdp":
        return ShardedStrategy(config.devices * config.nodes)
    return "auto"


def on_every_rank(trainer: L.Trainer, function: Callable[[], T]) -> T:
    """Start the other ranks if there are any to be started, join them, and run the function on each.

    All of them end when one fails.
    """
    strategy: Any = trainer.strategy
    if not isinstance(strategy, Group):
        return function()

    def joined() -> T:
        watch = Watch(lambda: strategy.launcher.procs)
        watch.start()
        strategy.setup_environment()
        watch.join(dist.get_rank(), dist.get_world_size())
        with watch:
            return function()

    return strategy.launcher.launch(joined)
