"""reward-check: gold answers must score full marks; given responses are shown with what was read from them."""

import json
import os
from pathlib import Path

import pytest

from ppo_lightning.config.schema import DataConfig, RewardConfig
from ppo_lightning.errors import DataError, RewardError
from ppo_lightning.rewards.check import Gold, check_gold, check_responses, gold_sample, read_responses
from ppo_lightning.rewards.check_text import render
from ppo_lightning.rewards.golds import read_golds
from ppo_lightning.rewards.pool import RewardPool
from ppo_lightning.rewards.scorers.reasoning_gym import reasoning_gym
from ppo_lightning.rewards.self_test import self_test

VERL = str(Path(__file__).parent / "files" / "verl_reward.py")
GOLDS = [
    Gold("openai/gsm8k", "1,234", {"answer": "1,200 + 34 = <<1200+34=1234>>1,234\n#### 1,234"}),
    Gold("openai/gsm8k", "-5"),
    Gold("arithmetic", "11"),
    Gold("reasoning_gym/chain_sum", "-4"),
]


def pool_of(**options):
    return RewardPool(RewardConfig(**{"workers": 1, **options}))


def test_gold_answers_are_written_the_way_their_scorer_reads():
    assert gold_sample(0, GOLDS[0], "gsm8k").solution_str.endswith("#### 1,234")
    assert gold_sample(0, GOLDS[1], "gsm8k").solution_str == "#### -5"
    assert gold_sample(0, Gold("math", "\\frac12"), "math").solution_str == "\\boxed{\\frac12}"
    assert gold_sample(0, GOLDS[3], "reasoning_gym").solution_str == "<answer>-4</answer>"
    assert gold_sample(0, Gold("mine", "5"), None).solution_str == "5"


def test_a_bare_answer_under_answer_is_no_full_solution():
    assert gold_sample(0, Gold("math", "\\frac12", {"answer": "\\frac12"}), "math").solution_str == "\\boxed{\\frac12}"


def test_golds_of_a_data_spec_are_read_as_a_run_reads_them(tmp_path):
    """GSM8K's `#### 1,234` loses its comma; a task that names no right answer gives none; a bad row is an error."""
    said = []
    file = write(
        tmp_path / "gsm8k.jsonl", {"question": "a", "answer": "so\n#### 1,234"}, {"question": "", "answer": "1"}
    )
    with pytest.raises(DataError, match=r"1 bad rows \(first: row 2: `question` must be text"):
        read_golds(str(file), "data.train", DataConfig())
    (gold,) = read_golds(str(file), "data.train", DataConfig(bad_rows="skip", prompt_suffix="!"), said.append)
    assert (gold.data_source, gold.ground_truth) == ("openai/gsm8k", "1234")
    assert gold.prompt == [{"role": "user", "content": "a!"}]
    assert gold_sample(0, gold, "gsm8k").solution_str == "so\n#### 1,234"
    assert said[-1].endswith("1 bad rows")
    assert read_golds(str(file), "data.train", DataConfig(max_train_rows=1))[0].ground_truth == "1234"
    pytest.importorskip("reasoning_gym")
    assert read_golds("reasoning_gym/rush_hour:rows=2", "data.val", DataConfig(), said.append) == []
    assert said[-1].endswith("2 without one right answer")


@pytest.mark.parametrize("task", ["gsm_symbolic", "chain_sum", "word_ladder", "countdown"])
def test_generated_problems_bring_what_their_scorers_need(task):
    """word_ladder and countdown are scored by the task's own rule, which reads the metadata: without it, it fails."""
    pytest.importorskip("reasoning_gym")
    golds = read_golds(f"reasoning_gym/{task}:rows=4,seed=3", "data.train", DataConfig())
    assert all(gold.extra_info["metadata"] for gold in golds)

    def score(gold, extra_info):
        return reasoning_gym(gold_sample(0, gold, "reasoning_gym").solution_str, gold.ground_truth, source, extra_info)

    source = f"reasoning_gym/{task}"
    assert [score(gold, gold.extra_info)["score"] for gold in golds] == [1.0] * 4
    if task == "word_ladder":
        with pytest.raises(KeyError):
            score(golds[0], {})
    if task == "countdown":
        assert score(golds[0], {})["score"] < 1.0


def test_gold_scores_full_marks_and_says_so():
    with pool_of(parts=[{"scorer": "repetition", "weight": 0.1}]) as pool:
        report = check_gold(pool, GOLDS)
    text = "\n".join(render(report))
    assert report.exit_code == 0
    assert "gold answers: 4 of 4 score 1: full marks" in text
    assert "task: 4 scored, mean 1" in text
    assert "faults: none" in text
    assert "1234" in text


def test_a_reward_that_misses_gold_exits_with_1_and_shows_the_row():
    """verl's strict rule compares text: it misses `1,234` against a ground truth with the comma in it."""
    with pool_of(scorer="gsm8k_strict") as pool:
        report = check_gold(pool, GOLDS[:2])
    text = "\n".join(render(report))
    assert report.exit_code == 1
    assert "gold answers: 1 of 2 score 1: NOT full marks" in text
    assert "1,234" in text


def test_faults_are_counted_by_kind_and_shown():
    with pool_of(path=VERL, name="wrong_signature") as pool:
        report = check_gold(pool, GOLDS[:2])
    text = "\n".join(render(report))
    assert report.exit_code == 1
    assert "faults: 2 exception" in text
    assert "no known reward signature" in text


def write(path, *entries):
    path.write_text("".join(f"{json.dumps(entry)}\n" for entry in entries))
    return path


def test_responses_from_a_file_and_from_a_recorded_run(tmp_path):
    write(
        tmp_path / "step_1.jsonl",
        {"response": "#### 5", "ground_truth": "5", "data_source": "openai/gsm8k", "score": 1.0},
        {"completion": "#### 6", "reward_model": {"ground_truth": "5"}, "data_source": "openai/gsm8k", "score": 1.0},
    )
    write(tmp_path / "step_2.jsonl", {"response": "5", "ground_truth": "5", "data_source": "openai/gsm8k"})
    samples, recorded = read_responses(tmp_path)
    with pool_of() as pool:
        report = check_responses(pool, samples, recorded)
    assert [row.scored.score for row in report.rows] == [1.0, 0.0, 1.0]
    assert [row.differs for row in report.rows] == [False, True, False]
    assert report.exit_code == 1
    text = "\n".join(render(report))
    assert "recorded score 1" in text
    assert "1 recorded scores differ" in text
    assert "gold answers" not in text


def test_rollouts_of_a_run_are_read_as_they_are(tmp_path):
    """verl's keys; other files of the run are left alone; a fault has no recorded score; a penalty is no part of it."""
    (tmp_path / "rollouts").mkdir()
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n')
    row = {"input": [{"role": "user", "content": "q"}], "gts": "5", "data_source": "arithmetic", "extra_info": {"a": 1}}
    write(
        tmp_path / "rollouts" / "step_000001.jsonl",
        {**row, "output": "5\u2028", "score": 1.0},
        {**row, "output": "6", "score": -0.5, "overlong_reward": -0.5},
        {**row, "output": "7", "score": -1.0, "reward_fault": "timeout"},
    )
    samples, recorded = read_responses(tmp_path)
    assert [sample.solution_str for sample in samples] == ["5\u2028", "6", "7"]
    assert {sample.ground_truth for sample in samples} == {"5"}
    assert samples[0].prompt == row["input"]
    assert samples[0].extra_info == {"a": 1}
    assert recorded == [1.0, 0.0, None]
    with pool_of() as pool:
        assert check_responses(pool, samples, recorded).exit_code == 0


def test_the_data_source_may_come_from_the_configuration(tmp_path):
    file = write(tmp_path / "a.jsonl", {"response": "5", "answer": "5"})
    samples, _ = read_responses(file, "arithmetic")
    assert (samples[0].data_source, samples[0].ground_truth) == ("arithmetic", "5")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", r"a.jsonl:1 must be a JSON object"),
        ("[1]", r"a.jsonl:1 must be a JSON object - got list"),
        ('{"data_source": "x"}', r"a.jsonl:1 needs a response \(response, solution_str, completion, output\)"),
        ('{"response": "5"}', r"a.jsonl:1 needs data_source"),
    ],
)
def test_bad_lines_are_errors_with_file_and_line(tmp_path, line, message):
    (tmp_path / "a.jsonl").write_text(line)
    with pytest.raises(DataError, match=message):
        read_responses(tmp_path / "a.jsonl")


def test_a_missing_file_is_an_error(tmp_path):
    with pytest.raises(DataError, match="needs a JSONL file"):
        read_responses(tmp_path / "none.jsonl")


def test_long_reports_are_cut_but_what_needs_attention_comes_first():
    golds = [Gold("openai/gsm8k", str(number)) for number in range(50)]
    golds[40] = Gold("openai/gsm8k", "7", {"answer": "so 8\n#### 8"})
    with pool_of() as pool:
        lines = render(check_gold(pool, golds), shown=5)
    assert lines[1].split()[0] == "40"
    assert "... 45 more" in "\n".join(lines)


def test_the_self_test_passes_fails_and_forgives_functions_of_ones_own():
    with pool_of() as pool:
        assert "gold answers: 4 of 4" in "\n".join(self_test(pool, GOLDS))
    with (
        pool_of(scorer="gsm8k_strict") as pool,
        pytest.raises(RewardError, match="fails its self-test on gold answers"),
    ):
        self_test(pool, GOLDS[:1])
    with pool_of(path=VERL, name="judge") as pool:
        assert "NOT full marks" in "\n".join(self_test(pool, GOLDS[1:2]))


@pytest.mark.slow
def test_all_8792_gold_answers_of_gsm8k_through_the_check():
    root = Path(__file__).parents[3].parent / "shared" / "data" / "gsm8k"
    folder = Path(os.environ.get("PPO_LIGHTNING_GSM8K", root))
    if not (folder / "train.jsonl").is_file():
        pytest.skip("GSM8K is not here: set PPO_LIGHTNING_GSM8K to a folder with train.jsonl and test.jsonl")
    lines = [line for name in ("train", "test") for line in (folder / f"{name}.jsonl").read_text().splitlines()]
    answers = [json.loads(line)["answer"] for line in lines]
    golds = [Gold("openai/gsm8k", answer.rpartition("####")[2].strip(), {"answer": answer}) for answer in answers]
    with pool_of(workers=2) as pool:
        report = check_gold(pool, golds)
    assert len(report.rows) == 8792
    assert report.full == 8792
    assert report.exit_code == 0
