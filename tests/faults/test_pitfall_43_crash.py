"""A save that ends at any point - killed, disk full, not allowed - leaves the newest whole checkpoint usable."""

import errno
import os
import shutil
import signal
import tempfile
from collections import Counter

import pytest
from fault_rigs import EXTRAS, At, digests, start, tree
from file_events import AVAILABLE, trace

from ppo_lightning.callbacks.schedule import ScheduleCallback
from ppo_lightning.checkpoint.files import damage
from ppo_lightning.checkpoint.state import RunState
from ppo_lightning.checkpoint.store import CheckpointStore
from ppo_lightning.config.schema import CheckpointConfig
from ppo_lightning.errors import CheckpointError

pytestmark = pytest.mark.skipif(not AVAILABLE, reason="follows system calls of Linux on x86_64")
LOUD = 3
ELSEWHERE = "/dev/shm"
"""A file system in memory: not the one that tests write to."""
ERRORS = {"write": errno.ENOSPC, "fsync": errno.EIO, "truncate": errno.ENOSPC, "allocate": errno.ENOSPC}


class Saving:
    """A run that stands after its second step, with checkpoints of steps 1 and 2, and can save again and again."""

    def __init__(self, module, data, folder, scratch):
        self.module, self.data, self.folder, self.scratch = module, data, folder, scratch
        self.first, self.second = (digests(folder / f"step_{step:06d}") for step in (1, 2))
        self.count = 0

    def copy(self, steps):
        """Return a new folder with the checkpoints of `steps`."""
        self.count += 1
        folder = self.scratch / f"copy_{self.count}"
        for step in steps:
            shutil.copytree(self.folder / f"step_{step:06d}", folder / f"step_{step:06d}")
        return folder

    def save(self, folder, keep=100):
        """Return an action for a child: save the second step; its exit code says whether that was refused."""

        def action():
            try:
                CheckpointStore(folder, CheckpointConfig(keep=keep)).save(self.module, self.data)
            except CheckpointError:
                return LOUD
            return 0

        return action

    def newest(self, folder):
        """Return the step that would be resumed, having compared every file with what was saved; None: no step."""
        path = CheckpointStore(folder, CheckpointConfig()).find("auto")
        if path is None:
            return None
        step = RunState.read(path).step
        assert digests(path) == {1: self.first, 2: self.second}[step]
        return step


@pytest.fixture(scope="module")
def checked(model, tmp_path_factory):
    """What the checks below found, made within one run: the models they save are those of a real step.

    The system's temporary folder is on another file system meanwhile: a rename from there would be a copy.
    """
    found = {}
    scratch = tmp_path_factory.mktemp("crash")

    def check(trainer, module, batch):
        schedule = next(callback for callback in trainer.callbacks if isinstance(callback, ScheduleCallback))
        schedule.store.save(module, trainer.datamodule)
        saving = Saving(module, trainer.datamodule, schedule.store.folder, scratch)
        for part in (killed, naively_moved, replaced, naively_replaced, refused, ordered):
            found[part.__name__] = part(saving)
        found["another"] = os.stat(tempfile.gettempdir()).st_dev != os.stat(scratch).st_dev

    with tempfile.TemporaryDirectory(dir=ELSEWHERE) as other, pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", other)
        patch.setenv("TMPDIR", other)
        start(model, scratch, *EXTRAS["ppo"], "trainer.steps=2", "data.workers=0", callbacks=[At(2, check)])
    return found


def listed(saving, steps, keep=100):
    """Return the events of one save that goes well."""
    folder = saving.copy(steps)
    status, events = trace(saving.save(folder, keep), folder)
    assert status == 0
    assert saving.newest(folder) == 2
    return events


def killed(saving):
    """Kill at each event, and half way through each file's first write; the first checkpoint is pruned at the end."""
    results = Counter()
    events = listed(saving, [1], keep=1)
    for event in events:
        for torn in (False, True) if event.kind == "write" and not event.nth else (False,):
            folder = saving.copy([1])
            status, _ = trace(saving.save(folder, keep=1), folder, event, torn=torn)
            assert os.WTERMSIG(status) == signal.SIGKILL
            assert not torn_under_its_name(folder)
            results[saving.newest(folder)] += 1
            shutil.rmtree(folder)
    return results, Counter(event.kind for event in events)


def torn_under_its_name(folder):
    """Whether the second checkpoint is there, and not whole."""
    path = folder / "step_000002"
    return path.exists() and damage(path) is not None


def naively_moved(saving):
    """Kill at each event of a save that is made in the system's temporary folder and moved; count the torn ones."""

    def save(folder):
        def action():
            made = shutil.copytree(saving.folder / "step_000002", tempfile.mkdtemp(), dirs_exist_ok=True)
            shutil.move(made, folder / "step_000002")
            return 0

        return action

    folder, torn = saving.copy([1]), 0
    for event in trace(save(folder), folder)[1]:
        folder = saving.copy([1])
        trace(save(folder), folder, event)
        torn += torn_under_its_name(folder)
        shutil.rmtree(folder)
    return torn


def replaced(saving):
    """Kill at each event of a save over a checkpoint of the same step, from the last file on."""
    return Counter(swaps(saving, saving.save))


def naively_replaced(saving):
    """The same for a save that removes what it replaces first."""

    def save(folder):
        def action():
            partial, target = folder / ".partial_step_000002", folder / "step_000002"
            shutil.copytree(saving.folder / "step_000002", partial)
            shutil.rmtree(target)
            partial.rename(target)
            return 0

        return action

    return Counter(swaps(saving, save))


def swaps(saving, save):
    folder = saving.copy([1, 2])
    _, events = trace(save(folder), folder)
    last_write = max(place for place, event in enumerate(events) if event.kind == "write")
    for event in events[last_write:]:
        folder = saving.copy([1, 2])
        trace(save(folder), folder, event)
        yield saving.newest(folder)
        shutil.rmtree(folder)


def refused(saving):
    """Let the first event of each kind on each path fail with the error that fits it."""
    results = Counter()
    events = listed(saving, [1])
    for event in events:
        if event.nth:
            continue
        folder = saving.copy([1])
        before = tree(folder / "step_000001")
        status, _ = trace(saving.save(folder), folder, event, ERRORS.get(event.kind, errno.EACCES))
        assert tree(folder / "step_000001") == before
        results[event.kind, os.waitstatus_to_exitcode(status), saving.newest(folder)] += 1
        shutil.rmtree(folder)
    return results


def ordered(saving):
    """Return (paths written outside the folder, files not synced after their last write when they get their name)."""
    folder = saving.copy([1])
    _, events = trace(saving.save(folder))
    ours = [event for event in events if event.path.startswith(str(folder))]
    renames = [place for place, event in enumerate(ours) if event.kind == "rename"]
    published = next(place for place in renames if os.path.dirname(ours[place].path) == str(folder))
    pending = set()
    for event in ours[:published]:
        if event.kind == "write":
            pending.add(event.path)
        elif event.kind == "fsync":
            pending.discard(event.path)
        elif event.kind == "rename" and event.path in pending:
            pending.remove(event.path)
            pending.add(event.to)
    synced_after = any(event.kind == "fsync" and event.path == str(folder) for event in ours[published:])
    return sorted({event.path for event in events} - {event.path for event in ours}), sorted(pending), synced_after


def test_pitfall_43_killed_at_any_event_of_a_save(checked):
    results, kinds = checked["killed"]
    assert {"open", "write", "fsync", "rename", "mkdir", "unlink"} <= set(kinds)
    assert set(results) == {1, 2}, f"torn, lost or unknown: {results}"
    assert sum(results.values()) > 60


def test_pitfall_43_a_temporary_folder_on_another_file_system_would_tear(checked):
    assert checked["another"]
    assert checked["naively_moved"] > 10


def test_pitfall_43_a_replaced_checkpoint_is_there_all_the_time(checked):
    assert set(checked["replaced"]) == {2}


def test_pitfall_43_removing_what_is_replaced_first_leaves_a_gap(checked):
    assert checked["naively_replaced"][1] > 0


def test_pitfall_43_errors_are_loud_and_change_nothing(checked):
    """Before the rename an error is a refusal and the first checkpoint stands; after it the second one is whole."""
    assert {found[1:] for found in checked["refused"]} <= {(LOUD, 1), (LOUD, 2)}, checked["refused"]
    assert sum(count for (_, *found), count in checked["refused"].items() if found == [LOUD, 1]) > 30


def test_pitfall_43_no_temporary_folder_and_everything_synced(checked):
    outside, unsynced, synced_after = checked["ordered"]
    assert outside == []
    assert unsynced == []
    assert synced_after


@pytest.fixture(scope="module")
def finished(model, tmp_path_factory):
    """Checkpoints folder of a finished run of three steps."""
    folder = tmp_path_factory.mktemp("damage")
    _, run = start(model, folder, *EXTRAS["grpo"], "trainer.steps=3", "data.workers=0")
    return run


def cut(path):
    path.write_bytes(path.read_bytes()[:-1])


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("harm", [cut, flip, os.remove], ids=["cut", "flipped bit", "missing"])
def test_pitfall_43_damage_to_any_file_is_seen(finished, tmp_path, harm):
    newest = finished / "checkpoints" / "step_000003"
    names = [path.relative_to(newest) for path in newest.rglob("*") if path.is_file()]
    assert len(names) > 5
    for name in names:
        folder = tmp_path / "checkpoints"
        shutil.copytree(finished / "checkpoints", folder)
        harm(folder / newest.name / name)
        store = CheckpointStore(folder, CheckpointConfig())
        seen = (harm is flip and name.name == "COMPLETE") or damage(folder / newest.name) is not None
        assert seen, name
        if damage(folder / newest.name) is not None:
            assert store.find("auto").name == "step_000002"
            (said,) = store.passed_over
            assert newest.name in said
            assert name.name in said or name.name == "COMPLETE"
            with pytest.raises(CheckpointError, match="not a whole checkpoint"):
                store.find(str(folder / newest.name))
        shutil.rmtree(folder)


def test_pitfall_43_no_run_is_begun_anew_over_damaged_checkpoints(finished, tmp_path):
    shutil.copytree(finished / "checkpoints", tmp_path / "checkpoints")
    for path in (tmp_path / "checkpoints").glob("step_*"):
        cut(path / "state.json")
    with pytest.raises(CheckpointError, match="no whole checkpoint is left"):
        CheckpointStore(tmp_path / "checkpoints", CheckpointConfig()).find("auto")


def test_a_resumed_run_says_what_it_passed_over(finished, model, tmp_path, capsys):
    """A run directory is moved, its newest checkpoint is damaged, and it goes on from another working directory."""
    moved = tmp_path / "elsewhere" / "run"
    shutil.copytree(finished, moved)
    flip(moved / "checkpoints" / "step_000003" / "optimizer_actor.pt")
    here = os.getcwd()
    os.chdir(tmp_path)
    try:
        code, _ = start(model, "elsewhere", *EXTRAS["grpo"], "trainer.steps=3", "data.workers=0", resume="auto")
    finally:
        os.chdir(here)
    assert code == 0
    said = capsys.readouterr().out
    assert "step_000003 is passed over: optimizer_actor.pt has other bytes than were written" in said
    assert "resume: after step 2" in said
    assert digests(moved / "checkpoints" / "step_000003") == digests(finished / "checkpoints" / "step_000003")
