"""FSDP2 on two processes gives the numbers of DDP, and a run goes on under another strategy or number of ranks."""

import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

sys.path.insert(0, str(Path(__file__).parent))
import rank_jobs

OPTIONS = [
    "actor.use_kl_loss=true",
    "update.tokens_per_microbatch=80",  # one or two rows: the ranks need different numbers of micro-batches
    "update.share_prompts=false",
    "checkpoint.every_steps=2",
    "trainer.steps=3",
]
LORA = ["model.lora_rank=4", "actor.lr=1e-3", "critic.lr=1e-3"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Folder of runs: `straight` and `sharded` to the end, and such as go on from the other's second step."""
    folder = tmp_path_factory.mktemp("fsdp")
    model = rank_jobs.save_small_model(tmp_path_factory.mktemp("small"))
    saved = {name: str(folder / "2" / name / "checkpoints" / "step_000002") for name in ("straight", "sharded")}

    def job(name, strategy, resume="never", options=(), ranks=2, **more):
        options = (*OPTIONS, *options)
        return rank_jobs.job(folder, model, name, *options, ranks=ranks, strategy=strategy, resume=resume, **more)

    jobs = [
        job("straight", "ddp"),
        job("sharded", "fsdp"),
        job("ddp_on", "ddp", saved["sharded"]),
        job("fsdp_on", "fsdp", saved["straight"]),
        job("ddp_bad", "ddp", strike=("nan", 1, 3, 1)),
        job("fsdp_bad", "fsdp", strike=("nan", 1, 3, 1)),
        job("ddp_ended", "ddp", strike=("term", 1, 2, 1), code=143),
        job("fsdp_ended", "fsdp", strike=("term", 1, 2, 1), code=143),
        job("ddp_again", "ddp", str(folder / "2" / "ddp_ended" / "checkpoints" / "step_000001")),
        job("fsdp_again", "fsdp", str(folder / "2" / "fsdp_ended" / "checkpoints" / "step_000001")),
    ]
    jobs += [job(f"lora_{strategy}", strategy, options=LORA) for strategy in ("ddp", "fsdp")]
    saved["lora"] = str(folder / "2" / "lora_fsdp" / "checkpoints" / "step_000002")
    jobs += [job(f"lora_{strategy}_on", strategy, saved["lora"], options=LORA) for strategy in ("ddp", "fsdp")]
    jobs.append(job("small", "fsdp", options=[*LORA, "model.dtype=bfloat16"]))
    jobs.append(job("small_whole", "fsdp", options=["model.dtype=bfloat16"]))
    with rank_jobs.Group(jobs, folder) as two:
        two.wait()
    rank_jobs.do([job("one_on", "single", saved["sharded"], ranks=1)])
    return folder


def test_fsdp_equals_ddp(runs):
    """Losses, metrics and weights of three steps; the ranks' numbers of micro-batches differ."""
    straight, sharded = runs / "2" / "straight", runs / "2" / "sharded"
    found = rank_jobs.differences(rank_jobs.lines(straight), rank_jobs.lines(sharded))
    assert {key: value for key, value in found.items() if value > 1e-5} == {}
    assert found["actor/pg_loss"] <= 2e-6
    left, right = (rank_jobs.kept(folder, 2)[0]["weights"] for folder in (straight, sharded))
    assert rank_jobs.weight_difference(left, right) <= 1e-6


def test_models_are_cut_over_the_ranks(runs):
    """Negative control of the above: no rank held a whole actor, critic or reference under fsdp, each did under ddp."""
    for name, share in (("straight", 1.0), ("sharded", 0.5)):
        kept = rank_jobs.kept(runs / "2" / name, 2)
        total = sum(value.numel() for value in kept[0]["weights"].values())
        assert [part["held"] / total for part in kept] == pytest.approx([share, share], abs=0.02)


def test_a_checkpoint_of_fsdp_holds_whole_tensors(runs):
    folder = runs / "2" / "sharded" / "checkpoints" / "step_000003"
    final = rank_jobs.kept(runs / "2" / "sharded", 2)[0]["weights"]
    loaded = AutoModelForCausalLM.from_pretrained(folder / "actor").state_dict()
    assert all(
        torch.equal(loaded[name.removeprefix("actor.")], value) for name, value in final.items() if "actor" in name
    )
    critic = load_file(folder / "critic.safetensors")
    assert all(torch.equal(value, final[f"critic.{name}"]) for name, value in critic.items())


@pytest.mark.parametrize(("ranks", "name"), [(2, "ddp_on"), (2, "fsdp_on"), (1, "one_on")])
def test_a_run_goes_on_under_another_strategy_and_number_of_ranks(runs, ranks, name):
    """The third step after a resume is that of the run that never stopped."""
    straight, resumed = rank_jobs.lines(runs / "2" / "straight")[-1:], rank_jobs.lines(runs / str(ranks) / name)
    assert [line["step"] for line in resumed] == [3]
    found = rank_jobs.differences(straight, resumed)
    assert {key: value for key, value in found.items() if value > 1e-5} == {}
    left = rank_jobs.kept(runs / "2" / "straight", 2)[0]["weights"]
    right = rank_jobs.kept(runs / str(ranks) / name, ranks)[0]["weights"]
    assert rank_jobs.weight_difference(left, right) <= 1e-6


def test_lora_under_fsdp_equals_ddp(runs):
    """The reference is the adapter switched off, the engine's copy gets merged weights, and both train."""
    ddp, fsdp = runs / "2" / "lora_ddp", runs / "2" / "lora_fsdp"
    found = rank_jobs.differences(rank_jobs.lines(ddp), rank_jobs.lines(fsdp))
    assert {key: value for key, value in found.items() if value > 1e-5} == {}
    left, right = (rank_jobs.kept(folder, 2)[0] for folder in (ddp, fsdp))
    assert left["weights"].keys() == right["weights"].keys()
    assert rank_jobs.weight_difference(left["weights"], right["weights"]) <= 1e-6
    assert any(float(value.abs().max()) > 1e-4 for name, value in right["weights"].items() if "lora_B" in name)
    assert right["held"] < 0.6 * left["held"]


def test_an_adapter_of_fsdp_is_saved_whole(runs):
    """The two folders of a checkpoint are those of the run under ddp, merged weights and adapter."""
    saved = {}
    for name in ("lora_ddp", "lora_fsdp"):
        folder = runs / "2" / name / "checkpoints" / "step_000003"
        adapter = load_file(folder / "adapter" / "adapter_model.safetensors")
        saved[name] = AutoModelForCausalLM.from_pretrained(folder / "actor").state_dict() | adapter
    assert saved["lora_ddp"].keys() == saved["lora_fsdp"].keys()
    assert rank_jobs.weight_difference(saved["lora_ddp"], saved["lora_fsdp"]) <= 1e-6


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_an_adapter_goes_on_under_either_strategy(runs, strategy):
    straight, resumed = (rank_jobs.lines(runs / "2" / name) for name in ("lora_fsdp", f"lora_{strategy}_on"))
    assert [line["step"] for line in resumed] == [3]
    found = rank_jobs.differences(straight[-1:], resumed)
    assert {key: value for key, value in found.items() if value > 1e-5} == {}


@pytest.mark.parametrize("name", ["small", "small_whole"])
def test_weights_of_two_types_are_cut(runs, name):
    """A bfloat16 model has a float32 value head, and float32 adapters."""
    steps = [line for line in rank_jobs.lines(runs / "2" / name) if line["step"]]
    assert [line["step"] for line in steps] == [1, 2, 3]
    assert all(line["actor/grad_norm"] > 0 and line["critic/grad_norm"] > 0 for line in steps)
    types = {value.dtype for value in rank_jobs.kept(runs / "2" / name, 2)[0]["weights"].values()}
    assert types == {torch.bfloat16, torch.float32}


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_pitfall_45_one_rank_s_bad_mini_batch_takes_the_step_back_on_all(runs, strategy):
    """The actor's second mini-batch of step 3 on the second rank; its first and both of the critic's were taken."""
    folder = runs / "2" / f"{strategy}_bad"
    before, after = (rank_jobs.digests(folder / "checkpoints" / f"step_{step:06d}") for step in (2, 3))
    assert before == after
    assert {"actor/model.safetensors", "critic.safetensors", "optimizer_actor.pt", "optimizer_critic.pt"} <= set(after)
    assert rank_jobs.lines(folder)[-1]["training/skipped_steps"] == 1
    first, second = rank_jobs.kept(folder, 2)
    assert rank_jobs.weight_difference(first["weights"], second["weights"]) == 0
    good = runs / "2" / {"ddp": "straight", "fsdp": "sharded"}[strategy] / "checkpoints"
    assert rank_jobs.digests(good / "step_000002") == before
    assert rank_jobs.digests(good / "step_000003").items().isdisjoint(before.items())  # every file changes in a step


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_pitfall_44_a_signal_to_one_rank_in_an_update_breaks_the_step_off_on_all(runs, strategy):
    """Between the actor's two optimizer steps of step 2; the run that resumes repeats it exactly."""
    ended, again = (runs / "2" / f"{strategy}_{name}" for name in ("ended", "again"))
    assert [line["step"] for line in rank_jobs.lines(ended)] == [1]
    assert [path.name for path in (ended / "checkpoints").iterdir()] == ["step_000001"]
    straight = runs / "2" / {"ddp": "straight", "fsdp": "sharded"}[strategy]
    found = rank_jobs.differences(rank_jobs.lines(straight)[1:], rank_jobs.lines(again))
    assert {key: value for key, value in found.items() if value} == {}
    assert rank_jobs.digests(again / "checkpoints" / "step_000003") == rank_jobs.digests(
        straight / "checkpoints" / "step_000003"
    )
