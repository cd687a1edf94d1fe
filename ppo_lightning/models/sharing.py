"""Decide whether rows are packed and prompts are computed once for all their rollouts."""

from torch import nn

from ppo_lightning.config.schema import Config
from ppo_lightning.models.packing import can_pack


def sharing_of(config: Config, actor: nn.Module, critic: nn.Module | None) -> bool:
    """Tell whether sharing is wanted and both models give the same states packed."""
    models = [actor] if critic is None else [actor, critic]
    return config.update.share_prompts and all(can_pack(model) for model in models)
