"""The pool: order, overlap, async, limits, keeping workers. What it survives is in tests/faults."""

import os
import time
from pathlib import Path

import pytest

from ppo_lightning.config.schema import RewardConfig
from ppo_lightning.errors import RewardError
from ppo_lightning.rewards.pool import RewardPool
from ppo_lightning.rewards.sample import Sample

FILES = Path(__file__).parent / "files"
VERL = str(FILES / "verl_reward.py")


@pytest.fixture
def reward_file(tmp_path):
    def write(text):
        path = tmp_path / "mine.py"
        path.write_text(text)
        return str(path)

    return write


def echo(count, text="a"):
    return [Sample(row, "x", text, "a") for row in range(count)]


def test_results_come_in_row_order_whatever_order_they_finish_in(reward_file):
    path = reward_file(
        "import time\n"
        "def compute_score(data_source, solution_str, ground_truth, extra_info):\n"
        "    time.sleep(0.1 if solution_str == '3' else 0)\n"
        "    return float(solution_str)\n"
    )
    with RewardPool(RewardConfig(path=path, workers=4)) as pool:
        for row in (3, 1, 2, 0):
            pool.submit(Sample(row, "x", str(row)))
        assert [(item.row, item.score) for item in pool.collect()] == [(0, 0.0), (1, 1.0), (2, 2.0), (3, 3.0)]
        assert pool.collect() == []


def test_scoring_overlaps_with_what_the_caller_does_meanwhile(reward_file, tmp_path):
    """Handing in returns at once; samples are scored before anyone collects them, while the caller goes on."""
    path = reward_file(
        "import pathlib, time\n"
        "def compute_score(data_source, solution_str, ground_truth, extra_info):\n"
        "    pathlib.Path(extra_info['folder'], solution_str).touch()\n"
        "    time.sleep(0.25)\n"
        "    return 1.0\n"
    )
    with RewardPool(RewardConfig(path=path, workers=2)) as pool:
        pool.start()
        start = time.monotonic()
        for row in range(4):
            pool.submit(Sample(row, "x", f"sample {row}", extra_info={"folder": str(tmp_path)}))
        submitted = time.monotonic() - start
        deadline = start + 60
        while len(list(tmp_path.glob("sample *"))) < 4 and time.monotonic() < deadline:
            pass
        scored = pool.collect()
    assert len(list(tmp_path.glob("sample *"))) == 4
    assert [item.score for item in scored] == [1.0] * 4
    assert submitted < 0.25 < sum(item.seconds for item in scored)


def test_coroutines_wait_together():
    """64 samples of 0.05 s each on one worker take far less than one after the other: their seconds overlap."""
    with RewardPool(RewardConfig(path=VERL, name="compute_score_async", workers=1)) as pool:
        pool.start()
        start = time.monotonic()
        scored = pool.score([Sample(row, "x", "5", "5") for row in range(64)])
        seconds = time.monotonic() - start
    assert [item.score for item in scored] == [1.0] * 64
    assert sum(item.seconds for item in scored) > 2 * seconds


def test_a_coroutine_that_blocks_its_loop_fails_alone(monkeypatch):
    monkeypatch.setattr("ppo_lightning.rewards.pool.ASYNC_GRACE_SECONDS", 0.2)
    samples = [Sample(row, "x", text, "") for row, text in enumerate(["a", "block", "b", "wait", "c"])]
    with RewardPool(RewardConfig(path=VERL, name="blocking", workers=1, timeout_s=0.2)) as pool:
        scored = pool.score(samples)
    assert [item.fault for item in scored] == [None, "timeout", None, "timeout", None]
    assert [scored[row].score for row in (0, 2, 4)] == [1.0] * 3


def test_workers_start_at_first_use_and_are_kept(reward_file):
    path = reward_file(
        "import os\n"
        "def compute_score(data_source, solution_str, ground_truth, extra_info):\n"
        "    return {'score': 1.0, 'pid': os.getpid()}\n"
    )
    with RewardPool(RewardConfig(path=path, workers=2)) as pool:
        pids = [{item.extra["pid"] for item in pool.score(echo(20))} for _ in range(3)]
    assert os.getpid() not in set.union(*pids)
    assert len(set.union(*pids)) <= 2


def test_eight_workers_start_in_a_few_seconds_on_two_cores():
    with RewardPool(RewardConfig(path=VERL, workers=8)) as pool:
        start = time.monotonic()
        scored = pool.score(echo(200))
        seconds = time.monotonic() - start
    assert len(scored) == 200
    assert seconds < 10.0


def test_a_worker_that_was_broken_by_an_earlier_sample_is_not_held_against_the_next(reward_file):
    """The first sample leaves a thread that ends the worker a little later; the samples after it are scored again."""
    path = reward_file(
        "import os, threading, time\n"
        "def compute_score(data_source, solution_str, ground_truth, extra_info):\n"
        "    if solution_str == 'bomb':\n"
        "        threading.Timer(0.05, os._exit, (1,)).start()\n"
        "    else:\n"
        "        time.sleep(0.1)\n"
        "    return 1.0\n"
    )
    with RewardPool(RewardConfig(path=path, workers=1)) as pool:
        pool.start()
        scored = pool.score([Sample(0, "x", "bomb"), *[Sample(row, "x", "a") for row in (1, 2)]])
    assert [(item.score, item.fault) for item in scored] == [(1.0, None)] * 3


def test_the_memory_limit_is_on_top_of_what_loading_took(reward_file):
    path = reward_file(
        "loaded = bytearray(300 * 2**20)\n"
        "def compute_score(data_source, solution_str, ground_truth, extra_info):\n"
        "    return float(len(bytearray(int(solution_str) * 2**20)) > 0)\n"
    )
    with RewardPool(RewardConfig(path=path, workers=1, memory_mb=256)) as pool:
        small, large = pool.score([Sample(0, "x", "50"), Sample(1, "x", "1000")])
    assert small.score == 1.0
    assert large.fault == "exception"
    assert "MemoryError" in large.detail


def test_what_a_failing_function_printed_is_in_the_detail(reward_file):
    path = reward_file(
        "def compute_score(data_source, solution_str, ground_truth, extra_info):\n"
        "    print('looking at', solution_str)\n"
        "    raise RuntimeError('broken')\n"
    )
    with RewardPool(RewardConfig(path=path, workers=1)) as pool:
        scored = pool.score(echo(1, "this"))[0]
    assert "RuntimeError: broken" in scored.detail
    assert "looking at this" in scored.detail


def test_a_function_may_use_its_neighbours_and_the_main_thread(reward_file, tmp_path):
    (tmp_path / "neighbour_module.py").write_text("VALUE = 0.5\n")
    path = reward_file(
        "import asyncio, signal, neighbour_module\n"
        "async def ask():\n"
        "    return neighbour_module.VALUE\n"
        "def compute_score(data_source, solution_str, ground_truth, extra_info):\n"
        "    signal.alarm(5)\n"
        "    signal.alarm(0)\n"
        "    return asyncio.run(ask())\n"
    )
    with RewardPool(RewardConfig(path=path, workers=1)) as pool:
        assert pool.score(echo(1))[0].score == 0.5


def test_a_sample_that_cannot_be_sent_is_a_fault():
    with RewardPool(RewardConfig(path=VERL, workers=1)) as pool:
        scored = pool.score([Sample(0, "x", "5", "5", {"f": lambda: 0}), Sample(1, "x", "5", "5")])
    assert [item.fault for item in scored] == ["exception", None]


def test_a_closed_pool_says_so():
    pool = RewardPool(RewardConfig(path=VERL, workers=1))
    pool.close()
    with pytest.raises(RewardError, match="closed"):
        pool.submit(Sample(0, "x", "5", "5"))


def test_an_unknown_data_source_is_an_error_at_once():
    with RewardPool(RewardConfig(workers=1)) as pool, pytest.raises(RewardError, match="data_source 'mine'"):
        pool.submit(Sample(0, "mine", "5", "5"))
