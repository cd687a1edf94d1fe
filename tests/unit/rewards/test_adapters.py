"""verl and TRL files run unmodified: signature, arguments, results."""

import hashlib
from pathlib import Path

import pytest

from ppo_lightning.config.schema import RewardConfig
from ppo_lightning.errors import RewardError
from ppo_lightning.rewards import adapters
from ppo_lightning.rewards.pool import RewardPool
from ppo_lightning.rewards.sample import Sample

FILES = Path(__file__).parent / "files"
VERL, TRL = str(FILES / "verl_reward.py"), str(FILES / "trl_reward.py")


def run(path, name, samples, **options):
    with RewardPool(RewardConfig(path=path, name=name, workers=1, options=options)) as pool:
        return pool.score(samples)


def sample(row, text, truth, **extra):
    return Sample(row, "maths", text, truth, extra or None, [{"role": "user", "content": "What?"}])


PAIR = [sample(0, "it is 5", "5"), sample(1, "it is 6", "5")]


def test_verl_function_with_a_float_gives_score_and_acc():
    scored = run(VERL, "compute_score", PAIR)
    assert [item.score for item in scored] == [1.0, 0.0]
    assert [item.extra for item in scored] == [{"acc": 1.0}, {"acc": 0.0}]


def test_verl_function_with_a_dict_makes_every_key_a_column_and_absent_keys_stay_absent():
    scored = run(VERL, "compute_score_dict", [sample(0, "5", "5", split="train"), PAIR[1]], bonus=0.5)
    assert [item.score for item in scored] == [1.5, 0.5]
    assert scored[0].extra == {"score": 1.5, "acc": True, "source": "maths", "split": "train"}
    assert "split" not in scored[1].extra


def test_verl_async_function_batch_function_callable_and_open_keywords():
    assert [item.score for item in run(VERL, "compute_score_async", PAIR)] == [1.0, 0.0]
    assert [item.score for item in run(VERL, "compute_score_batch", PAIR)] == [1.0, 0.0]
    assert [item.score for item in run(VERL, "judge", PAIR)] == [0.7, 0.7]
    assert [item.score for item in run(VERL, "keyword_only", PAIR)] == [1.0, 1.0]


def test_trl_functions_get_chats_and_columns():
    samples = [sample(0, "it is 5", "5", answer="5"), sample(1, "<think>a</think><answer>6</answer>", "5", answer="5")]
    assert [item.score for item in run(TRL, "accuracy_reward", samples)] == [1.0, 0.0]
    assert [item.score for item in run(TRL, "format_reward", samples)] == [0.0, 1.0]
    assert [item.score for item in run(TRL, "slow_async", samples)] == [2.0, 2.0]


def test_trl_functions_get_text_when_the_prompt_is_text():
    texts = [Sample(0, "x", "four", None, None, "What?"), Sample(1, "x", "", None, None, "What?")]
    assert [item.score for item in run(TRL, "length_reward", texts)] == [4.0, 0.0]


def test_trl_answer_columns_fall_back_to_the_ground_truth_and_other_columns_must_exist():
    assert [item.score for item in run(TRL, "accuracy_reward", PAIR)] == [1.0, 0.0]
    missing = run(TRL, "needs_column", PAIR)
    assert [item.fault for item in missing] == ["exception", "exception"]
    assert "needs the column 'difficulty'" in missing[0].detail
    assert run(TRL, "needs_column", [sample(0, "a", "5", difficulty=3)])[0].score == 3.0


def test_trl_none_is_a_fault_when_nothing_else_scores_and_too_few_scores_fail_all():
    scored = run(TRL, "math_only", [sample(0, "a", "5", task="math"), sample(1, "a", "5", task="code")])
    assert [item.fault for item in scored] == [None, "none"]
    assert [item.fault for item in run(TRL, "short", PAIR)] == ["too_few", "too_few"]


def test_path_sha256_and_signature_are_said():
    digest = hashlib.sha256(Path(VERL).read_bytes()).hexdigest()
    with RewardPool(RewardConfig(path=VERL, workers=1)) as pool:
        lines = pool.start()
    assert lines == [
        f"{VERL}:compute_score(data_source, solution_str, ground_truth, extra_info=None): "
        f"sync, one sample per call (verl), sha256 {digest}"
    ]
    with RewardPool(RewardConfig(path=TRL, name="slow_async", workers=1)) as pool:
        assert "async, a whole batch per call (TRL)" in pool.start()[0]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (RewardConfig(path="/nowhere/reward.py"), "there is none at /nowhere/reward.py"),
        (RewardConfig(path=VERL, name="compute"), r"has no function 'compute': it has .*compute_score.*reward.name"),
        (
            RewardConfig(path=VERL, name="wrong_signature"),
            r"wrong_signature\(answer, truth\) is no known reward signature",
        ),
        (RewardConfig(path=VERL, options={"bonus": 1}), r"reward.options has bonus, which compute_score does not take"),
        (RewardConfig(scorer="ppo_lightning.nowhere:f"), "No module named 'ppo_lightning.nowhere'"),
    ],
)
def test_a_function_that_cannot_be_used_is_one_message_before_training(config, message):
    with RewardPool(config) as pool, pytest.raises(RewardError, match=message):
        pool.start()


def test_a_function_that_cannot_be_loaded_fails_every_sample_if_start_was_skipped():
    scored = run("/nowhere/reward.py", "f", PAIR)
    assert [item.fault for item in scored] == ["exception", "exception"]


def test_signatures_are_told_apart():
    def verl(data_source, solution_str, ground_truth, extra_info): ...
    def few(solution_str, ground_truth): ...
    def trl(prompts, completions): ...
    def batch(data_sources, solution_strs, ground_truths, extra_infos): ...
    def anything(**kwargs): ...

    styles = [adapters.detect_style(function, "f")[0] for function in (verl, few, trl, batch, anything)]
    assert styles == ["verl", "verl", "trl", "verl_batch", "verl"]
