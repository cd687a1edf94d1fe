"""Route B in process: one text scores the same alone and in any batch; pad, chunk, score, collect, cut."""

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    AutoModelForSequenceClassification,
    BertConfig,
    GPT2Config,
    LlamaConfig,
    PreTrainedTokenizerFast,
)

from ppo_lightning.config.schema import RewardConfig
from ppo_lightning.errors import RewardError
from ppo_lightning.rewards.chat import render
from ppo_lightning.rewards.reward_model import LocalModel, encode, pad, reward_model, score_batch
from ppo_lightning.rewards.sample import Sample

WORDS = (
    *("<pad>", "<eos>", "<u>", "<a>", "what", "is", "two", "plus", "three"),
    *("five", "six", "it", "i", "think", "perhaps", "maybe", "a", "dog"),
)
TEMPLATE = "{% for m in messages %}<{{ m.role[0] }}> {{ m.content }} <eos> {% endfor %}"
SIZES = {"vocab_size": len(WORDS), "num_labels": 1}
CONFIGS = {
    "llama": LlamaConfig(
        **SIZES,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=64,
    ),
    "gpt2": GPT2Config(**SIZES, n_embd=32, n_layer=2, n_head=4, n_positions=64),
    "bert": BertConfig(
        **SIZES,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=64,
    ),
}


def make(folder, kind="llama", side="right", pad_token="<pad>", template=TEMPLATE):
    """Save a reward model with random weights and a word tokenizer; the scores differ clearly from text to text."""
    torch.manual_seed(1)
    words = Tokenizer(models.WordLevel({word: index for index, word in enumerate(WORDS)}, unk_token="<pad>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token=pad_token, eos_token="<eos>", padding_side=side, model_max_length=64
    )
    tokenizer.chat_template = template
    model = AutoModelForSequenceClassification.from_config(CONFIGS[kind])
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.3)
    model.config.pad_token_id = tokenizer.pad_token_id
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def sample(row, prompt, response):
    return Sample(row, "x", response, None, None, [{"role": "user", "content": prompt}])


TEXTS = [
    sample(0, "what is two plus three", "five"),
    sample(1, "what is two", "i think it is perhaps maybe a dog i think"),
    sample(2, "two", ""),
]


@pytest.mark.parametrize("kind", sorted(CONFIGS))
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("pad_token", ["<pad>", "<eos>"])
def test_pitfall_20_one_text_alone_and_in_a_padded_batch_of_three_scores_the_same(tmp_path, kind, side, pad_token):
    """PITFALL 20, also with pad == eos, which every rendered chat ends in."""
    model = LocalModel(make(tmp_path, kind, side, pad_token))
    alone = [model.score([text])[0] for text in TEXTS]
    together = model.score(TEXTS)
    assert together == pytest.approx(alone, abs=1e-5)
    assert max(alone) - min(alone) > 1e-2


def test_pitfall_20_reading_a_left_padded_batch_as_right_padded_is_wrong(tmp_path):
    """Negative control: the score read at index `length - 1` of a left-padded batch is another one."""
    path = make(tmp_path, side="left")
    model = LocalModel(path)
    sequences = [encode(model.tokenizer, text, 64) for text in TEXTS]
    ids, mask = pad(sequences, 0)
    flipped = torch.stack([torch.cat([row[keep == 0], row[keep == 1]]) for row, keep in zip(ids, mask, strict=True)])
    hidden = model.model.model(input_ids=flipped, attention_mask=mask.sort(-1).values).last_hidden_state
    naive = model.model.score(hidden)[torch.arange(3), mask.sum(-1) - 1, 0]
    right = torch.tensor(model.score(TEXTS))
    assert (naive - right).abs().max() > 1e-2


def test_the_score_is_read_at_the_last_token_of_the_chat(tmp_path):
    """Against a slow reference: no padding, logits of every position, the last one; pad == eos == that last token."""
    model = LocalModel(make(tmp_path, pad_token="<eos>"))
    for text, score in zip(TEXTS, model.score(TEXTS), strict=True):
        ids = torch.tensor([encode(model.tokenizer, text, 64)])
        assert ids[0, -1] == WORDS.index("<eos>")
        positions = model.model.score(model.model.model(input_ids=ids).last_hidden_state)[0, :, 0]
        assert score == pytest.approx(float(positions[-1]), abs=1e-5)


def test_the_chat_is_rendered_with_the_reward_models_own_template(tmp_path):
    tokenizer = LocalModel(make(tmp_path)).tokenizer
    assert render(tokenizer, TEXTS[0]) == "<u> what is two plus three <eos> <a> five <eos> "
    assert render(tokenizer, Sample(0, "x", "five", prompt="two")) == "<u> two <eos> <a> five <eos> "
    with pytest.raises(RewardError, match="row 3: a reward model needs the prompt"):
        render(tokenizer, Sample(3, "x", "five"))


def test_without_a_template_the_contents_are_joined(tmp_path):
    tokenizer = LocalModel(make(tmp_path, template=None)).tokenizer
    assert render(tokenizer, TEXTS[0]) == "what is two plus three\nfive"


def test_a_chat_that_is_too_long_loses_its_beginning(tmp_path):
    model = LocalModel(make(tmp_path))
    ids = encode(model.tokenizer, sample(0, "dog " * 200, "five six"), model.limit)
    assert len(ids) == 64
    assert [WORDS[token] for token in ids[-4:]] == ["<a>", "five", "six", "<eos>"]


def many(count):
    return [
        sample(row, "what is two plus three", " ".join(["five", "six", "dog"][: 1 + row % 3] * (row + 1)))
        for row in range(count)
    ]


def test_ten_samples_on_four_workers_equal_one_by_one(tmp_path):
    """10 is padded to 12, cut into 4 chunks of 3, and the two repeats are cut off again."""
    model = LocalModel(make(tmp_path))
    sizes = []

    def worker(chunk):
        sizes.append(len(chunk))
        return model.score(chunk)

    samples = many(10)
    scored = score_batch(samples, [worker] * 4)
    assert sizes == [3, 3, 3, 3]
    assert [item.row for item in scored] == list(range(10))
    assert [item.score for item in scored] == pytest.approx([model.score([one])[0] for one in samples], abs=1e-5)
    assert [item.extra["rm_score"] for item in scored] == [item.score for item in scored]


@pytest.mark.parametrize("count", [0, 1, 3, 4, 5])
def test_any_count_on_four_workers(count):
    scored = score_batch(many(count), [lambda chunk: [float(one.row) for one in chunk]] * 4)
    assert [item.score for item in scored] == [float(row) for row in range(count)]


def test_a_worker_that_fails_or_returns_too_few_fails_its_own_chunk_only():
    def good(chunk):
        return [0.0] * len(chunk)

    def short(chunk):
        return [1.0] * (len(chunk) - 1)

    def broken(chunk):
        raise ConnectionError("gone")

    scored = score_batch(many(6), [good, short, broken])
    assert [item.fault for item in scored] == [None, None, "too_few", "too_few", "exception", "exception"]
    assert [item.score for item in scored] == [0.0, 0.0, None, None, None, None]


def test_a_model_with_several_outputs_or_none_at_all_is_an_error(tmp_path):
    config = LlamaConfig(**{**CONFIGS["llama"].to_dict(), "num_labels": 3})
    AutoModelForSequenceClassification.from_config(config).save_pretrained(tmp_path / "three")
    make(tmp_path / "one")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / "three" / name).write_text((tmp_path / "one" / name).read_text())
    with pytest.raises(RewardError, match="must have one output - it has 3"):
        LocalModel(str(tmp_path / "three"))
    with pytest.raises(RewardError, match=r"reward.model_path=.* cannot be loaded"):
        LocalModel(str(tmp_path / "nowhere"))
    with pytest.raises(RewardError, match="neither is set"):
        reward_model(RewardConfig())
    assert isinstance(reward_model(RewardConfig(model_path=str(tmp_path / "one"))), LocalModel)
