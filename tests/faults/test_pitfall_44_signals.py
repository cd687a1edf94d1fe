"""SIGTERM in any phase: the last finished step is saved within seconds, the exit code is 143; SIGKILL loses nothing."""

import itertools
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import lightning as L
import pytest
from fault_rigs import EXTRAS, MOVING, At, differences, digests, in_child, owner, start

from ppo_lightning.build import quiet
from ppo_lightning.callbacks.rollout import RolloutCallback
from ppo_lightning.callbacks.schedule import ScheduleCallback
from ppo_lightning.checkpoint.files import damage
from ppo_lightning.checkpoint.weights import optimizers_of
from ppo_lightning.config.load import load
from ppo_lightning.run import fit
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
"""Three steps, one checkpoint: only a signal makes another one. Two epochs of two mini-batches of two micro-batches."""
BEFORE_STEP = {"critic's first": 1, "critic's third": 3, "actor's first": 1, "actor's second": 2, "actor's last": 4}
"""Phases of the update: the optimizer step before which the signal comes."""
FORWARDS = ("old_log_prob", "ref_log_prob", "values")


@pytest.fixture(scope="module")
def straight(model, tmp_path_factory):
    """The run that nobody stops, with a checkpoint of every step."""
    folder = tmp_path_factory.mktemp("straight")
    _, straight = start(model, folder, *OPTIONS, "checkpoint.every_steps=1")
    return straight


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
        elif self.phase in FORWARDS:  # in the second micro-batch
            models = {"values": module.critic and module.critic.decoder, "ref_log_prob": module.reference.model}
            announced = []
            module.announce = announced.append
            running = lambda: announced[-1] == self.phase  # noqa: E731
            self.before(models.get(self.phase, module.actor.model), "forward", 2, running)
        elif self.phase in BEFORE_STEP:
            optimizer = optimizers_of(module)[self.phase.partition("'")[0]]
            self.before(optimizer, "step", BEFORE_STEP[self.phase], lambda: module.step == 1)
        elif self.phase == "validation":
            roller.heartbeat = lambda finished, total: self.send() if module.step == 2 and total == 3 else None
        elif self.phase == "save":
            self.before(store, "save")

    def before(self, owner, name, number=1, when=lambda: True):
        """Send the signal before the call of a method that has a number among those that count."""
        inner, calls = getattr(owner, name), itertools.count(1)

        def outer(*arguments, **keywords):
            if when() and next(calls) == number:
                self.send()
            return inner(*arguments, **keywords)

        setattr(owner, name, outer)


BROKEN_OFF = ("rollout", "reward", *FORWARDS, *BEFORE_STEP)


@pytest.mark.parametrize(("phase", "step"), [*((phase, 1) for phase in BROKEN_OFF), ("validation", 2), ("save", 2)])
def test_pitfall_44_sigterm(straight, model, tmp_path, phase, step):
    """A step is broken off and leaves nothing, also between two optimizer steps; the resumed run repeats it exactly."""
    sent = During(phase)
    extra = ["checkpoint.every_steps=2"] if phase == "save" else []
    code, run = start(model, tmp_path, *OPTIONS, *extra, callbacks=[sent])
    seconds = time.monotonic() - sent.sent
    assert code == EXIT_TERMINATED == 143
    assert seconds < LIMIT_S
    (saved,) = (run / "checkpoints").iterdir()
    assert saved.name == f"step_{step:06d}"
    same = digests(straight / "checkpoints" / saved.name)
    owed = ["state.json"] if phase == "validation" else []  # what says that one is owed
    assert [name for name, digest in digests(saved).items() if digest != same[name]] == owed
    code, run = start(model, tmp_path, *OPTIONS, resume="auto")
    assert code == 0
    assert differences(straight, run) == [f"{saved.name}/{name}" for name in owed]


ONE_STEP = ["update.sequences_per_minibatch=null", "update.ppo_epochs=1"]


@pytest.mark.parametrize("options", [["trainer.undo_bad_steps=false"], [*EXTRAS["grpo"], *ONE_STEP]])
def test_pitfall_44_a_step_of_which_no_copy_is_kept_is_finished(model, tmp_path, options):
    """The negative control of the above, and a step with one optimizer step, which is all there is of its update."""
    sent = During("actor's first" if ONE_STEP[0] in options else "actor's second")
    code, run = start(model, tmp_path, *OPTIONS, *options, callbacks=[sent])
    assert code == 143
    assert [path.name for path in (run / "checkpoints").iterdir()] == ["step_000002"]


def test_pitfall_44_without_taking_back_half_a_step_would_be_saved(straight, model, tmp_path):
    """The negative control: broken off between two optimizer steps, with nothing put back."""

    def keep_the_half(trainer, module, batch):
        module.take_back = lambda: None

    code, run = start(model, tmp_path, *OPTIONS, callbacks=[During("actor's second"), At(1, keep_the_half)])
    assert code == 143
    same = digests(straight / "checkpoints" / "step_000001")
    differ = {name for name, digest in digests(run / "checkpoints" / "step_000001").items() if digest != same[name]}
    assert {"actor/model.safetensors", "critic.safetensors", "optimizer_actor.pt"} <= differ


def test_pitfall_44_a_handler_that_only_notes_it_is_late(model, tmp_path):
    """The negative control: nothing asks during the wait for a reward, so the whole step runs on."""
    seen = []

    def deafen(trainer, module, batch):
        module.stop.open = lambda ranks: None  # never breakable

    callbacks = [At(1, deafen), During("reward"), At(2, lambda *_: seen.append("the step went on"))]
    start(model, tmp_path, *OPTIONS, callbacks=callbacks)
    assert seen == ["the step went on"]


def test_pitfall_44_a_second_sigterm_ends_the_process_at_once(model, tmp_path):
    """It comes while the first one's checkpoint is written; nothing else is waited for."""

    class Again(During):
        def send(self):
            os.kill(os.getpid(), signal.SIGTERM)
            os._exit(98)  # not reached

    callbacks = [During("critic's third"), Again("save")]
    status = in_child(lambda: start(model, tmp_path, *OPTIONS, callbacks=callbacks)[0])
    assert os.waitstatus_to_exitcode(status) == EXIT_TERMINATED
    assert list((tmp_path / "run").glob("checkpoints/*")) == []


def test_pitfall_44_killed_in_the_middle_of_an_update(straight, model, tmp_path):
    """Between two optimizer steps of step 2; the resume repeats the step from the checkpoint before it."""
    options, killed = [*OPTIONS, "checkpoint.every_steps=1"], During("critic's third", signal.SIGKILL)
    status = in_child(lambda: start(model, tmp_path, *options, callbacks=[killed])[0])
    assert os.WTERMSIG(status) == signal.SIGKILL
    code, run = start(model, tmp_path, *options, resume="auto")
    assert code == 0
    assert differences(straight, run) == []


ROOT = Path(__file__).parents[2]
REAL = [
    "data.prompts_per_step=4",
    "rollout.response_tokens=4",
    "update.sequences_per_minibatch=16",
    "update.sequences_per_microbatch=16",
    "validation.before_train=false",
    "validation.every_steps=0",
]
"""A model of 135 M parameters on a CPU: with AdamW's state 1.6 GB to put back and to save, with a critic 3.2 GB."""


def stop_real(folder, estimator):
    """Run until the signal that comes between two optimizer steps, and leave when that was; returns the exit code."""
    quiet()
    loaded = load(
        str(ROOT / "recipes" / "quickstart.yaml"),
        [*REAL, f"algorithm.adv_estimator={estimator}", f"output_dir={folder}", "name=run"],
    )
    sent = During("actor's second")
    code = fit(loaded, callbacks=[sent])
    Path(folder, "sent").write_text(repr(sent.sent))
    return code


END_WITH = """
import ast, sys
sys.path[:] = ast.literal_eval(sys.argv[1])
from ppo_lightning.__main__ import end_with
end_with(lambda: {})
"""
"""A process that does some work and ends as the command does."""


def test_pitfall_44_the_end_of_the_process_waits_for_what_asked_for_it_only():
    """Handlers are called and output arrives; the interpreter is not taken apart, as it is without."""
    handler = "__import__('atexit').register(print, 'called') and 7"
    dying = "globals().__setitem__('kept', type('Kept', (), {'__del__': lambda self: print('taken apart')})())"
    work = f"{dying} or {handler}"
    for program, said in (
        (END_WITH, "called"),
        (END_WITH.replace("end_with(lambda: {})", "sys.exit({})"), "called\ntaken apart"),
    ):
        command = [sys.executable, "-c", program.replace("{}", work), str(sys.path)]
        done = subprocess.run(command, capture_output=True, text=True)
        assert (done.returncode, done.stdout.strip()) == (7, said)


@pytest.mark.long
@pytest.mark.parametrize("estimator", ["grpo", "gae"])
def test_pitfall_44_a_model_of_135_million_parameters(real_model, tmp_path, estimator):
    """From the signal to the end of the process: within 10 s, or twice what the disk takes for the bytes."""
    work = "__import__('test_pitfall_44_signals').stop_real(sys.argv[2], sys.argv[3])"
    program = [sys.executable, "-c", END_WITH.replace("{}", work), str(sys.path), str(tmp_path), estimator]
    code = subprocess.run(program).returncode
    seconds = time.monotonic() - float((tmp_path / "sent").read_text())
    saved = tmp_path / "run" / "checkpoints" / "step_000001"
    size = sum(path.stat().st_size for path in saved.rglob("*") if path.is_file())
    alone = written_in(tmp_path / "zeros", size)
    print(f"{estimator}: {seconds:.1f} s from SIGTERM to the exit, {size / 1e9:.1f} GB; the disk alone: {alone:.1f} s")  # noqa: T201 - the figures of docs/reliability.md: pytest -s
    assert code == EXIT_TERMINATED
    assert damage(saved) is None
    assert seconds < max(LIMIT_S, 2 * alone)


def written_in(path, size):
    """Return the seconds in which so many bytes are written to a file and synced."""
    piece, begin = bytes(2**22), time.monotonic()
    with path.open("wb") as out:
        for _ in range(-(-size // len(piece))):
            out.write(piece)
        os.fsync(out.fileno())
    seconds = time.monotonic() - begin
    path.unlink()
    return seconds


FAKES = {"srun": 'echo "$@" >> "$SAID"; exit "$CODE"', "scontrol": 'echo scontrol "$@" >> "$SAID"'}


@pytest.mark.parametrize(("code", "again"), [(EXIT_TERMINATED, ["scontrol requeue 7"]), (0, []), (1, [])])
def test_pitfall_44_the_slurm_script_of_the_docs_submits_again_after_143(tmp_path, code, again):
    """The script itself, with stand-ins for SLURM's two commands; a run that ended or failed is not submitted again."""
    text = (ROOT / "docs" / "reliability.md").read_text()
    (script,) = re.findall(r"```bash\n(#SBATCH.*?)```", text, flags=re.DOTALL)
    assert re.search(r"^#SBATCH .*--signal=TERM@\d+ .*--requeue\b", script, flags=re.MULTILINE)
    for name, does in FAKES.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{does}\n")
        (tmp_path / name).chmod(0o755)
    places = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SAID": str(tmp_path / "said")}
    subprocess.run(["bash", "-c", script], env=places | {"CODE": str(code), "SLURM_JOB_ID": "7"}, check=False)
    asked, *rest = (tmp_path / "said").read_text().splitlines()
    assert asked.startswith("python -m ppo_lightning fit")
    assert asked.endswith("--resume auto")
    assert rest == again
