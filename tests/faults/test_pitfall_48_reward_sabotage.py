"""PITFALLS 47-49: nothing that a reward function does blocks, kills or falsifies a step."""

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from ppo_lightning.config.schema import RewardConfig
from ppo_lightning.rewards.pool import RewardPool
from ppo_lightning.rewards.process import marked
from ppo_lightning.rewards.sample import Sample

SABOTAGE = Path(__file__).parents[1] / "unit" / "rewards" / "files" / "sabotage.py"
TIMEOUT_S = 2.0
WORKERS = 2
EXPECTED = {
    "sleep": "timeout",
    "c_loop": "timeout",
    "os_exit": "worker_death",
    "segfault": "worker_death",
    "raise": "exception",
    "recursion": "exception",
    "none": "none",
    "nan": "nan",
    "text": "wrong_type",
    "allocate": "exception",
    "flood": None,
    "leak": None,
}


def survivors(trainer: int | None = None) -> set[int]:
    """Return the reward workers of a trainer (this process, if none is named) that live, and what they forked."""
    return set(marked(f"{trainer or os.getpid()}-"))


def test_two_workers_score_200_good_samples_among_twelve_sabotages(record_property):
    """200 good samples are all right, each sabotage is counted under its kind, and nothing outlives the pool.

    Two samples hang for the full limit; on two workers their limits may overlap, at worst they add up: 2 * 2 s.
    """
    before = survivors()
    texts = [f"do {name}" for name in EXPECTED] + [f"answer {number}" for number in range(200)]
    random.Random(4).shuffle(texts)
    samples = [Sample(row, "echo", text, text) for row, text in enumerate(texts)]
    config = RewardConfig(path=str(SABOTAGE), workers=WORKERS, timeout_s=TIMEOUT_S, memory_mb=1024)
    start = time.monotonic()
    with RewardPool(config) as pool:
        scored = pool.score(samples)
        seconds = time.monotonic() - start
        again = pool.score(samples[:20])
    record_property("seconds", seconds)
    assert [item.row for item in scored] == list(range(212))
    good = [item for item, text in zip(scored, texts, strict=True) if not text.startswith("do ")]
    assert len(good) == 200
    assert [item.score for item in good] == [1.0] * 200
    faults = {
        text.removeprefix("do "): item for item, text in zip(scored, texts, strict=True) if text.startswith("do ")
    }
    assert {name: item.fault for name, item in faults.items()} == EXPECTED
    assert Counter(item.fault for item in scored if item.fault) == {
        "timeout": 2,
        "exception": 3,
        "worker_death": 2,
        "none": 1,
        "nan": 1,
        "wrong_type": 1,
    }
    assert all((item.score is None) == (item.fault is not None) for item in scored)
    assert faults["flood"].score == 0.5
    assert faults["leak"].score == 0.25
    assert "1 process(es)" in faults["leak"].detail
    assert "SIGSEGV" in faults["segfault"].detail
    assert "exit code 3" in faults["os_exit"].detail
    assert "no such thing" in faults["raise"].detail
    assert "MemoryError" in faults["allocate"].detail
    assert seconds <= 2 * TIMEOUT_S + 5
    assert [item.row for item in again] == list(range(20))
    assert survivors() - before == set()


def test_workers_do_not_inherit_secrets_and_do_not_import_torch(monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "secret")
    monkeypatch.setenv("HF_TOKEN", "secret")
    monkeypatch.setenv("JUDGE_KEY", "for the judge")
    asked = Sample(0, "x", "do environment", "")
    with RewardPool(RewardConfig(path=str(SABOTAGE), workers=1)) as pool:
        bare = pool.score([asked])[0]
    with RewardPool(RewardConfig(path=str(SABOTAGE), workers=1, environment=["JUDGE_KEY"])) as pool:
        given = pool.score([asked])[0]
    assert "WANDB_API_KEY" in os.environ
    assert {"WANDB_API_KEY", "HF_TOKEN", "JUDGE_KEY"}.isdisjoint(bare.extra["names"])
    assert set(given.extra["names"]) - set(bare.extra["names"]) == {"JUDGE_KEY"}
    assert bare.extra["torch"] is False


def test_more_ways_to_misbehave():
    """A call that ends the interpreter, breaks the channel or returns twice is contained; infinity is no score."""
    expected = {
        "missing": ("missing_score", None),
        "interrupt": ("exception", None),
        "exit": ("exception", None),
        "infinite": ("nan", None),
        "close_channel": ("worker_death", None),
        "fork": (None, 0.75),
    }
    before = survivors()
    samples = [Sample(row, "x", f"do {name}", "") for row, name in enumerate(expected)]
    with RewardPool(RewardConfig(path=str(SABOTAGE), workers=2, timeout_s=5.0)) as pool:
        scored = pool.score(samples)
        assert pool.score([Sample(0, "x", "a", "a")])[0].score == 1.0
    assert {name: (item.fault, item.score) for name, item in zip(expected, scored, strict=True)} == expected
    assert survivors() - before == set()


def test_a_reward_that_always_hangs_does_not_hold_the_step_for_longer_than_a_few_limits():
    """50 hanging samples on 2 workers: after 3 rounds (6 samples) the rest is not run. One by one: 25 limits."""
    samples = [Sample(row, "x", "do sleep", "") for row in range(50)]
    start = time.monotonic()
    with RewardPool(RewardConfig(path=str(SABOTAGE), workers=2, timeout_s=0.3)) as pool:
        scored = pool.score(samples)
        seconds = time.monotonic() - start
        good = pool.score([Sample(0, "x", "a", "a")])
    assert [item.fault for item in scored] == ["timeout"] * 50
    assert sum("not run" in item.detail for item in scored) >= 50 - 8
    assert seconds < 25 * 0.3
    assert good[0].score == 1.0


def test_closing_in_the_middle_of_a_hang_ends_at_once_and_leaves_nothing():
    before = survivors()
    pool = RewardPool(RewardConfig(path=str(SABOTAGE), workers=2, timeout_s=600))
    pool.start()
    for row in range(4):
        pool.submit(Sample(row, "x", "do c_loop", ""))
    pool.submit(Sample(4, "x", "do leak", ""))
    start = time.monotonic()
    pool.close()
    pool.close()
    assert time.monotonic() - start < 5
    assert survivors() - before == set()


TRAINER = """
import sys
from ppo_lightning.config.schema import RewardConfig
from ppo_lightning.rewards.pool import RewardPool
from ppo_lightning.rewards.process import marked
from ppo_lightning.rewards.sample import Sample
pool = RewardPool(RewardConfig(path=sys.argv[1], workers=2, timeout_s=600))
pool.start()
for row in range(2):
    pool.submit(Sample(row, "x", "do c_loop", ""))
print("ready", flush=True)
if sys.argv[2] == "wait":
    pool.collect()
elif sys.argv[2] == "fork":
    import os
    if os.fork() == 0:
        sys.exit(0)
    os.wait()
    print(len(pool.start()), flush=True)
"""


def trainer(way):
    return subprocess.Popen([sys.executable, "-c", TRAINER, str(SABOTAGE), way], stdout=subprocess.PIPE, text=True)


def wait_for_no_survivors(trainer):
    """Return what is left after a while, each with what it is at: `{}` is what a test asks for."""
    end = time.monotonic() + 30
    while survivors(trainer) and time.monotonic() < end:
        time.sleep(0.05)
    return {pid: what_it_does(pid) for pid in survivors(trainer)}


def what_it_does(pid):
    """Return a process's state, parent, pending signals and what it waits for in the kernel, as far as it is there."""
    found = []
    for name in ("status", "cmdline", "wchan"):
        with contextlib.suppress(OSError):
            found.append(Path(f"/proc/{pid}/{name}").read_text())
    return "\n".join(found)


def test_workers_end_with_a_trainer_that_is_killed():
    with trainer("wait") as process:
        try:
            assert process.stdout.readline() == "ready\n"
            assert survivors(process.pid)
        finally:
            process.send_signal(signal.SIGKILL)
    assert wait_for_no_survivors(process.pid) == {}


def test_a_trainer_that_just_ends_takes_its_workers_along():
    with trainer("end") as process:
        assert process.stdout.readline() == "ready\n"
        assert process.wait(timeout=20) == 0
    assert survivors(process.pid) == set()


def test_a_forked_copy_of_the_trainer_ends_without_touching_the_workers():
    with trainer("fork") as process:
        assert process.stdout.readline() == "ready\n"
        assert process.stdout.readline() == "1\n"
        assert process.wait(timeout=20) == 0
