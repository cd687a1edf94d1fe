"""The contract that every engine keeps, on the real engines: transformers, vLLM in process, vLLM servers.

vLLM changes the process that it runs in (process group, thread pool), so its part has a process of its own: `make
test-vllm`.
"""

import copy
import importlib.util
import sys
import threading
from pathlib import Path

import pytest
import torch

from ppo_lightning.callbacks.rollout import check_weights
from ppo_lightning.cli import main
from ppo_lightning.config.schema import ModelConfig
from ppo_lightning.errors import EngineError
from ppo_lightning.models.lora import adapter_off, add_adapter

sys.path.insert(0, str(Path(__file__).parent))
import engine_rigs as rigs

ENGINES = [
    "transformers",
    pytest.param("vllm", marks=pytest.mark.vllm),
    pytest.param("vllm_server", marks=pytest.mark.vllm),
]
QUESTIONS = ["What is 3 + 4?", "How many legs do two dogs have?", "Name a colour."]
PROMPTS = [list(range(5 + row, 12 + 3 * row)) for row in range(12)]


def vllm_or_skip(config):
    if importlib.util.find_spec("vllm") is None:
        pytest.skip("vLLM is not installed: make vllm")
    if "vllm" not in config.option.markexpr:
        pytest.skip("vLLM changes the process it runs in: make test-vllm")


@pytest.fixture(scope="module")
def base(real_model, tmp_path_factory):
    return rigs.save_model(tmp_path_factory.mktemp("engine_model"), real_model)


@pytest.fixture(scope="module")
def trained(base, tmp_path_factory):
    """Run directory in which an adapter was trained."""
    return rigs.train(tmp_path_factory.mktemp("trained"), base)


@pytest.fixture(scope="module")
def folder(trained):
    """What all engines load: the Hugging Face folder of a checkpoint, with the adapter merged in."""
    return str(trained / "checkpoints" / "step_000002" / "actor")


@pytest.fixture(scope="module")
def server(request, folder, tmp_path_factory):
    vllm_or_skip(request.config)
    with rigs.Server(folder, tmp_path_factory.mktemp("server") / "log") as running:
        running.answers = [rigs.asked(running.address, folder, question) for question in QUESTIONS]  # as it was loaded
        yield running


@pytest.fixture(scope="module", params=ENGINES)
def rig(request, folder, tmp_path_factory):
    """Each engine in turn, with the weights of version 0."""
    if request.param == "transformers":
        made = rigs.transformers_rig(folder)
    elif request.param == "vllm":
        vllm_or_skip(request.config)
        made = rigs.vllm_rig(folder)
    else:
        addresses = [request.getfixturevalue("server").address]
        made = rigs.server_rig(folder, addresses, tmp_path_factory.mktemp("weights") / "w")
    yield made
    made.engine.close()


@pytest.mark.vllm
def test_a_checkpoint_is_served(server, folder, base):
    """`vllm serve DIR`: the folder of a checkpoint gives, through the OpenAI API, what transformers reads in it."""
    assert server.answers == [rigs.greedy(folder, question) for question in QUESTIONS]
    assert server.answers != [rigs.greedy(base, question) for question in QUESTIONS]  # negative control: untrained


def test_what_export_writes_is_what_a_checkpoint_holds(folder, trained, tmp_path):
    """File by file: what is served above is a merged adapter's export as well."""
    assert main(["export", str(trained), "--to", str(tmp_path / "out")]) == 0
    held, written = ({f.name: f.read_bytes() for f in place.iterdir()} for place in (Path(folder), tmp_path / "out"))
    assert held == written
    assert {"model.safetensors", "config.json", "tokenizer.json"} <= held.keys()


def test_greedy_takes_the_likeliest_token(rig):
    done = rig.generate(PROMPTS, temperature=0.0)
    for prompt, completion in zip(PROMPTS, done, strict=True):
        logits = rig.logits(prompt, completion)
        taken = logits.gather(-1, torch.tensor(completion.token_ids)[:, None])[:, 0]
        assert torch.all(logits.amax(-1) - taken < 1e-4)
    assert rig.gap(PROMPTS, done) < 1e-4


@pytest.mark.parametrize("temperature", [0.7, 1.0])
def test_log_probs_are_those_sampled_from(rig, temperature):
    done = rig.generate(PROMPTS, temperature=temperature)
    assert [len(completion.log_probs) for completion in done] == [12] * len(PROMPTS)
    assert rig.gap(PROMPTS, done, temperature) <= 1e-4
    if temperature != 1.0:
        assert rig.gap(PROMPTS, done, 1.0) > 1e-2  # the raw log-probs would be told apart


def test_truncated_sampling_stays_inside_its_support(rig):
    done = rig.generate(PROMPTS, top_k=3)
    for prompt, completion in zip(PROMPTS, done, strict=True):
        best = rig.logits(prompt, completion).topk(3).indices
        assert all(token in row for token, row in zip(completion.token_ids, best.tolist(), strict=True))


def test_what_is_sampled_depends_on_the_key_only(rig):
    first = rig.generate(PROMPTS)
    again = rig.generate(PROMPTS)
    requests = [rigs.Request(row, tuple(PROMPTS[row]), (1, 0, 3, row, 0)) for row in reversed(range(len(PROMPTS)))]
    turned = rig.engine.generate(requests, rigs.Sampling(1.0, 12))
    alone = rig.engine.generate([requests[0]], rigs.Sampling(1.0, 12))
    other = rig.engine.generate([rigs.Request(0, tuple(PROMPTS[0]), (1, 0, 4, 0, 0))], rigs.Sampling(1.0, 12))
    tokens = [completion.token_ids for completion in first]
    assert [completion.token_ids for completion in again] == tokens
    assert [completion.row for completion in turned] == [request.row for request in requests]
    assert [completion.token_ids for completion in reversed(turned)] == tokens
    assert alone[0].token_ids == tokens[-1]
    assert other[0].token_ids != tokens[0]


def test_stop_ids(rig):
    """Any of the ids ends a response and stays its last token; the model's own EOS is one only if it is listed."""
    free = rig.generate(PROMPTS, ignore_eos=True, stop_ids=(2,))
    assert {(len(completion.token_ids), completion.finish_reason) for completion in free} == {(12, "length")}
    ends = (free[0].token_ids[3], free[1].token_ids[5])
    for before, after in zip(free, rig.generate(PROMPTS, stop_ids=ends), strict=True):
        place = next((i for i, token in enumerate(before.token_ids) if token in ends), None)
        assert after.token_ids == before.token_ids[: None if place is None else place + 1]
        assert after.finish_reason == ("length" if place is None else "stop")
    last = rig.generate(PROMPTS[:1], stop_ids=(free[0].token_ids[-1],))[0]
    assert last.finish_reason == "stop"  # a stop id as the last token of the budget


def test_budgets(rig):
    assert [len(c.token_ids) for c in rig.generate(PROMPTS, max_tokens=1)] == [1] * len(PROMPTS)
    prompts = [list(range(3, rigs.CONTEXT - 1)), list(range(3, 13)), [7]]
    done = rig.generate(prompts, max_tokens=40, temperature=0.0)
    assert [len(c.token_ids) for c in done] == [rigs.CONTEXT - len(prompts[0]), 40, 40]
    assert {c.finish_reason for c in done} == {"length"}
    assert rig.gap(prompts, done) < 1e-4
    for wrong in ([], [5] * rigs.CONTEXT):
        with pytest.raises(EngineError, match="row 1: a prompt needs 1 to 511 tokens"):
            rig.generate([[5], wrong])


def test_two_hundred_prompts_of_mixed_lengths(rig):
    prompts = [[3 + (7 * row + 11 * place) % 900 for place in range(1 + (37 * row) % 120)] for row in range(200)]
    seen = []
    done = rig.generate(prompts, seen.append, max_tokens=6)
    assert [completion.row for completion in done] == list(range(200))
    assert sorted(completion.row for completion in seen) == list(range(200))
    assert rig.gap(prompts[::8], done[::8]) <= 1e-4


def test_responses_are_handed_over_as_they_end(rig):
    """A response that stops early is seen before one that uses its budget."""
    free = rig.generate(PROMPTS[:2], ignore_eos=True)
    end = next(token for token in free[1].token_ids[:3] if token not in free[0].token_ids)
    seen = []
    rig.generate(PROMPTS[:2], lambda completion: seen.append(completion.row), max_tokens=200, stop_ids=(end,))
    assert seen[0] == 1


def test_weights_follow_the_policy(rig):
    """Five syncs, each of which moves every weight, the tied embeddings included."""
    before = [completion.token_ids for completion in rig.generate(PROMPTS, temperature=0.0)]
    for _ in range(5):
        rig.change(0.02)
        rig.sync()
        assert rig.engine.version == rig.version
        assert rig.engine.checksum() == pytest.approx(rig.engine.expected_checksum(rig.policy), rel=1e-12)
        check_weights(rig.engine, rig.policy)
    done = rig.generate(PROMPTS, temperature=0.0)
    assert [completion.token_ids for completion in done] != before
    assert rig.gap(PROMPTS, done) < 1e-4


def test_pitfall_36_merged_weights_of_an_adapter_follow_it(rig, monkeypatch):
    """Right at the first sync and at the second: base and adapter move between them."""
    adapted = add_adapter(copy.deepcopy(rig.policy), ModelConfig(lora_rank=4))
    with monkeypatch.context() as patch:
        patch.setattr(rig, "policy", adapted)
        for _ in range(2):
            rig.change(0.02)
            rig.sync()
            check_weights(rig.engine, rig.policy)
            assert rig.gap(PROMPTS, rig.generate(PROMPTS, temperature=0.0)) < 1e-4
            with adapter_off(adapted):  # negative control: the base alone is another policy
                assert rig.gap(PROMPTS, rig.generate(PROMPTS, temperature=0.0)) > 1e-2
    rig.sync()


def test_a_skipped_sync_is_caught(rig):
    """Negative control, with a change as small as one optimizer step at a learning rate of 1e-6."""
    rig.change(1e-6)
    rig.engine.version = rig.version  # what a sync that silently did nothing would leave
    with pytest.raises(EngineError, match="checksum"):
        check_weights(rig.engine, rig.policy)
    rig.sync()
    check_weights(rig.engine, rig.policy)


def test_no_prefix_of_former_weights(rig, monkeypatch):
    """300 tokens shared before and after a sync; without emptying the cache (negative control) vLLM keeps them."""
    shared = [3 + (13 * place) % 700 for place in range(300)]
    prompts = [[*shared, 50 + row] for row in range(4)]
    rig.generate(prompts)
    rig.change(0.05)
    rig.sync()
    assert rig.gap(prompts, rig.generate(prompts)) <= 1e-4
    if rig.engine.name == "transformers":
        return
    for owner in [rig.engine, *getattr(rig.engine, "live", [])]:
        monkeypatch.setattr(owner, "forget_prefixes", lambda: None, raising=False)
    rig.change(0.05)
    rig.sync()
    assert rig.gap(prompts, rig.generate(prompts)) > 1e-2
    monkeypatch.undo()
    rig.sync()
    assert rig.gap(prompts, rig.generate(prompts)) <= 1e-4


@pytest.mark.vllm
def test_responses_share_their_prompt(rig, monkeypatch):
    """Also within one call: all but what fills no block is computed once. Unlike prompts (control) share nothing."""
    if rig.engine.name != "vllm":
        pytest.skip("needs the scheduler in this process")
    engine, cached = rig.engine.llm.llm_engine, []
    step = engine.step

    def watched():
        outputs = step()
        cached.extend(output.num_cached_tokens for output in outputs)
        return outputs

    monkeypatch.setattr(engine, "step", watched)
    rig.engine.forget_prefixes()
    prompt = [3 + (17 * place) % 700 for place in range(100)]
    assert rig.gap([prompt] * 8, rig.generate([prompt] * 8)) <= 1e-4
    assert sorted(cached) == [0] + [96] * 7
    cached.clear()
    rig.generate([[row + 3, *prompt] for row in range(8)])
    assert cached == [0] * 8


@pytest.mark.vllm
def test_a_stale_head_is_caught(rig, monkeypatch):
    """Negative control: vLLM's own reload leaves the packed copy of a tied head as it was on a CPU."""
    if rig.engine.name != "vllm":
        pytest.skip("needs the worker in this process")
    from ppo_lightning.engines import vllm_worker

    monkeypatch.setattr(vllm_worker, "repack_tied_head", lambda model: None)
    rig.change(1e-6)
    rig.sync()
    with pytest.raises(EngineError, match="checksum"):
        check_weights(rig.engine, rig.policy)
    monkeypatch.undo()
    rig.sync()
    check_weights(rig.engine, rig.policy)


@pytest.mark.vllm
def test_threads_and_random_state_are_left_alone(rig):
    if rig.engine.name != "vllm":
        pytest.skip("about the process that vLLM shares")
    torch.manual_seed(5)
    state = torch.get_rng_state()
    rig.generate(PROMPTS)
    assert torch.equal(torch.get_rng_state(), state)
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    assert torch.get_num_threads() == threads + 1
    torch.set_num_threads(threads)


@pytest.mark.vllm
def test_a_server_that_dies_in_the_middle_loses_nothing(server, folder, tmp_path):
    killed = threading.Event()
    with rigs.Server(folder, tmp_path / "log") as second:
        rig = rigs.server_rig(folder, [server.address, second.address], tmp_path / "weights")

        def kill(completion):
            if not killed.is_set():
                killed.set()
                second.close(kill=True)

        with pytest.warns(UserWarning, match=f"{second.address} is lost; 1 of 2 servers go on"):
            done = rig.generate(PROMPTS * 8, kill, max_tokens=100)
    assert [completion.row for completion in done] == list(range(96))
    assert rig.engine.counts["training/rollout_servers_lost"] == 1
    assert rig.engine.counts["training/rollout_requests_moved"] >= 1
    assert rig.gap(PROMPTS, done[: len(PROMPTS)]) <= 1e-4
    rig.change(0.01)
    rig.sync()  # the one that is left takes the weights
    check_weights(rig.engine, rig.policy)
    rig.engine.close()
    assert not (tmp_path / "weights").exists()


@pytest.mark.vllm
def test_a_run_on_a_server(server, folder, run, lines):
    """Every step's weights reach the server, and its probabilities are the trainer's."""
    engine = ["rollout.engine=vllm_server", f"rollout.servers=[{server.address}]", "rollout.max_probs_diff=1e-4"]
    reward = f"reward.path={Path(__file__).parent / 'files' / 'rewards.py'}"  # the number of characters
    chosen = [reward, "algorithm.adv_estimator=grpo", "trainer.steps=2"]
    code, where, _ = run(f"model.path={folder}", *engine, *chosen)
    assert code == 0
    steps = [line for line in lines(where) if line["step"] > 0]
    assert [line["step"] for line in steps] == [1, 2]
    assert all(line["training/rollout_probs_diff_mean"] <= 1e-4 for line in steps)
    assert all(line["actor/grad_norm"] > 0 for line in steps)
    assert not (where / "server_weights").exists()


@pytest.mark.vllm
def test_no_server_at_all_is_one_message(request, tmp_path):
    vllm_or_skip(request.config)
    from ppo_lightning.engines.vllm_server import VllmServerEngine

    address = "http://127.0.0.1:9"
    with (
        pytest.warns(UserWarning, match="does not answer"),
        pytest.raises(EngineError, match=f"rollout.servers: none of {address} answers"),
    ):
        VllmServerEngine([address], tmp_path, torch.float32, 512, 5.0, rigs.Ranks())


@pytest.mark.vllm
def test_closing_leaves_nothing(request, folder):
    """No process, no process group; a second engine can start in the same process."""
    vllm_or_skip(request.config)
    import psutil

    children = {child.pid for child in psutil.Process().children(recursive=True)}
    for _ in range(2):
        rig = rigs.vllm_rig(folder)
        assert len(rig.generate(PROMPTS[:1])) == 1
        rig.engine.close()
        rig.engine.close()
        assert {child.pid for child in psutil.Process().children(recursive=True)} <= children
