"""Several ranks give the numbers of one: losses, weights, metrics, rollouts, dumps; a rank's failure ends all."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from ppo_lightning.config.schema import AGGREGATIONS
from ppo_lightning.stages import STAGES

sys.path.insert(0, str(Path(__file__).parent))
import rank_jobs

LOSSES = ("actor/pg_loss", "actor/loss", "critic/vf_loss")
NOISE = {"rollout_corr/chi2_seq": 2e-5, "training/rollout_probs_diff_max": 1e-5}
"""These measure the rounding between engine and trainer: here nothing else is in them. The first has twice the sum over
a row's tokens."""
BAR = 1e-6
"""What is promised of weights and of every metric; twice that of losses."""
FLOAT64 = 1e-9
"""What is asked for in float64, where a sum in another order differs by 1e-15."""
DTYPES = ("float64", "float32")

PPO = [
    "data.val=arithmetic:rows=5,digits=1,seed=2",
    "validation.every_steps=2",
    "validation.samples_per_prompt=2",
    "validation.temperature=1.0",
    "algorithm.use_kl_in_reward=true",
    "algorithm.kl_ctrl=adaptive",
    "algorithm.kl_horizon=50",
    "actor.entropy_coeff=0.01",
]
GRPO = [
    "algorithm.adv_estimator=grpo",
    "actor.use_kl_loss=true",
    "update.ppo_epochs=2",
    "update.shuffle=true",
    "update.tokens_per_microbatch=80",
    "update.share_prompts=false",
]
DAPO = [
    "algorithm.adv_estimator=grpo",
    "algorithm.filter_groups=true",
    "algorithm.filter_groups_max_batches=3",
    "algorithm.pf_ppo_reweight=pow",
    "actor.policy_loss=clip_cov",
    "reward.name=coarse",
]
CASES = {
    "ppo": [*PPO, "trainer.steps=3"],
    "grpo": [*GRPO, "trainer.steps=2", "update.loss_agg_mode=seq-mean-token-mean"],
    "dapo": [*DAPO, "trainer.steps=2"],
    "control": ["reward.name=long", "trainer.balance_batch=false", "trainer.steps=1"],
}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return rank_jobs.save_small_model(tmp_path_factory.mktemp("small"))


def on_ranks(folder, model, cases, ranks):
    return [rank_jobs.job(folder, model, name, *options, ranks=ranks) for name, options in cases.items()]


def run_on_one_and_two(folder, model, cases, *wrong):
    with rank_jobs.Group([*on_ranks(folder, model, cases, 2), *wrong], folder) as two:
        rank_jobs.do(on_ranks(folder, model, cases, 1))
        two.wait()
    return folder


@pytest.fixture(scope="module")
def runs(model, tmp_path_factory):
    """Folder with runs of CASES on one rank, below 1/, and on two, below 2/."""
    folder = tmp_path_factory.mktemp("ranks")
    wrong = rank_jobs.job(folder, model, "wrong", *CASES["control"], ranks=2, wrong=True)
    options = ["trainer.steps=3", "checkpoint.every_steps=9"]
    ended = rank_jobs.job(folder, model, "ended", *options, ranks=2, terminated=1, code=143)
    pieces = [
        rank_jobs.job(
            folder, model, "pieces", *PPO, "checkpoint.every_steps=1", f"trainer.steps={end}", ranks=2, resume=how
        )
        for end, how in ((2, "never"), (3, "auto"))
    ]
    return run_on_one_and_two(folder, model, CASES, wrong, ended, *pieces)


def apart(folder, name, scaled=True):
    """Compare a run on two ranks with that on one; return the largest differences of losses, other metrics and weights.

    Args:
        folder: with runs on one rank, below 1/, and on two, below 2/.
        name: of the run.
        scaled: whether numbers above 1 are compared relatively.
    """
    one, two = folder / "1" / name, folder / "2" / name
    found = rank_jobs.differences(rank_jobs.lines(one), rank_jobs.lines(two), scaled)
    (single,), (first, second) = rank_jobs.kept(one, 1), rank_jobs.kept(two, 2)
    assert all(torch.equal(value, second["weights"][key]) for key, value in first["weights"].items())
    losses = {key: found.pop(key) for key in LOSSES if key in found}
    return losses, found, rank_jobs.weight_difference(single["weights"], first["weights"])


def dumps(folder):
    return {
        path.name: [json.loads(line) for line in path.read_text().splitlines()]
        for path in sorted((folder / "rollouts").iterdir())
    }


@pytest.mark.parametrize("name", CASES)
def test_pitfalls_2_6_7_10_two_ranks_equal_one(runs, name):
    """Losses, every metric but those of time, and weights, with uneven lengths and several mini-batches per step."""
    losses, metrics, weights = apart(runs, name)
    assert {key: value for key, value in metrics.items() if value > NOISE.get(key, BAR)} == {}
    assert max(losses.values()) <= 2 * BAR
    assert weights <= BAR
    lengths = [row["response_length"] for row in dumps(runs / "2" / name)["step_000001.jsonl"]]
    assert len(set(lengths)) > 3


def test_a_resume_on_two_ranks_changes_nothing(runs):
    """Two steps, an end, and a third: bit for bit the run of three."""
    straight, pieces = runs / "2" / "ppo", runs / "2" / "pieces"
    assert [line["step"] for line in rank_jobs.lines(pieces)] == [0, 1, 2, 3]
    assert set(rank_jobs.differences(rank_jobs.lines(straight), rank_jobs.lines(pieces)).values()) == {0.0}
    for left, right in zip(rank_jobs.kept(straight, 2), rank_jobs.kept(pieces, 2), strict=True):
        assert all(torch.equal(value, right["weights"][name]) for name, value in left["weights"].items())


def test_dividing_by_each_ranks_own_count_is_seen(runs):
    """Negative control: the mean of the ranks' own means is another loss."""
    right, wrong = (rank_jobs.lines(runs / "2" / name)[0] for name in ("control", "wrong"))
    assert abs(right["critic/vf_loss"] - wrong["critic/vf_loss"]) > 1e-2


@pytest.mark.parametrize("name", CASES)
def test_pitfall_13_dumps_hold_every_ranks_rows_in_their_order(runs, name):
    """The same rollouts, scores and names; advantages agree."""
    one, two = dumps(runs / "1" / name), dumps(runs / "2" / name)
    assert one.keys() == two.keys()
    for file, rows in one.items():
        assert [row.pop("advantage", 0.0) for row in rows] == pytest.approx(
            [row.pop("advantage", 0.0) for row in two[file]], abs=1e-5
        )
        for row, other in zip(rows, two[file], strict=True):
            tokens, others = row.pop("tokens", {"text": []}), other.pop("tokens", {"text": []})  # rest: rounded numbers
            assert tokens["text"] == others["text"]
            assert row == other


def test_pitfall_56_validation_rows_come_once(runs):
    """Five rows over two ranks, two samples each: every row twice, in order."""
    for ranks in ("1", "2"):
        rows = dumps(runs / ranks / "ppo")["validation_000000.jsonl"]
        assert [row["extra_info"]["index"] for row in rows] == [row for row in range(5) for _ in (0, 1)]
        assert rank_jobs.lines(runs / ranks / "ppo")[0]["val-aux/arithmetic/num_prompts"] == 5


def test_balancing_moves_groups_and_evens_out_work(runs):
    steps = [line for line in rank_jobs.lines(runs / "2" / "ppo") if line["step"]]
    before = [line["global_seqlen/minmax_diff"] for line in steps]
    after = [line["global_seqlen/balanced_max"] - line["global_seqlen/balanced_min"] for line in steps]
    assert sum(after) < sum(before)
    assert all(line["global_seqlen/mean"] * 2 == line["perf/total_num_tokens"] for line in steps)
    assert not any(key.startswith("global_seqlen") for line in rank_jobs.lines(runs / "1" / "ppo") for key in line)


def test_pitfall_54_ranks_need_not_have_equally_many_micro_batches(runs):
    """A budget of one or two rows cuts the ranks' parts of a mini-batch into different numbers (case grpo)."""
    rows = dumps(runs / "2" / "grpo")["step_000001.jsonl"]
    assert len({row["response_length"] for row in rows}) > 3  # the run ended, and its numbers are those of one rank


def test_collectives_per_step(runs):
    """Few: per optimizer step its gradient, per PPO epoch counts, per stage and mini-batch whether a signal came."""
    for name, optimizer_steps, epochs in (("ppo", 4, 2), ("grpo", 4, 2)):
        calls = rank_jobs.kept(runs / "2" / name, 2)[0]["calls"][0]
        assert calls["all_reduce"] <= 2 * optimizer_steps + epochs + len(STAGES) + 8, calls
        assert calls["all_gather_object"] + calls["gather_object"] <= 6, calls


def test_a_signal_to_one_rank_ends_all_after_the_step(runs):
    """SIGTERM to the second rank in the first step: both return 143 (`code` of the job), and the step is saved."""
    folder = runs / "2" / "ended"
    assert [line["step"] for line in rank_jobs.lines(folder)] == [1]
    assert [path.name for path in (folder / "checkpoints").iterdir()] == ["step_000001"]


TERMS = {"token-sum": 8 * 12, "seq-mean-token-sum": 12}
"""Tokens that a mode adds up without dividing by their number, at most: the size of its losses."""
ROUNDED = 1e-5
"""What 20 steps in float32 may add to a metric, relative to max(1, |value|): weights of size 1 are known to 6e-8, a sum
over the tokens of a response to some 1e-6."""


def twenty_steps(mode, dtype):
    """Return the options of PPO and GRPO by name; in float32 the ranks train on the responses that one rank sampled."""
    ppo = [option for option in PPO if not option.startswith(("data.val", "validation"))]
    grpo = [option for option in GRPO if not option.startswith(("update.tokens", "update.ppo_epochs"))]
    more = ["trainer.steps=20", f"update.loss_agg_mode={mode}", f"model.dtype={dtype}"]
    more += ["rollout.sequences_per_batch=16"]  # in float64 the shapes in which tokens are sampled do not matter
    more += ["rollout.engine=rank_engine:sampled_once"] if dtype == "float32" else []
    return {f"{name}-{dtype}": [*options, *more] for name, options in (("ppo", ppo), ("grpo", grpo))}


@pytest.mark.long
@pytest.mark.parametrize("mode", AGGREGATIONS)
def test_twenty_steps_of_every_aggregation(model, tmp_path, mode):
    """PPO and GRPO: in float64, where rounding hides nothing, no difference is above the bar, nor near it.

    In float32 losses are within a bound that grows with the number of terms, metrics within one that grows with their
    value.
    """
    cases = {name: options for dtype in DTYPES for name, options in twenty_steps(mode, dtype).items()}
    rank_jobs.do(on_ranks(tmp_path, model, cases, 1))
    with rank_jobs.Group(on_ranks(tmp_path, model, cases, 2), tmp_path) as two:
        two.wait(900)
    for name in cases:
        exact = name.endswith("float64")
        losses, metrics, weights = apart(tmp_path, name, scaled=not exact)
        worst = ", ".join(f"{key} {metrics[key]:.1e}" for key in sorted(metrics, key=metrics.get)[:-7:-1])
        print(f"{mode} | {name} | {max(losses.values()):.1e} | {weights:.1e} | {worst}")  # noqa: T201
        assert max(losses.values()) <= 2 * BAR * (1 if exact else TERMS.get(mode, 1))
        assert max(metrics.values()) <= (BAR if exact else ROUNDED)
        assert weights <= BAR
        assert not exact or max(*losses.values(), *metrics.values(), weights) <= FLOAT64


@pytest.mark.long
def test_dividing_by_each_ranks_own_count_is_no_rounding(model, tmp_path):
    """Negative control of the bar: in float64 it is as far off as in float32."""
    options = [*CASES["control"], "model.dtype=float64"]
    wrong = rank_jobs.job(tmp_path, model, "wrong", *options, ranks=2, wrong=True)
    with rank_jobs.Group([*on_ranks(tmp_path, model, {"control": options}, 2), wrong], tmp_path) as two:
        two.wait()
    test_dividing_by_each_ranks_own_count_is_seen(tmp_path)


@pytest.fixture
def start(model, tmp_path):
    """Return a function that runs `python -m ppo_lightning fit` on two ranks, of which it starts the second itself."""

    def go(*overrides):
        options = rank_jobs.job(tmp_path, model, "run", *overrides, ranks=2)["overrides"]
        root = Path(__file__).parents[2]
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join([str(root), str(rank_jobs.FILES)]),
            "RANK_LOSSES_NOTE": str(tmp_path / "note"),
            "OMP_NUM_THREADS": "1",
        }
        command = [sys.executable, "-m", "ppo_lightning", "fit", *options]
        begun = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200, check=False)
        return begun, tmp_path

    return go


def test_a_failing_rank_ends_all_with_its_message(start):
    """The second rank raises within an update: both end soon, exit code 1, and its error is the last thing said.

    The command starts the second rank by itself.
    """
    ended, folder = start("actor.policy_loss=rank_losses:breaks")
    now = time.time()
    assert ended.returncode == 1, ended.stderr
    seconds = now - float((folder / "note").read_text())
    assert seconds < 30
    said = ended.stderr.strip().splitlines()
    assert said[-1] == "ZeroDivisionError: the second rank cannot go on"
    assert "error: rank 1 of 2 failed, and all ranks with it" in said
    assert ended.stderr.count("Traceback") == 1
    assert ended.stdout.count("ppo_lightning") == 1  # one banner: the first rank's
    assert [path.name for path in (folder / "2").iterdir()] == ["run"]
