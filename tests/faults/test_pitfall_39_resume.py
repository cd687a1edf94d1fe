"""A run that was stopped and resumed is the run that never stopped: not one value differs."""

import itertools
import sys
from pathlib import Path

import lightning as L
import pytest
from fault_rigs import EXTRAS, MOVING, SMALL, differences, start

sys.path.append(str(Path(__file__).parents[1] / "integration"))
import rank_jobs

STEPS = 6
CUTS = {"ppo": (2, 3, 4), "grpo": (3,)}
"""With 3 steps an epoch: before an epoch's last step, on its border, and after the next one's first."""
WORKERS = {"ppo": 2, "grpo": 0}
VALIDATION = ["data.val=arithmetic:rows=3,digits=1,seed=2", "validation.every_steps=2"]


def options(algorithm):
    return [*EXTRAS[algorithm], *MOVING, *VALIDATION, f"data.workers={WORKERS[algorithm]}"]


def in_pieces(model, folder, cuts, steps, *overrides, callbacks=()):
    """Run to each cut, ending there, and resume from it."""
    for place, cut in enumerate([*cuts, steps]):
        resume = "auto" if place else "never"
        code, pieces = start(model, folder, *overrides, f"trainer.steps={cut}", resume=resume, name="pieces")
        assert code == 0
    return pieces


@pytest.fixture(scope="module", params=["ppo", "grpo"])
def straight(request, model, tmp_path_factory):
    """An algorithm, and the run directory of STEPS steps of it without a stop."""
    folder = tmp_path_factory.mktemp(request.param)
    code, straight = start(model, folder, *options(request.param), f"trainer.steps={STEPS}", name="straight")
    assert code == 0
    return request.param, straight


def test_pitfall_39_resumes_change_nothing(straight, model, tmp_path):
    algorithm, whole = straight
    pieces = in_pieces(model, tmp_path, CUTS[algorithm], STEPS, *options(algorithm))
    assert differences(whole, pieces) == []


LORA = ["model.lora_rank=2", "model.lora_alpha=4"]


def test_an_adapter_is_resumed_exactly(model, tmp_path):
    """PPO: the actor's adapter and the critic's, with the reference that is the actor without one."""
    chosen = [*options("ppo"), *LORA, "data.workers=0"]
    _, whole = start(model, tmp_path, *chosen, "trainer.steps=4", name="straight")
    pieces = in_pieces(model, tmp_path, (2,), 4, *chosen)
    assert differences(whole, pieces) == []


class Forget(L.Callback):
    """What a resume forgets that keeps weights and optimizers only."""

    def on_fit_start(self, trainer, pl_module):
        pl_module.kl_controller.value = 0.1


class Restart(L.Callback):
    """What a resume does that begins the epoch anew."""

    def on_fit_start(self, trainer, pl_module):
        trainer.datamodule.drawn = 0


@pytest.mark.parametrize(("naive", "shows"), [(Forget, "reward_kl_penalty_coeff"), (Restart, "rollouts/step_000006")])
def test_a_resume_that_forgets_is_seen(straight, model, tmp_path, naive, shows):
    algorithm, whole = straight
    if algorithm == "ppo":
        pytest.skip("once is enough")
    path = whole / "checkpoints" / "step_000005"
    arguments = [*options(algorithm), f"trainer.steps={STEPS}"]
    start(model, tmp_path, *arguments, name="pieces", resume=str(path), callbacks=[naive()])
    found = differences(whole, tmp_path / "pieces")
    assert any(shows in place for place in found)


ROWS = ["data.train=arithmetic:rows=30,digits=1,seed=1"]  # 7 steps an epoch
SIX_CUTS = (1, 7, 8, 15, 16, 18)
"""Of 20 steps: both sides of an epoch's border and three within one epoch among them."""
CASES = [*itertools.product(("ppo", "grpo"), (0, 2), ((),)), ("ppo", 0, LORA), ("grpo", 0, LORA)]


@pytest.mark.long
@pytest.mark.parametrize(("algorithm", "workers", "lora"), CASES)
def test_the_matrix(model, tmp_path, algorithm, workers, lora):
    """One rank."""
    chosen = [*options(algorithm), *ROWS, f"data.workers={workers}", *lora]
    _, whole = start(model, tmp_path, *chosen, "trainer.steps=20", name="straight")
    pieces = in_pieces(model, tmp_path, SIX_CUTS, 20, *chosen)
    assert differences(whole, pieces) == []


@pytest.mark.long
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_the_matrix_on_two_ranks(model, tmp_path, strategy):
    """The same cuts; with ddp an adapter too, which fsdp does not train."""
    cases = {"ppo": options("ppo"), "grpo": options("grpo")}
    cases |= {"lora": [*options("ppo"), *LORA]} if strategy == "ddp" else {}
    jobs = []
    for name, chosen in cases.items():
        for run, ends in ((f"{name}-whole", [20]), (f"{name}-pieces", [*SIX_CUTS, 20])):
            for end in ends:
                resume, steps = "auto" if end != ends[0] else "never", f"trainer.steps={end}"
                arguments = (tmp_path, model, run, *SMALL, *chosen, *ROWS, "data.workers=0", steps)
                jobs.append(rank_jobs.job(*arguments, ranks=2, strategy=strategy, resume=resume))
    with rank_jobs.Group(jobs, tmp_path) as two:
        two.wait(1800)
    for name in cases:
        assert differences(tmp_path / "2" / f"{name}-whole", tmp_path / "2" / f"{name}-pieces") == []
