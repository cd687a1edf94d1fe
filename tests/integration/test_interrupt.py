"""SIGTERM during a rollout: the rollout is broken off, the state after the last step is saved, and a resume goes on."""

import os
import signal

import lightning as L

from ppo_lightning.callbacks.rollout import RolloutCallback
from ppo_lightning.run import fit
from ppo_lightning.signals import EXIT_TERMINATED


class Terminate(L.Callback):
    """Sends the signal when the first response of the second step is finished."""

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        owner = next(callback for callback in trainer.callbacks if isinstance(callback, RolloutCallback))
        owner.roller.heartbeat = lambda finished, total: os.kill(os.getpid(), signal.SIGTERM) if finished == 1 else None


def test_a_rollout_is_broken_off_and_the_step_before_it_saved(run, lines, monkeypatch):
    settings = ["data.val=null", "trainer.steps=3", "checkpoint.every_steps=10"]
    _, straight, _ = run(*settings, name="straight")
    with_signal = lambda loaded, resume, extra: fit(loaded, resume, [*extra, Terminate()])  # noqa: E731
    monkeypatch.setitem(run.__globals__, "fit", with_signal)
    code, folder, record = run(*settings, name="broken")
    monkeypatch.undo()
    assert code == EXIT_TERMINATED
    assert len(record.batches) == 1
    assert [path.name for path in sorted((folder / "checkpoints").iterdir())] == ["step_000001"]
    code, folder, _ = run(*settings, name="broken", resume="auto")
    assert code == 0
    for left, right in zip(lines(straight), lines(folder), strict=True):
        for key in ("step", "actor/pg_loss", "actor/grad_norm", "critic/vf_loss", "critic/grad_norm"):
            assert left[key] == right[key], key
