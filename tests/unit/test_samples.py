import pytest
import torch

from ppo_lightning.samples import Pieces, token_values

BYTES = {1: b"ab", 2: b" c", 3: b"\xf0\x9f", 4: b"\x8e", 5: b"\x89", 6: b"\xc3"}


class Tokenizer:
    """Tokens that are bytes, as in byte-level vocabularies: a character may need several."""

    def __init__(self):
        self.calls = 0

    def decode(self, ids, skip_special_tokens=False):
        self.calls += 1
        return b"".join(BYTES[token] for token in ids).decode("utf-8", errors="replace")

    def convert_ids_to_tokens(self, token):
        return BYTES[token].decode("latin-1")


@pytest.mark.parametrize(
    ("ids", "texts"),
    [
        ([1, 2, 1], ["ab", " c", "ab"]),
        ([1, 3, 4, 5, 2], ["ab", "", "", "\N{PARTY POPPER}", " c"]),
        ([1, 6], ["ab", "\N{REPLACEMENT CHARACTER}"]),  # cut off within a character
        ([6, 1], ["", "\N{REPLACEMENT CHARACTER}ab"]),
        ([], []),
    ],
)
def test_pieces_join_to_the_text(ids, texts):
    tokenizer = Tokenizer()
    found = Pieces(tokenizer)(ids)
    assert len(found) == len(ids)
    assert "".join(found) == tokenizer.decode(ids)
    assert found == texts


def test_token_by_token_loses_characters():
    tokenizer = Tokenizer()
    naive = "".join(tokenizer.decode([token]) for token in [3, 4, 5])
    assert naive != tokenizer.decode([3, 4, 5])


def test_a_token_is_decoded_once():
    tokenizer = Tokenizer()
    Pieces(tokenizer)([1, 2] * 1000)
    assert tokenizer.calls == 2


def test_token_values_by_hand():
    tensors = {
        "responses": torch.tensor([[1, 2, 1, 0]]),
        "response_mask": torch.tensor([[1, 0, 1, 0]]),
        "old_log_probs": torch.tensor([[-1.0, -2.0, float("nan"), 0.0]]),
        "rollout_log_probs": torch.tensor([[-1.5, -2.0, -3.0, 0.0]]),
        "advantages": torch.tensor([[0.5, 0.5, -0.25, 9.0]]),
    }
    assert token_values(tensors, 0, 3, Pieces(Tokenizer())) == {
        "text": ["ab", " c", "ab"],
        "log_prob": [-1.0, -2.0, None],
        "gap": [0.5, 0.0, None],
        "advantage": [0.5, 0.5, -0.25],
        "mask": "101",
    }


def test_a_small_gap_is_not_rounded_away():
    tensors = {
        "responses": torch.tensor([[1]]),
        "response_mask": torch.tensor([[1]]),
        "old_log_probs": torch.tensor([[-0.5]]),
        "rollout_log_probs": torch.tensor([[-0.5 - 2**-22]]),
    }
    assert token_values(tensors, 0, 1, Pieces(Tokenizer()))["gap"] == [2.4e-07]
    assert f"{2**-22:.5f}" == "0.00000"


def test_what_is_equal_or_absent_takes_no_room():
    tensors = {
        "responses": torch.tensor([[1, 2]]),
        "response_mask": torch.tensor([[1, 1]]),
        "advantages": torch.tensor([[0.25, 0.25]]),
    }
    assert token_values(tensors, 0, 2, Pieces(Tokenizer())) == {"text": ["ab", " c"], "advantage": 0.25}
    assert token_values(tensors, 0, 0, Pieces(Tokenizer())) == {"text": []}
