import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM


@pytest.fixture
def llama():
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=97,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=True,
        initializer_range=0.2,
    )
    return LlamaForCausalLM(config).eval()


@pytest.fixture
def rows():
    """Six rows of three prompts: ids (6, 11), attention mask, response mask (6, 5); uneven, one without a response."""
    torch.manual_seed(1)
    ids, mask = torch.randint(0, 97, (6, 11)), torch.zeros(6, 11, dtype=torch.int64)
    for row, (prompt, response) in enumerate(zip([4, 4, 4, 6, 6, 1], [5, 0, 3, 1, 5, 2], strict=True)):
        mask[row, 6 - prompt : 6 + response] = 1
    ids[1, :6] = ids[2, :6] = ids[0, :6]
    ids[4, :6] = ids[3, :6]
    return ids, mask, mask[:, 6:].bool()
