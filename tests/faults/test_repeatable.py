"""The same recipe gives the same numbers: twice here, and those that were recorded; what it leaves on disk; a soak."""

import json
import mmap
import os
import platform
import re
import time
import traceback
from pathlib import Path

import lightning as L
import pytest
import torch
from fault_rigs import EXTRAS, MOVING, SMALL, digests, lines, start
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoModelForCausalLM, AutoTokenizer

from ppo_lightning.cli import main

GOLDEN = Path(__file__).parents[1] / "golden" / "losses.json"
KEYS = ("actor/pg_loss", "actor/grad_norm", "actor/entropy", "critic/vf_loss", "critic/score/mean", "actor/kl_loss")
STEPS, AGAIN = 20, 5
OPTIONS = {name: [*extras, *MOVING, "data.workers=0", f"trainer.steps={STEPS}"] for name, extras in EXTRAS.items()}
RETENTION = ["checkpoint.keep=2", "checkpoint.every_steps=1"]


def machine():
    """Return what the last bits of a float32 sum depend on."""
    info = Path("/proc/cpuinfo")
    told = info.read_text().split("\n\n")[0] if info.exists() else platform.processor()
    kind = re.findall(r"^(?:vendor_id|cpu family|model)\s*: (.*)$", told, flags=re.MULTILINE) or [told]
    return {
        "torch": torch.__version__,
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "isa": platform.machine(),
        "kind": kind,
    }


@pytest.fixture(scope="module", params=["ppo", "grpo"])
def twice(request, model, tmp_path_factory):
    """An algorithm, the directory of a run of it, and that of a shorter one that asks for deterministic kernels."""
    one, two = (tmp_path_factory.mktemp(f"{request.param}_{name}") for name in ("one", "two"))
    _, one = start(model, one, *OPTIONS[request.param])
    _, two = start(model, two, *OPTIONS[request.param], f"trainer.steps={AGAIN}", "trainer.deterministic=true")
    return request.param, one, two


def test_the_same_recipe_gives_the_same_numbers(twice):
    _, one, two = twice
    assert len(lines(one)) == STEPS
    assert lines(one)[:AGAIN] == lines(two)
    for path in (two / "rollouts").iterdir():
        assert path.read_text() == (one / "rollouts" / path.name).read_text()
    last = f"step_{AGAIN:06d}"
    assert digests(one / "checkpoints" / last) == digests(two / "checkpoints" / last)


@pytest.mark.parametrize(("flag", "wanted"), [([], False), (["--deterministic"], True)])
def test_the_flag_puts_deterministic_kernels_in_force(model, tmp_path, monkeypatch, flag, wanted):
    """What it does on a GPU is in tests/gpu/test_deterministic.py; what asks torch and cuBLAS for it is seen here."""
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    places = [f"model.path={model}", f"output_dir={tmp_path}", "name=run", "data.workers=0", "trainer.steps=1"]
    try:
        assert main(["fit", *flag, *SMALL, *EXTRAS["grpo"], *places]) == 0
        assert torch.are_deterministic_algorithms_enabled() is wanted
        assert os.environ.get("CUBLAS_WORKSPACE_CONFIG") == (":4096:8" if wanted else None)
    finally:
        torch.use_deterministic_algorithms(False)


UNSTEADY = {"aten::cumsum", "aten::cumsum_", "aten::cumsum.out", "aten::histc", "aten::kthvalue", "aten::bincount"}
UNSTEADY |= {"aten::median.dim", "aten::put_", "aten::cumprod", "aten::logcumsumexp"}
"""Operations without a deterministic kernel for CUDA, which torch refuses there; some only with broken numbers."""


class NoUnsteady(TorchDispatchMode):
    """Notes where such an operation is called, other than by the function that has a way around it."""

    def __init__(self):
        super().__init__()
        self.calls, self.found = 0, []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.calls += 1
        if function.name() in UNSTEADY and args[0].is_floating_point():
            frames = [frame for frame in traceback.extract_stack() if "ppo_lightning/" in frame.filename]
            if not frames or frames[-1].name != "running_sum":
                self.found.append((function.name(), frames[-1:]))
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("algorithm", ["ppo", "grpo"])
def test_no_operation_of_a_step_lacks_a_deterministic_kernel(model, tmp_path, algorithm):
    """Seen on a CPU: all operations of a run, with all that is optional in sampling."""
    sampling = ["rollout.top_p=0.9", "rollout.top_k=50", "rollout_correction.rollout_is=token"]
    with NoUnsteady() as mode:
        start(model, tmp_path, *EXTRAS[algorithm], *MOVING, *sampling, "data.workers=0", "trainer.steps=1")
    assert mode.calls > 1000
    assert mode.found == []
    with NoUnsteady() as mode:
        torch.rand(3).cumsum(-1)
        torch.ones(3, dtype=torch.int64).cumsum(-1)
    assert [name for name, _ in mode.found] == ["aten::cumsum"]


def test_another_seed_gives_others(twice, model, tmp_path):
    algorithm, one, _ = twice
    if algorithm == "ppo":
        pytest.skip("once is enough")
    _, other = start(model, tmp_path, *OPTIONS[algorithm], "trainer.steps=2", "seed=2")
    assert lines(one)[0]["actor/grad_norm"] != lines(other)[0]["actor/grad_norm"]


def test_golden_losses(twice, record_property):
    """Bit for bit where torch and the CPU's instructions are those of the recording, else to 1e-3 over 5 steps.

    Another instruction set adds up float32 in another order; after some steps a sampled token may differ, and from
    there on everything does. WRITE_GOLDEN=1 records anew.
    """
    algorithm, one, _ = twice
    found = [{key: row[key] for key in KEYS if key in row} for row in lines(one)]
    recorded = json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {"machine": machine()}
    if os.environ.get("WRITE_GOLDEN"):
        GOLDEN.parent.mkdir(exist_ok=True)
        GOLDEN.write_text(json.dumps(recorded | {"machine": machine(), algorithm: found}, indent=1) + "\n")
        return
    exact = recorded["machine"] == machine()
    record_property("golden", "exact" if exact else f"to 1e-3: recorded on {recorded['machine']}, this is {machine()}")
    if exact:
        assert found == recorded[algorithm]
        return
    for row, wanted in zip(found[:5], recorded[algorithm][:5], strict=True):
        assert row == pytest.approx(wanted, rel=1e-3, abs=1e-5)


def test_every_checkpoint_loads_in_transformers(twice):
    """Each step's weights, and no two the same: that the logits are the policy's is shown below."""
    _, one, _ = twice
    ids = torch.arange(5, 25).unsqueeze(0)
    seen = set()
    for path in sorted((one / "checkpoints").glob("step_*")):
        with torch.no_grad():
            seen.add(AutoModelForCausalLM.from_pretrained(path / "actor")(ids).logits.sum().item())
    assert len(seen) == STEPS


class Logits(L.Callback):
    """Takes the logits of the policy after each step."""

    def __init__(self):
        self.ids, self.taken = torch.arange(5, 25).unsqueeze(0), {}

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        with torch.no_grad():
            self.taken[pl_module.step] = pl_module.actor.eval()(self.ids).logits


def test_disk_holds_the_last_and_the_best(model, tmp_path):
    """keep=2 of six steps, and the best by validation, whichever that is; each with the logits the policy had."""
    logits = Logits()
    best = ["data.val=arithmetic:rows=4,digits=1,seed=2", "validation.every_steps=1", "validation.before_train=false"]
    best += ["checkpoint.best_metric=val-core/arithmetic/acc/mean@1", "trainer.steps=6", *RETENTION]
    _, run = start(model, tmp_path, *EXTRAS["grpo"], "data.workers=0", *best, callbacks=[logits])
    values = {row["step"]: row["val-core/arithmetic/acc/mean@1"] for row in lines(run)}
    highest = min(step for step, value in values.items() if value == max(values.values()))
    kept = {int(path.name[5:]): path for path in (run / "checkpoints").iterdir()}
    assert set(kept) == {5, 6, highest}
    for step, path in kept.items():
        with torch.no_grad():
            loaded = AutoModelForCausalLM.from_pretrained(path / "actor")(logits.ids).logits
        assert torch.equal(loaded, logits.taken[step])
        assert AutoTokenizer.from_pretrained(path / "actor").chat_template


class Watch(L.Callback):
    """Notes memory, descriptors, processes and the clock after each step."""

    def __init__(self):
        self.rows = []

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        import psutil

        me = psutil.Process()
        resident = me.memory_info().rss / 2**20
        self.rows.append((resident, me.num_fds(), len(me.children(recursive=True)), time.perf_counter()))


def soak(model, folder, steps):
    """Return MiB per step, descriptors and processes gained, and late over early step time."""
    watch = Watch()
    options = [*EXTRAS["ppo"], *MOVING, "data.workers=2", *RETENTION, f"trainer.steps={steps}"]
    start(model, folder, *options, callbacks=[watch])
    warm = watch.rows[steps // 3 :]
    memory, descriptors, processes, clock = (
        torch.tensor(column, dtype=torch.float64) for column in zip(*warm, strict=True)
    )
    x = torch.arange(len(warm), dtype=torch.float64)
    slope = float(((x - x.mean()) * (memory - memory.mean())).sum() / ((x - x.mean()) ** 2).sum())
    seconds = clock.diff()
    half = len(seconds) // 2
    found = {
        "MiB per step": slope,
        "descriptors": int(descriptors[-1] - descriptors[0]),
        "processes": int(processes[-1] - processes[0]),
        "step time, late over early": float(seconds[half:].median() / seconds[:half].median()),
        "seconds per step": float(seconds.median()),
    }
    print(found)  # noqa: T201 - the figure of docs/reliability.md: pytest -s
    return found


def test_nothing_grows_in_30_steps(model, tmp_path):
    found = soak(model, tmp_path, 30)
    assert found["MiB per step"] < 1.0
    assert found["descriptors"] <= 2
    assert found["processes"] == 0


def test_a_leak_is_seen(model, tmp_path):
    """The negative control: a callback that keeps 4 MiB and a descriptor of every step."""
    kept = []

    class Leak(Watch):
        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            block = mmap.mmap(-1, 2**22)  # of its own: freed memory of the process is not taken for it
            block.write(bytes(range(1, 256)) * 16448)
            kept.append((block, open(os.devnull)))  # noqa: SIM115
            super().on_train_batch_end(trainer, pl_module, outputs, batch, batch_idx)

    watch = Leak()
    start(model, tmp_path, *EXTRAS["grpo"], "data.workers=0", "trainer.steps=6", callbacks=[watch])
    assert watch.rows[-1][0] - watch.rows[1][0] > 12
    assert watch.rows[-1][1] - watch.rows[1][1] >= 4
    for _, handle in kept:
        handle.close()


@pytest.mark.long
def test_nothing_grows_in_300_steps(model, tmp_path):
    found = soak(model, tmp_path, 300)
    assert found["MiB per step"] < 0.05
    assert found["descriptors"] <= 2
    assert found["processes"] == 0
    assert found["step time, late over early"] < 1.5
