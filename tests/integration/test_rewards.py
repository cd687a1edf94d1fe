"""Rewards through a whole run: who scores and when, faults, functions of one's own, overlap with generation."""

import importlib.util
import json
import os
from pathlib import Path

import lightning as L
import pytest
import torch
from small_models import save_small
from transformers import LlamaForSequenceClassification

from ppo_lightning.cli import main
from ppo_lightning.errors import RewardError
from ppo_lightning.rewards.chat import render
from ppo_lightning.rewards.process import marked
from ppo_lightning.rewards.reward_model import LocalModel
from ppo_lightning.rewards.sample import Sample
from ppo_lightning.rewards.streaming import HELD

HERE = Path(__file__).parent / "files" / "rewards.py"
UNIT = Path(__file__).parents[1] / "unit" / "rewards" / "files"
SHORT = [
    "algorithm.adv_estimator=grpo",
    "update.sequences_per_minibatch=null",
    "data.prompts_per_step=2",
    "trainer.steps=1",
    "checkpoint.every_steps=0",
]
ONCE = [*SHORT, "data.val=null"]


def function(path, name):
    """Import a function of a file, to repeat what the workers did."""
    spec = importlib.util.spec_from_file_location("repeated", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, name)


def rows_of(folder, name="step_000001"):
    """Return the rows of a rollout dump."""
    return [json.loads(line) for line in (folder / "rollouts" / f"{name}.jsonl").read_text().split("\n") if line]


@pytest.fixture(scope="session")
def judge_model(real_model, tmp_path_factory):
    """Folder of a random sequence-classification model with one output."""
    shape = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    changes = shape | {"num_labels": 1, "initializer_range": 0.5}
    return save_small(tmp_path_factory.mktemp("judge"), real_model, LlamaForSequenceClassification, seed=1, **changes)


class AfterRollout(L.Callback):
    """Looks at the batch between the rollout and the score stage, and may put scores in, as one who uses it again."""

    def __init__(self, scores=None):
        self.scores, self.seen = scores, []

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        self.seen.append(("rm_scores" in batch.tensors(), HELD in batch.non_tensor_batch))
        if self.scores is not None:
            written = torch.zeros_like(batch.batch["rollout_log_probs"])
            written[:, 0] = self.scores
            batch.batch["rm_scores"] = written


RULE = [f"reward.path={HERE}"]
CELLS = {
    # (reward model, own resources, rule, scores are there): ((scores, held outcomes) after the rollout, who counts)
    (False, False, True, False): ((True, False), "rule"),
    (False, False, True, True): ((True, False), "given"),
    (True, False, False, False): ((False, False), "model"),
    (True, False, False, True): ((False, False), "given"),
    (True, False, True, False): ((False, False), "both"),
    (True, False, True, True): ((False, False), "given"),
    (True, True, False, False): ((False, False), "model"),
    (True, True, False, True): ((False, False), "given"),
    (True, True, True, False): ((False, True), "both"),
    (True, True, True, True): ((False, True), "given"),
}


@pytest.mark.parametrize(("cell", "expected"), CELLS.items(), ids=lambda value: str(value).replace(" ", ""))
def test_who_scores_and_when(run, lines, judge_model, cell, expected):
    """SPEC 2.12 and 2.13 in every cell: with what the batch holds after the rollout, and whose score is trained on."""
    model, own, rule, given = cell
    between, who = expected
    options = [f"reward.model_path={judge_model}"] if model else []
    options += [f"reward.model_own_resources={own}"] if own else []
    watch = AfterRollout(7.0 if given else None)
    _, folder, record = run(*ONCE, *options, *(RULE if rule else []), callbacks=[watch])
    assert watch.seen == [between]
    rows = rows_of(folder)
    texts = [row["output"] for row in rows]
    judge = LocalModel(judge_model)
    alone = [judge.score([Sample(0, "", row["output"], prompt=row["input"])])[0] for row in rows]
    wanted = {
        "rule": [float(len(text)) for text in texts],
        "model": alone,
        "both": [len(text) + score for text, score in zip(texts, alone, strict=True)],
        "given": [7.0] * len(rows),
    }[who]
    assert [row["score"] for row in rows] == pytest.approx(wanted, abs=1e-5)
    assert record.batches[0].batch["token_level_scores"].sum(-1).tolist() == pytest.approx(wanted, abs=1e-5)
    assert HELD not in record.batches[0].non_tensor_batch
    metrics = lines(folder)[0]
    assert ("reward/rm_score/mean" in metrics) == (who in ("model", "both"))
    assert ("reward/acc/mean" in metrics) == (who in ("rule", "both") or (rule and not model))
    if who != "given":
        assert metrics["reward/exception"] == 0


def test_validation_is_scored_by_the_reward_model_too(run, lines, judge_model):
    _, folder, _ = run(*SHORT, f"reward.model_path={judge_model}", "data.max_val_rows=2")
    judge = LocalModel(judge_model)
    rows = rows_of(folder, "validation_000001")
    alone = [judge.score([Sample(0, "", row["output"], prompt=row["input"])])[0] for row in rows]
    assert [row["score"] for row in rows] == pytest.approx(alone, abs=1e-5)
    last = lines(folder)[-1]
    assert last["val-core/arithmetic/reward/mean@1"] == pytest.approx(sum(alone) / 2, abs=1e-5)
    assert "Answer with the number only" in render(judge.tokenizer, Sample(0, "", "", prompt=rows[0]["input"]))


def workers_alive():
    """Return the reward workers of this process that live, and what they forked."""
    return set(marked(f"{os.getpid()}-"))


FRAGILE = [f"reward.path={HERE}", "reward.name=fragile", "rollout.rollouts_per_prompt=8"]


def test_dropped_samples_weigh_nothing_and_are_counted(run, lines, capsys):
    """Their kind and traceback are in the dump; score, advantage and column metrics are those of the others."""
    before = workers_alive()
    _, folder, record = run(*ONCE, *FRAGILE, "reward.on_error=drop", "data.prompts_per_step=4")
    rows = rows_of(folder)
    size = function(HERE, "size")
    failed = [size(row["output"]) % 3 == 0 for row in rows]
    assert 2 <= sum(failed) <= 30
    for row, fails in zip(rows, failed, strict=True):
        assert row.get("reward_fault") == ("exception" if fails else None)
        assert ("ValueError: cannot read" in row.get("reward_detail", "")) == fails
        assert row["score"] == (None if fails else len(row["output"]))
    batch = record.batches[0]
    assert (batch.batch["response_mask"].sum(-1) == 0).tolist() == failed
    for uid in {row["uid"] for row in rows}:
        group = [row for row in rows if row["uid"] == uid]
        scores = torch.tensor([row["score"] for row in group if row["score"] is not None])
        spread = scores.std() if len(scores) > 1 else torch.tensor(1.0)
        for row in group:
            lone = row["score"] is None or len(scores) < 2
            wanted = 0.0 if lone else float((row["score"] - scores.mean()) / (spread + 1e-6))
            assert row["advantage"] == pytest.approx(wanted, abs=1e-4)
    metrics = lines(folder)[0]
    kept = [row for row, fails in zip(rows, failed, strict=True) if not fails]
    assert metrics["reward/exception"] == sum(failed)
    assert metrics["reward/timeout"] == 0
    assert metrics["critic/score/mean"] == pytest.approx(sum(row["score"] for row in kept) / len(kept))
    assert metrics["critic/score/min"] == min(row["score"] for row in kept)
    assert metrics["reward/even/mean"] == pytest.approx(sum(row["even"] for row in kept) / len(kept))
    assert workers_alive() <= before

    capsys.readouterr()
    assert main(["reward-check", "--config", str(folder / "config.yaml"), str(folder)]) == 1
    told = capsys.readouterr().out
    assert f"faults: {sum(failed)} exception" in told
    assert "recorded" not in told


def test_a_run_that_stops_says_why_and_leaves_no_process(run):
    before = workers_alive()
    with pytest.raises(RewardError, match=r"(?s)of 32 samples of this step could not be scored.*cannot read"):
        run(*ONCE, *FRAGILE, "data.prompts_per_step=4", "reward.max_error_share=0.01")
    assert workers_alive() <= before


def expected_scores(path, name, rows):
    """Repeat a function of a user's file on the rows of a dump."""
    call = function(path, name)
    if name == "accuracy_reward":
        chats = [[{"role": "assistant", "content": row["output"]}] for row in rows]
        return call([row["input"] for row in rows], chats, [row["extra_info"]["answer"] for row in rows])
    if name == "compute_score_async":
        call = function(path, "compute_score")
    values = [call("arithmetic", row["output"], row["gts"], row["extra_info"]) for row in rows]
    return [value["score"] if isinstance(value, dict) else value for value in values]


@pytest.mark.parametrize(
    ("path", "name", "said"),
    [
        (UNIT / "verl_reward.py", "compute_score", "sync, one sample per call (verl)"),
        (UNIT / "verl_reward.py", "compute_score_dict", "sync, one sample per call (verl)"),
        (UNIT / "verl_reward.py", "compute_score_async", "async, one sample per call (verl)"),
        (UNIT / "trl_reward.py", "accuracy_reward", "sync, a whole batch per call (TRL)"),
    ],
)
def test_files_of_users_run_unmodified(run, lines, capsys, path, name, said):
    import hashlib

    _, folder, _ = run(*ONCE, f"reward.path={path}", f"reward.name={name}", "rollout.response_tokens=32")
    told = capsys.readouterr().out
    assert f"{path}:{name}(" in told
    assert said in told
    assert hashlib.sha256(path.read_bytes()).hexdigest() in told
    rows = rows_of(folder)
    assert [row["score"] for row in rows] == expected_scores(path, name, rows)
    metrics = lines(folder)[0]
    assert metrics["reward/acc/mean"] == pytest.approx(sum(float(row["acc"]) for row in rows) / len(rows))
    if name == "compute_score_dict":
        assert rows[0]["source"] == "arithmetic"
        assert "reward/source/mean" not in metrics
    assert main(["reward-check", "--config", str(folder / "config.yaml"), str(folder)]) == 0


def test_extra_columns_have_counts_of_their_own_and_hide_nothing(run, lines):
    """`long` is averaged over the rows that have it; a column named like a field of the batch gets a prefix."""
    _, folder, record = run(*ONCE, f"reward.path={HERE}", "reward.name=sparse")
    rows = rows_of(folder)
    having = [row["long"] for row in rows if "long" in row]
    assert 0 < len(having) < len(rows)
    metrics = lines(folder)[0]
    assert metrics["reward/long/mean"] == pytest.approx(sum(having) / len(having))
    assert metrics["reward/long/max"] == max(having)
    assert metrics["reward/reward_values/mean"] == 3.0
    assert len({row["uid"] for row in rows}) == 2
    assert [row["reward_uid"] for row in rows] == [7] * len(rows)
    assert "values" not in record.batches[0].non_tensor_batch


def test_slow_rewards_overlap_with_generation(run, lines):
    """16 rewards of 0.5 s on 2 workers are 4 s; they are handed in two at a time while 8 batches are generated.

    Together the two take as long as the longer of them, and the last two rewards (0.5 s). One after the other they
    would take the sum.
    """
    _, folder, _ = run(
        *ONCE,
        f"reward.path={HERE}",
        "reward.name=slow",
        "reward.workers=2",
        "rollout.rollouts_per_prompt=8",
        "rollout.sequences_per_batch=2",
        "rollout.response_tokens=64",
        "rollout.ignore_eos=true",
    )
    metrics = lines(folder)[0]
    generating, waiting = metrics["timing_s/gen"], metrics["timing_s/reward"]
    scoring = metrics["timing_s/reward_busy"] / 2
    assert scoring >= 4.0
    assert generating > 1.5, "too little was generated to overlap with"
    assert generating + waiting < max(generating, scoring) + 1.0


def test_fit_tries_gold_answers_before_it_trains(tmp_path, tiny_model, capsys):
    """verl's strict rule misses `1,234` against a ground truth with the comma in it."""
    data = tmp_path / "rows.jsonl"
    data.write_text("".join(json.dumps({"question": f"q{i}", "answer": f"{i},234"}) + "\n" for i in range(1, 9)))
    given = [f"data.train={data}", "data.val=null", f"model.path={tiny_model}", f"output_dir={tmp_path}"]
    assert main(["fit", "--config", "quickstart", *given, "reward.scorer=gsm8k_strict"]) == 2
    told = capsys.readouterr().err
    assert "the reward fails its self-test on gold answers" in told
    assert "0 of 8 score 1: NOT full marks" in told
    assert "Traceback" not in told


def test_reward_check_on_gold_needs_no_model(tmp_path, capsys):
    data = tmp_path / "rows.jsonl"
    data.write_text('{"question": "a", "answer": "1,234"}\n{"question": "b", "answer": "5"}\n')
    given = ["reward-check", "--config", "quickstart", f"data.train={data}", "data.val=null", "model.path=none"]
    assert main([*given, "reward.scorer=numeric"]) == 0
    assert "gold answers: 2 of 2 score 1: full marks" in capsys.readouterr().out
    assert main([*given, "reward.scorer=gsm8k_strict"]) == 1
    assert "gold answers: 1 of 2 score 1: NOT full marks" in capsys.readouterr().out
