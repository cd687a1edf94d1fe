"""SIGTERM in any phase of a step: the last finished step is saved and the exit code is 143; SIGKILL loses nothing."""

import os
import signal
import time

import lightning as L
import pytest
from fault_rigs import EXTRAS, MOVING, At, differences, digests, in_child, start

from ppo_lightning.callbacks.rollout import RolloutCallback
from ppo_lightning.callbacks.schedule import ScheduleCallback
from ppo_lightning.signals import EXIT_TERMINATED

LIMIT_S = 10
OPTIONS = [
    *EXTRAS["ppo"],
    *MOVING,
    "critic.warmup_steps=0",
    "data.workers=0",
    "data.val=arithmetic:rows=3,digits=1,seed=2",
    "validation.every_steps=2",
    "validation.before_train=false",
    "checkpoint.every_steps=3",
    "trainer.steps=3",
]
"""Three steps, one checkpoint: only a signal makes another one."""


@pytest.fixture(scope="module")
def straight(model, tmp_path_factory):
    """The run that nobody stops, with a checkpoint of every step."""
    folder = tmp_path_factory.mktemp("straight")
    _, straight = start(model, folder, *OPTIONS, "checkpoint.every_steps=1")
    return straight


def owner(trainer, kind):
    return next(callback for callback in trainer.callbacks if isinstance(callback, kind))


class During(L.Callback):
    """Sends a signal to this process in a phase of step 2, and notes the time."""

    def __init__(self, phase, number=signal.SIGTERM):
        self.phase, self.number, self.sent = phase, number, None

    def send(self):
        if self.sent is None:
            self.sent = time.monotonic()
            os.kill(os.getpid(), self.number)

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if pl_module.step == 1:
            self.arm(trainer, pl_module)

    def arm(self, trainer, module):
        """Put the signal into the next step's way, whatever waits or computes there."""
        roller, store = owner(trainer, RolloutCallback).roller, owner(trainer, ScheduleCallback).store
        if self.phase == "rollout":
            roller.heartbeat = lambda finished, total: self.send() if finished == 1 else None
        elif self.phase == "reward":
            self.before(roller.rewards.pool, "collect")
        elif self.phase == "old_log_prob":
            module.announce = lambda stage: self.send() if stage == "old_log_prob" else None
        elif self.phase == "update":
            self.before(module.optimizers(use_pl_optimizer=False)[0], "step", when=lambda: module.step == 1)
        elif self.phase == "validation":
            roller.heartbeat = lambda finished, total: self.send() if module.step == 2 and total == 3 else None
        elif self.phase == "save":
            self.before(store, "save")

    def before(self, owner, name, when=lambda: True):
        inner = getattr(owner, name)

        def outer(*arguments, **keywords):
            if when():
                self.send()
            return inner(*arguments, **keywords)

        setattr(owner, name, outer)


@pytest.mark.parametrize(
    ("phase", "step"),
    [("rollout", 1), ("reward", 1), ("old_log_prob", 1), ("update", 2), ("validation", 2), ("save", 2)],
)
def test_pitfall_44_sigterm(straight, model, tmp_path, phase, step):
    """A step that has changed nothing is broken off; one that has begun to update is finished."""
    sent = During(phase)
    extra = ["checkpoint.every_steps=2"] if phase == "save" else []
    code, run = start(model, tmp_path, *OPTIONS, *extra, callbacks=[sent])
    seconds = time.monotonic() - sent.sent
    assert code == EXIT_TERMINATED == 143
    assert seconds < LIMIT_S
    (saved,) = (run / "checkpoints").iterdir()
    assert saved.name == f"step_{step:06d}"
    same = digests(straight / "checkpoints" / saved.name)
    assert {name for name, digest in digests(saved).items() if digest != same[name]} <= {"state.json"}
    if phase in ("rollout", "validation"):  # resumed: in the middle of a step, and with a validation still owed
        code, run = start(model, tmp_path, *OPTIONS, resume="auto")
        assert code == 0
        owed = ["step_000002/state.json"] if phase == "validation" else []  # what says that one is owed
        assert differences(straight, run) == owed


def test_pitfall_44_a_handler_that_only_notes_it_is_late(model, tmp_path):
    """The negative control: nothing asks during the wait for a reward, so the whole step runs on."""
    seen = []

    def deafen(trainer, module, batch):
        module.stop.open = lambda: None  # never breakable

    callbacks = [At(1, deafen), During("reward"), At(2, lambda *_: seen.append("the step went on"))]
    start(model, tmp_path, *OPTIONS, callbacks=callbacks)
    assert seen == ["the step went on"]


def test_pitfall_44_a_second_sigterm_ends_the_process_at_once(model, tmp_path):
    """It comes while the first one's checkpoint is written; nothing else is waited for."""

    class Twice(During):
        def send(self):
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGTERM)
            os._exit(98)  # not reached

    status = in_child(lambda: start(model, tmp_path, *OPTIONS, callbacks=[Twice("update")])[0])
    assert os.waitstatus_to_exitcode(status) == EXIT_TERMINATED
    assert list((tmp_path / "run").glob("checkpoints/*")) == []


def test_pitfall_44_killed_in_the_middle_of_an_update(straight, model, tmp_path):
    """Between two optimizer steps of step 2; the resume repeats the step from the checkpoint before it."""
    options = [*OPTIONS, "checkpoint.every_steps=1"]
    status = in_child(lambda: start(model, tmp_path, *options, callbacks=[During("update", signal.SIGKILL)])[0])
    assert os.WTERMSIG(status) == signal.SIGKILL
    code, run = start(model, tmp_path, *options, resume="auto")
    assert code == 0
    assert differences(straight, run) == []
