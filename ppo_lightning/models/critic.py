"""The value model: a decoder with a linear head that gives one value per response token."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from transformers import PreTrainedModel

from ppo_lightning.config.schema import Config
from ppo_lightning.models.load import load_causal_lm
from ppo_lightning.models.token_log_probs import last_hidden


class Critic(nn.Module):
    """A causal language model's decoder with a value head that starts at zero, so that first values are 0."""

    def __init__(self, language_model: PreTrainedModel) -> None:
        super().__init__()
        self.decoder = language_model.get_decoder()
        self.head = nn.Linear(language_model.config.hidden_size, 1, bias=False)
        nn.init.zeros_(self.head.weight)

    def get_decoder(self) -> nn.Module:
        """Return the decoder, as a transformers model does."""
        return self.decoder

    def values(
        self, input_ids: Int[Tensor, "b S"], attention_mask: Int[Tensor, "b S"], response_mask: Bool[Tensor, "b R"]
    ) -> Float[Tensor, "b R"]:
        """Return the value of the state before each response token (float32), 0 where the mask is 0."""
        hidden = last_hidden(self, input_ids, attention_mask)
        width = response_mask.shape[1]
        values = self.head(hidden[:, -width - 1 : -1].to(self.head.weight.dtype)).squeeze(-1).float()
        return torch.where(response_mask, values, 0.0)


def load_critic(config: Config) -> Critic:
    """Build the critic from `critic.path`, or from the policy's own model."""
    return Critic(load_causal_lm(config.model, config.critic.path))
