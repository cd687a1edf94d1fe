"""The data module: prompts of training and validation as batches of prompt rows."""

from collections.abc import Callable
from typing import Any

import lightning as L
import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from ppo_lightning.algorithms.tables import resolve
from ppo_lightning.config.schema import Config
from ppo_lightning.data.prompts import Prompt, PromptSet, load_prompts
from ppo_lightning.data.sampler import Order, PromptSampler, in_order, shuffled
from ppo_lightning.errors import ConfigError
from ppo_lightning.parallel.ranks import Ranks, ranks_of
from ppo_lightning.protocol.columns import as_column
from ppo_lightning.protocol.data_proto import DataProto

VALIDATION_BATCH = 256


class PromptDataModule(L.LightningDataModule):
    """Serves prompts; which ones is a function of (seed, number of the draw) alone.

    Attributes:
        drawn: training draws consumed so far; the whole position, kept in checkpoints.
        steps: training steps of the run.
    """

    def __init__(self, config: Config, tokenizer: Any, say: Callable[[str], None] = lambda text: None) -> None:
        super().__init__()
        self.config = config
        self.train_set: PromptSet = load_prompts(config.data.train, "data.train", config.data, tokenizer, say)
        self.val_set = (
            load_prompts(config.data.val, "data.val", config.data, tokenizer, say) if config.data.val else None
        )
        self.drawn = 0
        self.steps = self._steps(say)

    def _steps(self, say: Callable[[str], None]) -> int:
        """Return the number of training steps and say what an epoch drops."""
        rows, per_step = len(self.train_set), self.config.data.prompts_per_step
        if rows < per_step:
            raise ConfigError(
                f"data.prompts_per_step={per_step} is more than the {rows} training prompts: lower it or bring more"
            )
        per_epoch, left = divmod(rows, per_step)
        steps = self.config.trainer.steps or per_epoch * self.config.trainer.epochs
        if left and steps >= per_epoch:
            say(
                f"data.train: {left} of {rows} prompts are dropped at each epoch's end (not a whole step of {per_step})"
            )
        return steps

    @property
    def epoch(self) -> int:
        """Whole passes over the training prompts that have been drawn."""
        return self.drawn // (len(self.train_set) // self.config.data.prompts_per_step)

    def draw(self, number: int) -> DataProto:
        """Return the prompt rows of the `number`-th draw after the next one, for this rank."""
        positions = self.sampler(0).positions(self.drawn + number)
        return collate([self.train_set[position] for position in positions])

    def sampler(self, start: int) -> PromptSampler:
        """Return the training sampler from draw `start` on, for this rank.

        With algorithm.filter_groups a step may take several draws, so the next one is looked up as each step begins.
        """
        ranks = ranks_of(self.trainer) if self.trainer else None
        done: Any = self.trainer.lightning_module.step if self.trainer else start
        return PromptSampler(
            len(self.train_set),
            self.config.data.prompts_per_step,
            start + self.steps - done,
            self._order(),
            start=start,
            rank=ranks.rank if ranks else 0,
            ranks=ranks.size if ranks else 1,
            position=(lambda: self.drawn) if self.config.algorithm.filter_groups else None,
        )

    def _order(self) -> Order:
        """Return the order of every epoch: the user's `data.order` if there is one, else as `data.shuffle` says."""
        rows, data = len(self.train_set), self.config.data
        if data.order is None:
            return shuffled(rows, self.config.seed) if data.shuffle else in_order(rows)
        own = resolve(data.order)
        return lambda epoch: own(self.train_set.prompts, epoch, self.config.seed)

    def train_dataloader(self) -> DataLoader:
        """Yield one batch of prompt rows per step, from where the run stands; ahead of time only if that is known."""
        workers = 0 if self.config.algorithm.filter_groups else self.config.data.workers
        return DataLoader(
            self.train_set,
            batch_sampler=self.sampler(self.drawn),
            collate_fn=collate,
            num_workers=workers,
            persistent_workers=workers > 0,
        )

    def val_dataloader(self) -> DataLoader | list:
        """Yield every validation row exactly once over all ranks, in equally many batches; a rank's may be empty."""
        if self.val_set is None:
            return []
        ranks = ranks_of(self.trainer) if self.trainer else Ranks()
        batches = validation_batches(len(self.val_set), ranks.rank, ranks.size)
        return DataLoader(self.val_set, batch_sampler=batches, collate_fn=collate)


def validation_batches(rows: int, rank: int, ranks: int, size: int = VALIDATION_BATCH) -> list[list[int]]:
    """Return this rank's positions in a validation set, batch by batch; the ranks have equally many batches."""
    mine = list(range(rank, rows, ranks))
    return [mine[start : start + size] for start in range(0, -(-rows // ranks), size)]


def collate(prompts: list[Prompt]) -> DataProto:
    """Join prompts into a batch of prompt rows."""
    columns = ("raw_prompt", "raw_prompt_ids", "data_source", "reward_model", "extra_info")
    return DataProto.from_dict(
        tensors={"dataset_index": torch.tensor([p.index for p in prompts], dtype=torch.int64)},
        non_tensors={name: as_column([getattr(p, name) for p in prompts]) for name in columns},
    )


def assign_uids(batch: DataProto, draw: str, places: Tensor) -> None:
    """Give every prompt draw a name: the same prompt drawn twice is two groups.

    Args:
        batch: prompt rows.
        draw: name of the draw, unique in the run.
        places: (B,) of the prompts in the draw over all ranks.
    """
    names = [
        f"{draw}-{place}-{index}"
        for place, index in zip(places.tolist(), batch.batch["dataset_index"].tolist(), strict=True)
    ]
    batch.non_tensor_batch["uid"] = np.array(names, dtype=object)


def with_samples(batch: DataProto, samples: int, places: Tensor) -> DataProto:
    """Repeat every prompt row `samples` times, side by side, and number samples and, by `places` (B,), rows."""
    repeated = batch.repeat(samples, interleave=True)
    repeated.batch["sample_index"] = torch.arange(samples).repeat(len(batch))
    repeated.batch["global_row"] = places.repeat_interleave(samples) * samples + repeated.batch["sample_index"]
    return repeated
