"""`fit` with vLLM rollouts, each run in a process of its own: a few steps of the gsm8k recipe, cut small."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import rank_jobs
from engine_rigs import save_model

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed: make vllm"),
]

ROOT = Path(__file__).parents[2]
CUT = [
    "rollout=vllm",
    "data.train=arithmetic:rows=40,digits=1,seed=1",
    "data.val=arithmetic:rows=4,digits=1,seed=2",
    "reward.scorer=auto",
    "data.max_prompt_tokens=96",
    "data.prompts_per_step=2",
    "rollout.rollouts_per_prompt=2",
    "rollout.response_tokens=16",
    "rollout.memory_gib=0.5",
    "rollout.max_probs_diff=1e-4",
    "update.sequences_per_minibatch=4",
    "update.sequences_per_microbatch=4",
    "validation.every_steps=0",
    "trainer.steps=3",
    "checkpoint.every_steps=0",
    "reward.workers=1",
    "reward.max_error_share=1.0",
]


def command(folder, *overrides):
    return [
        *(sys.executable, "-m", "ppo_lightning", "fit", "--config", str(ROOT / "recipes" / "gsm8k.yaml")),
        *CUT,
        f"output_dir={folder}",
        "name=run",
        *overrides,
    ]


def lines(folder):
    return [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]


def test_three_steps_of_gsm8k(tmp_path, real_model):
    """Every sync is checked against the policy, and the engine's probabilities are the trainer's, in every step."""
    done = subprocess.run(command(tmp_path), capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    found = {line["step"]: line for line in lines(tmp_path)}
    assert sorted(found) == [0, 1, 2, 3]
    for step in (1, 2, 3):
        assert found[step]["training/rollout_probs_diff_mean"] <= 1e-4
        assert found[step]["training/rollout_probs_diff_alarm"] == 0.0
        assert found[step]["actor/grad_norm"] > 0
        assert found[step]["timing_s/update_weights"] > 0
    assert any(key.startswith("val-core/") for key in found[3])


def test_a_gap_above_the_bound_stops_the_run(tmp_path, real_model):
    """bfloat16 weights in the engine under a float32 policy differ by more than a bound for float32."""
    overrides = ["rollout.dtype=bfloat16", "data.val=null", "trainer.steps=1"]
    done = subprocess.run(command(tmp_path, *overrides), capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 2, done.stdout[-2000:] + done.stderr[-2000:]
    assert "must not exceed rollout.max_probs_diff=0.0001" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.fixture(scope="module")
def on_one_and_two_ranks(tmp_path_factory, real_model):
    """Directories of one run of a small model on one rank and on two, which share the machine."""
    folder = tmp_path_factory.mktemp("vllm_ranks")
    model = save_model(folder / "small", real_model)
    options = ["rollout=vllm", "rollout.memory_gib=0.125", "rollout.max_probs_diff=1e-4", "trainer.steps=3"]
    options += ["data.prompts_per_step=4", "update.sequences_per_microbatch=1"]
    started = []
    for ranks in (1, 2):
        overrides = rank_jobs.job(folder, model, "run", *options, ranks=ranks)["overrides"]
        each = [sys.executable, "-m", "ppo_lightning", "fit", *overrides]
        started.append(subprocess.Popen(each, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
    said = [process.communicate(timeout=500)[0] for process in started]
    assert [process.returncode for process in started] == [0, 0], said
    return folder / "1", folder / "2"


def test_each_rank_has_an_engine_in_the_group_that_trains(on_one_and_two_ranks):
    """The same tokens as on one rank and the same numbers, with every sync checked on both."""
    one, two = on_one_and_two_ranks
    for step in (1, 2, 3):
        files = [run / "run" / "rollouts" / f"step_{step:06d}.jsonl" for run in (one, two)]
        rows, others = ([json.loads(line) for line in file.read_text().splitlines()] for file in files)
        assert len(rows) == len(others) == 8
        assert [row["tokens"]["text"] for row in rows] == [row["tokens"]["text"] for row in others]
    found = rank_jobs.differences(lines(one), lines(two))
    assert {key: value for key, value in found.items() if value > 1e-5} == {}  # float32
    assert all(line["training/rollout_probs_diff_mean"] <= 1e-4 for line in lines(two))
    assert all(line["critic/grad_norm"] > 0 for line in lines(two))
    assert all("global_seqlen/mean" in line for line in lines(two))
