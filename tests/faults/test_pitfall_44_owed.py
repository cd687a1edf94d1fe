"""What a run that ended between two files owes to the one that resumes: a validation, the line of a step."""

import os
import signal

import lightning as L
import pytest
from fault_rigs import At, differences, in_child, lines, owner, start
from test_pitfall_44_signals import OPTIONS, straight  # noqa: F401 - a fixture

from ppo_lightning.callbacks.metrics import MetricsCallback
from ppo_lightning.callbacks.rollout import RolloutCallback

EVERY = [*OPTIONS, "checkpoint.every_steps=1"]
CORE = "val-core/arithmetic/acc/mean@1"


class InValidation(L.Callback):
    """Sends a signal to this process in the validation after a step, when its last response is there."""

    def __init__(self, step, number):
        self.step, self.number = step, number

    def on_validation_start(self, trainer, pl_module):
        if pl_module.step == self.step:
            owner(trainer, RolloutCallback).roller.heartbeat = self.heartbeat

    def heartbeat(self, finished, total):
        if finished == total:
            os.kill(os.getpid(), self.number)


def killed(model, folder, *callbacks, options=EVERY, resume="never"):
    """Run in a process that SIGKILL ends."""
    status = in_child(lambda: start(model, folder, *options, resume=resume, callbacks=callbacks)[0])
    assert os.WTERMSIG(status) == signal.SIGKILL


def whole(run):
    """Return the lines with what validation found, which `differences` leaves to those that have it."""
    return [(row["step"], row.get(CORE)) for row in lines(run)]


def test_the_last_validation_is_done_by_the_run_that_resumes(straight, model, tmp_path):  # noqa: F811
    code, run = start(model, tmp_path, *OPTIONS, callbacks=[InValidation(3, signal.SIGTERM)])
    assert code == 143
    assert whole(run)[-1] == (3, None)
    code, run = start(model, tmp_path, *OPTIONS, resume="auto")
    assert code == 0
    assert whole(run) == whole(straight)
    assert differences(straight, run) == []  # the checkpoint of step 3 no longer says that it is owed
    before = (run / "metrics.jsonl").read_bytes()
    assert start(model, tmp_path, *OPTIONS, resume="auto")[0] == 0
    assert (run / "metrics.jsonl").read_bytes() == before  # and nothing is left to do


def test_a_resume_that_does_not_ask_leaves_it_out(straight, model, tmp_path):  # noqa: F811
    """The negative control: no training is left, so nothing of it begins."""

    class Forget(L.Callback):
        def on_fit_start(self, trainer, pl_module):
            pl_module.owes_validation = False

    start(model, tmp_path, *OPTIONS, callbacks=[InValidation(3, signal.SIGTERM)])
    code, run = start(model, tmp_path, *OPTIONS, resume="auto", callbacks=[Forget()])
    assert code == 0
    assert whole(run)[-1] == (3, None)


@pytest.mark.parametrize("step", [2, 3])
def test_a_validation_that_was_killed_is_done_again(straight, model, tmp_path, step):  # noqa: F811
    killed(model, tmp_path, InValidation(step, signal.SIGKILL))
    code, run = start(model, tmp_path, *EVERY, resume="auto")
    assert code == 0
    assert whole(run) == whole(straight)
    assert differences(straight, run) == []


def test_a_resume_that_is_killed_in_the_validation_it_owes_loses_nothing(straight, model, tmp_path):  # noqa: F811
    """Its step's line is out of the file then, to be written again with more in it."""
    start(model, tmp_path, *OPTIONS, callbacks=[InValidation(2, signal.SIGTERM)])
    killed(model, tmp_path, InValidation(2, signal.SIGKILL), options=OPTIONS, resume="auto")
    assert [step for step, _ in whole(tmp_path / "run")] == [1]
    code, run = start(model, tmp_path, *OPTIONS, resume="auto")
    assert code == 0
    assert whole(run) == whole(straight)


def kill_before_line(trainer, module, batch):
    """Let the step's checkpoint be written, and not its line."""

    def flush(step):
        os.kill(os.getpid(), signal.SIGKILL)

    owner(trainer, MetricsCallback).flush = flush


@pytest.mark.parametrize("step", [2, 3])
def test_a_line_lost_between_checkpoint_and_file_is_written_by_the_run_that_resumes(
    straight,  # noqa: F811
    model,
    tmp_path,
    step,
):
    killed(model, tmp_path, At(step, kill_before_line))
    run = tmp_path / "run"
    assert (run / "checkpoints" / f"step_{step:06d}" / "COMPLETE").is_file()
    assert [row["step"] for row in lines(run)] == list(range(1, step))
    code, run = start(model, tmp_path, *EVERY, resume="auto")
    assert code == 0
    assert whole(run) == whole(straight)
    assert differences(straight, run) == []
    assert not list(run.glob("*.held"))


def test_without_the_held_line_it_is_lost(model, tmp_path):
    """The negative control."""
    killed(model, tmp_path, At(2, kill_before_line))
    (tmp_path / "run" / "metrics.held").unlink()
    _, run = start(model, tmp_path, *EVERY, resume="auto")
    assert [row["step"] for row in lines(run)] == [1, 3]


def test_a_held_line_of_a_step_that_is_repeated_is_not_taken(model, tmp_path):
    """The newest checkpoint is damaged: the resume begins before the step whose line is held."""
    killed(model, tmp_path, At(2, kill_before_line))
    (tmp_path / "run" / "checkpoints" / "step_000002" / "state.json").unlink()
    _, run = start(model, tmp_path, *EVERY, resume="auto")
    assert [row["step"] for row in lines(run)] == [1, 2, 3]
