"""Small random models with the real tokenizer and chat template, saved as Hugging Face folders."""

import torch
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

SHAPE = {
    "vocab_size": 49152,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "tie_word_embeddings": True,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 2,
    "initializer_range": 0.3,
}


def save_small(folder, real_model, kind=LlamaForCausalLM, seed=0, **changes):
    """Write a model of SHAPE, with changes, and the tokenizer of the real one; return the folder."""
    torch.manual_seed(seed)
    kind(LlamaConfig(**SHAPE | changes)).save_pretrained(folder)
    AutoTokenizer.from_pretrained(real_model).save_pretrained(folder)
    return str(folder)
