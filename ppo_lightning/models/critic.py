"""The value model: a decoder with a linear head that gives one value per response token."""

from typing import Any

from jaxtyping import Float
from torch import Tensor, nn
from transformers import PreTrainedModel

from ppo_lightning.config.schema import Config
from ppo_lightning.models.load import load_causal_lm
from ppo_lightning.models.lora import add_adapter
from ppo_lightning.models.token_log_probs import at_least_float32


class Critic(nn.Module):
    """A causal language model's decoder with a value head that starts at zero, so that first values are 0."""

    def __init__(self, language_model: PreTrainedModel) -> None:
        super().__init__()
        self.decoder = language_model.get_decoder()
        dtype = at_least_float32(next(language_model.parameters()))
        self.head = nn.Linear(language_model.config.hidden_size, 1, bias=False, dtype=dtype)
        nn.init.zeros_(self.head.weight)

    def get_decoder(self) -> nn.Module:
        """Return the decoder, as a transformers model does."""
        return self.decoder

    def values(self, states: Float[Tensor, "N H"]) -> Float[Tensor, "N"]:
        """Return the value at each hidden state (float32; float64 where the model is)."""
        return self.head(states.to(self.head.weight.dtype)).squeeze(-1)


def load_critic(config: Config) -> Critic:
    """Build the critic from `critic.path`, or from the policy's own model; with LoRA an adapter and the head train."""
    model: Any = add_adapter(load_causal_lm(config.model, config.critic.path), config.model)
    return Critic(model)
