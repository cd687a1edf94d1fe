"""Write a random model of 0.5B parameters and questions, where there is no network.

    python -m benchmarks.made MODEL_FOLDER DATA_JSONL [--layers 28]

Text is cut into bytes; what the model samples reads as words of one number each.
"""

import argparse
import json
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

QUESTIONS = 200
VOCABULARY = 49152


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="folder")
    parser.add_argument("data", help="JSONL file")
    parser.add_argument("--layers", type=int, default=28)
    args = parser.parse_args()
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=1024,
        intermediate_size=4096,
        num_hidden_layers=args.layers,
        num_attention_heads=16,
        num_key_value_heads=8,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=1,
        pad_token_id=0,
    )
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(args.model)
    tokenizer(VOCABULARY).save_pretrained(args.model)
    lines = [{"question": f"{row} words " * 10, "answer": f"#### {row}"} for row in range(QUESTIONS)]
    Path(args.data).write_text("".join(json.dumps(line) + "\n" for line in lines))


def tokenizer(size: int = 0) -> PreTrainedTokenizerFast:
    """Return a tokenizer of bytes, filled up to `size` tokens with words, and a chat template of one line a message."""
    tokens = ["<pad>", "<eos>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokens += [f"w{place}" for place in range(len(tokens), size)]
    vocabulary = {token: place for place, token in enumerate(tokens)}
    bytes_ = Tokenizer(models.BPE(vocabulary, []))
    bytes_.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bytes_.decoder = decoders.ByteLevel()
    made = PreTrainedTokenizerFast(tokenizer_object=bytes_, pad_token="<pad>", eos_token="<eos>")
    made.chat_template = "{% for m in messages %}{{ m['content'] }}\n{% endfor %}"
    return made


if __name__ == "__main__":
    main()
