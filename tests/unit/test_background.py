"""Writing beside the step: in order, never holding the caller up for long, and no error is swallowed."""

import threading

import pytest

from ppo_lightning.background import WAITING, Background


@pytest.fixture
def said():
    return []


def full_disk():
    raise OSError(28, "No space left on device")


def broken():
    raise TypeError("a bug")


def test_tasks_run_in_order(said):
    done = []
    thread = Background("dumps", said.append)
    for number in range(20):
        thread.submit(str(number), lambda number=number: done.append(number))
    thread.close()
    assert done == list(range(20))
    assert said == []


def test_the_caller_goes_on_while_a_task_hangs(said):
    gate = threading.Event()
    thread = Background("dumps", said.append)
    thread.submit("slow", gate.wait)
    thread.submit("next", lambda: None)  # a direct call of `slow` would wait for ever
    assert not gate.is_set()
    gate.set()
    thread.close()


def test_the_queue_is_bounded_and_what_finds_no_place_is_counted(said):
    gate, done = threading.Event(), []
    thread = Background("dumps", said.append, patience_s=0.05)
    thread.submit("slow", gate.wait)
    for number in range(WAITING + 5):
        thread.submit(f"step {number}", lambda: done.append(1))
    lost = thread.take_lost()
    assert lost in (4, 5)  # one may have had its place when `slow` began
    assert len(said) == 1
    assert "others still wait" in said[0]
    gate.set()
    thread.patience_s = 60.0
    thread.close()
    assert len(done) == WAITING + 5 - lost


def test_a_full_disk_is_said_once_and_counted(said):
    thread = Background("dumps", said.append)
    for step in range(3):
        thread.submit(f"step_{step}", full_disk)
    thread.close()
    assert thread.take_lost() == 3
    assert said == ["warning: dumps lost step_0: No space left on device (said once); the run goes on"]
    assert thread.take_lost() == 0


def test_a_bug_surfaces_at_the_next_task(said):
    thread = Background("dumps", said.append)
    thread.submit("step 1", broken)
    assert thread.drain()
    with pytest.raises(TypeError, match="a bug"):
        thread.submit("step 2", lambda: None)
    thread.close()


def test_a_bug_surfaces_at_the_end(said):
    thread = Background("dumps", said.append)
    thread.submit("step 1", broken)
    with pytest.raises(TypeError, match="a bug"):
        thread.close()


def test_a_plain_thread_would_swallow_it(monkeypatch):
    seen = []
    monkeypatch.setattr(threading, "excepthook", lambda given: seen.append(given.exc_type))
    plain = threading.Thread(target=broken)
    plain.start()
    plain.join()
    assert seen == [TypeError]


def test_whatever_a_logger_raises_can_be_tolerated(said):
    thread = Background("W&B", said.append, tolerated=Exception)
    thread.submit("step 1", broken)
    thread.close()
    assert thread.take_lost() == 1
    assert said == ["warning: W&B lost step 1: a bug (said once); the run goes on"]


def test_the_end_does_not_wait_for_ever(said):
    gate = threading.Event()
    thread = Background("W&B", said.append, patience_s=0.05)
    thread.submit("hangs", gate.wait)
    thread.close()
    assert said == ["warning: W&B did not finish in 0.05 s and is left behind"]
    gate.set()
