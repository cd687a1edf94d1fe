"""What repeating a batch copies: objects that can change, and no others."""

import pytest

from ppo_lightning.protocol.data_proto import DataProto


@pytest.mark.parametrize(
    ("objects", "copied"),
    [
        (["a", 1, 2.5, None, True, b"x"], False),
        ([("a", 1), (None,), ()], False),
        ([[1, "a"], []], True),
        ([{"index": 1}, {}], True),
        ([{"index": 1}, [2]], True),
        ([{"parts": [1]}, {"parts": []}], True),
        ([([1], 2), ("a",)], True),
        (["a", {"index": 1}], True),
    ],
)
def test_only_what_can_change_is_copied(objects, copied):
    repeated = DataProto.from_dict(None, {"column": objects}).repeat(2).non_tensor_batch["column"]
    assert repeated.tolist() == [value for value in objects for _ in range(2)]
    shared = [first is second for first, second in zip(repeated[::2], repeated[1::2], strict=True)]
    assert any(not same for same in shared) == copied
    for value in repeated:
        inner = value if isinstance(value, list) else value[0] if isinstance(value, tuple) and value else value
        inner = inner.get("parts") if isinstance(inner, dict) else inner
        if isinstance(inner, list):
            inner.append("changed")
    marks = sum(str(value).count("changed") for value in repeated)
    lists = sum(isinstance(part, list) for value in objects for part in _parts(value)) * 2
    assert marks == lists, "each list was changed once, and no other row saw it"


def test_messages_of_a_repeated_prompt_are_copied_too():
    prompts = [[{"role": "user", "content": "1 + 1"}], [{"role": "user", "content": "2 + 2"}]]
    repeated = DataProto.from_dict(None, {"raw_prompt": prompts}).repeat(2).non_tensor_batch["raw_prompt"]
    repeated[0][0]["content"] = "changed"
    assert [messages[0]["content"] for messages in repeated] == ["changed", "1 + 1", "2 + 2", "2 + 2"]
    assert prompts[0][0]["content"] == "1 + 1"


def _parts(value):
    return [value, *value] if isinstance(value, tuple) else [value, *value.values()] if type(value) is dict else [value]
