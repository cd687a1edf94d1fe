"""AdamW with its learning-rate schedule, counted in training steps."""

import math
from typing import Any

import torch
from torch import nn

from ppo_lightning.config.schema import Config
from ppo_lightning.models.master_weights import MasterAdamW


def make_optimizer(model: nn.Module, config: Config, name: str) -> dict[str, Any]:
    """Return what `configure_optimizers` takes for the model of a config section (`actor` or `critic`)."""
    update = config.update
    trained = [p for p in model.parameters() if p.requires_grad]
    small = update.master_weights and any(p.dtype.itemsize < torch.float32.itemsize for p in trained)
    options: dict[str, Any] = {
        "lr": getattr(config, name).lr,
        "betas": (update.betas[0], update.betas[1]),
        "weight_decay": update.weight_decay,
    }
    optimizer = MasterAdamW(trained, **options) if small else torch.optim.AdamW(trained, **options, fused=True)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: lr_factor(step, config))
    return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "name": name}}


def lr_factor(step: int, config: Config) -> float:
    """Return the share of the learning rate in force at training step `step`, counted from 0.

    Warm-up is linear: step k of W has share (k + 1) / W. Afterwards constant, or down to 0 at `trainer.steps`.
    """
    update, total = config.update, config.trainer.steps
    if step < update.lr_warmup_steps:
        return (step + 1) / update.lr_warmup_steps
    if update.lr_schedule == "constant" or total is None:
        return 1.0
    share = min((step - update.lr_warmup_steps) / max(total - update.lr_warmup_steps, 1), 1.0)
    return 1.0 - share if update.lr_schedule == "linear" else 0.5 * (1 + math.cos(math.pi * share))
