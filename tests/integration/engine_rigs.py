"""What the engine contract runs on: each engine around the same small model, with a policy of its own to sync from."""

import json
import os
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import torch
from small_models import save_small
from transformers import AutoModelForCausalLM, AutoTokenizer

from ppo_lightning.build import quiet
from ppo_lightning.config.load import load
from ppo_lightning.config.validate import validate
from ppo_lightning.engines.base import Request, Sampling
from ppo_lightning.models.lora import named_weights
from ppo_lightning.parallel.ranks import Ranks
from ppo_lightning.run import fit

CONTEXT = 512
START_S = 240


def save_model(folder, real_model):
    """Write a random model whose attention heads vLLM's CPU kernels take (32 wide); embeddings tied."""
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32}
    return save_small(
        folder, real_model, hidden_size=64, intermediate_size=96, max_position_embeddings=CONTEXT, **heads
    )


TRAINING = [
    "model.lora_rank=4",
    "data.train=arithmetic:rows=16,digits=1,seed=1",
    "data.val=null",
    "data.max_prompt_tokens=64",
    "data.prompts_per_step=4",
    "rollout.rollouts_per_prompt=4",
    "rollout.response_tokens=8",
    "algorithm.adv_estimator=grpo",
    f"reward.path={Path(__file__).parent / 'files' / 'rewards.py'}",
    "reward.workers=1",
    "actor.lr=1e-1",
    "trainer.steps=2",
    "logging.samples_per_step=0",
]


def train(folder, model):
    """Train an adapter of a model for two steps; return the run directory."""
    quiet()
    loaded = load(None, [*TRAINING, f"model.path={model}", f"output_dir={folder}"])
    validate(loaded.config)
    assert fit(loaded) == 0
    return Path(folder) / "run"


def asked(address, folder, question):
    """Return a server's greedy answer through the OpenAI API: its tokens and its text."""
    messages = [{"role": "user", "content": question}]
    body = {"model": folder, "messages": messages, "temperature": 0.0, "max_tokens": 16, "return_token_ids": True}
    request = urllib.request.Request(
        f"{address}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        choice = json.load(answer)["choices"][0]
    return choice["token_ids"], choice["message"]["content"]


def greedy(folder, question):
    """Return the same of transformers."""
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder)
    messages = [{"role": "user", "content": question}]
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    ids = model.generate(**prompt, do_sample=False, max_new_tokens=16)[0, prompt["input_ids"].shape[1] :].tolist()
    return ids, tokenizer.decode(ids, skip_special_tokens=True)


class Server:
    """A `vllm serve` in a process of its own, on a free loopback port."""

    def __init__(self, model, log):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.address = f"http://127.0.0.1:{self.port}"
        command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", model, "--host", "127.0.0.1"]
        command += ["--port", str(self.port), "--dtype", "float32", "--max-model-len", str(CONTEXT), "--enforce-eager"]
        command += ["--logprobs-mode", "processed_logprobs", "--generation-config", "vllm"]
        command += ["--no-enable-chunked-prefill", "--max-num-batched-tokens", "8192", "--block-size", "32"]
        command += ["--hf-overrides", '{"head_dtype": "float32"}']
        command += ["--kv-cache-memory-bytes", str(2**27)]
        command += ["--worker-extension-cls", "ppo_lightning.engines.vllm_worker.PolicyWeights"]
        here = str(Path(__file__).parents[2])
        added = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_NO_USAGE_STATS": "1", "PYTHONPATH": here}
        env = {k: v for k, v in os.environ.items() if k != "VLLM_ENABLE_V1_MULTIPROCESSING"} | added
        self.log = open(log, "w")  # noqa: SIM115  closed with the server
        self.process = subprocess.Popen(command, env=env, stdout=self.log, stderr=subprocess.STDOUT)

    def __enter__(self):
        try:
            return self.wait()
        except BaseException:
            self.close(kill=True)
            raise

    def __exit__(self, *error):
        self.close()

    def wait(self):
        """Return when it answers."""
        for _ in range(2 * START_S):
            try:
                with urllib.request.urlopen(f"{self.address}/health", timeout=5):
                    return self
            except (urllib.error.URLError, OSError):
                pass
            try:
                self.process.wait(0.5)
            except subprocess.TimeoutExpired:
                continue
            break
        raise AssertionError(f"the server did not start: {Path(self.log.name).read_text()[-2000:]}")

    def close(self, kill=False):
        """End it and its children."""
        import psutil

        if self.process.poll() is None:
            tree = [*psutil.Process(self.process.pid).children(recursive=True)]
            (self.process.kill if kill else self.process.terminate)()
            for child in tree if kill else []:
                child.kill()
            self.process.wait(60)
        self.log.close()


class Rig:
    """An engine, the policy whose weights it is given, and what a plain forward of that policy says."""

    def __init__(self, engine, folder):
        self.engine = engine
        self.policy = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        self.version = 0
        self.sync()

    def sync(self):
        self.engine.sync_weights(named_weights(self.policy), self.version)

    def change(self, size):
        """Move every weight, embeddings included, and count the version up; the engine knows nothing of it."""
        generator = torch.Generator().manual_seed(self.version)
        with torch.no_grad():
            for weight in self.policy.parameters():
                weight += size * torch.randn(weight.shape, generator=generator)
        self.version += 1

    def generate(self, prompts, on_finish=None, **sampling):
        requests = [Request(row, tuple(ids), (1, 0, 3, row, 0)) for row, ids in enumerate(prompts)]
        settings = {"temperature": 1.0, "max_tokens": 12} | sampling
        return self.engine.generate(requests, Sampling(**settings), on_finish)

    def logits(self, prompt, completion):
        """Return the (tokens, V) logits that a plain forward gives before each sampled token."""
        ids = torch.tensor([[*prompt, *completion.token_ids]])
        with torch.no_grad():
            return self.policy(ids, use_cache=False).logits[0, len(prompt) - 1 : -1].float()

    def gap(self, prompts, completions, temperature=1.0):
        """Return the largest difference between reported and recomputed log-probs."""
        worst = 0.0
        for prompt, completion in zip(prompts, completions, strict=True):
            log_probs = torch.log_softmax(self.logits(prompt, completion) / temperature, -1)
            mine = log_probs.gather(-1, torch.tensor(completion.token_ids)[:, None])[:, 0]
            worst = max(worst, float((mine - torch.tensor(completion.log_probs)).abs().max()))
        return worst


def transformers_rig(folder):
    from ppo_lightning.engines.transformers import TransformersEngine

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return Rig(TransformersEngine(model, 2, 64, CONTEXT), folder)


def vllm_rig(folder):
    from ppo_lightning.engines.vllm import VllmEngine, VllmOptions

    return Rig(VllmEngine(folder, VllmOptions("float32", CONTEXT, memory_gib=0.125)), folder)


def server_rig(folder, addresses, weights):
    from ppo_lightning.engines.vllm_server import VllmServerEngine

    return Rig(VllmServerEngine(addresses, weights, torch.float32, CONTEXT, 120.0, Ranks()), folder)
