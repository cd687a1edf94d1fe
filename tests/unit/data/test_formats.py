import pytest

from ppo_lightning.config.schema import DataConfig
from ppo_lightning.data.formats import QA, TRL, VERL, detect, read_row
from ppo_lightning.errors import DataError

GSM8K = {"question": "How many?", "answer": "2 + 3 = <<2+3=5>>5\n#### 1,005"}


def test_gsm8k_rows():
    example = read_row(GSM8K, QA, DataConfig(), "openai/gsm8k:main@train")
    assert example.chat == [{"role": "user", "content": "How many?"}]
    assert example.ground_truth == "1005"
    assert example.data_source == "openai/gsm8k"
    assert example.extra_info["answer"] == GSM8K["answer"]


def test_gsm8k_is_recognised_in_a_local_file():
    assert read_row(GSM8K, QA, DataConfig(), "my/train.jsonl").data_source == "openai/gsm8k"
    assert (
        read_row({"question": "a", "answer": "5"}, QA, DataConfig(), "my/train.jsonl").data_source == "my/train.jsonl"
    )


def test_verl_rows():
    row = {
        "data_source": "math",
        "prompt": [{"role": "user", "content": "x"}],
        "reward_model": {"style": "rule", "ground_truth": "7"},
        "extra_info": {"split": "train"},
    }
    assert detect(row, DataConfig(), "f") is VERL
    example = read_row(row, VERL, DataConfig(), "f")
    assert (example.ground_truth, example.data_source, example.extra_info) == ("7", "math", {"split": "train"})


def test_trl_rows():
    row = {"prompt": "What?", "solution": "9", "level": 3}
    assert detect(row, DataConfig(), "f") is TRL
    example = read_row(row, TRL, DataConfig(data_source="math"), "f")
    assert example.chat == [{"role": "user", "content": "What?"}]
    assert (example.ground_truth, example.data_source, example.extra_info["level"]) == ("9", "math", 3)


def test_mapping_suffix_system_and_pattern():
    config = DataConfig(
        question_key="q", answer_key="a", prompt_suffix=" Go.", system_prompt="Be brief.", answer_pattern=r"<(\d+)>"
    )
    example = read_row({"q": "x", "a": "<1> then <2>"}, QA, config, "f")
    assert example.chat == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "x Go."}]
    assert example.ground_truth == "2"


@pytest.mark.parametrize(
    ("row", "kind", "says"),
    [
        ({"question": "", "answer": "1"}, QA, "must be text"),
        ({"question": "x"}, QA, "`answer` is missing"),
        ({"prompt": [], "reward_model": {"ground_truth": 1}}, VERL, "not empty"),
        ({"prompt": [{"role": "user"}], "reward_model": {"ground_truth": 1}}, VERL, "role and content"),
        ({"prompt": [{"role": "poet", "content": "x"}], "reward_model": {"ground_truth": 1}}, VERL, "'poet'"),
        ({"prompt": "a\x00b"}, TRL, "NUL"),
        ({"prompt": [{"role": "user", "content": "x"}], "reward_model": {}}, VERL, "ground_truth"),
    ],
)
def test_bad_rows_say_why(row, kind, says):
    with pytest.raises(DataError, match=says):
        read_row(row, kind, DataConfig(), "f")


def test_unknown_columns_say_what_is_needed():
    with pytest.raises(DataError, match=r"frage.*data.question_key"):
        detect(["frage"], DataConfig(), "f")
