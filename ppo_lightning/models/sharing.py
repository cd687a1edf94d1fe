"""Decide whether rows are packed and prompts are computed once for all their rollouts."""

from torch import nn

from ppo_lightning.config.schema import Config
from ppo_lightning.models.packing import Sharing, can_pack


def sharing_of(config: Config, actor: nn.Module, critic: nn.Module | None) -> Sharing:
    """Return sharing that is on when it is wanted and both models give the same states packed."""
    models = [actor] if critic is None else [actor, critic]
    wanted = config.update.share_prompts
    return Sharing(wanted and all(can_pack(model) for model in models), tokens_per_square(actor))


def tokens_per_square(model: nn.Module) -> float:
    """Return matrix FLOPs per token over attention FLOPs per pair of tokens: 2 weights / (4 hidden layers)."""
    decoder = model.get_decoder()
    config = decoder.config
    weights = sum(p.numel() for p in decoder.parameters()) - decoder.get_input_embeddings().weight.numel()
    return 2 * weights / (4 * config.hidden_size * config.num_hidden_layers)
