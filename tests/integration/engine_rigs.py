"""What the engine contract runs on: each engine around the same small model, with a policy of its own to sync from."""

import os
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import torch
from small_models import save_small
from transformers import AutoModelForCausalLM

from ppo_lightning.engines.base import Request, Sampling
from ppo_lightning.parallel.ranks import Ranks

CONTEXT = 512
START_S = 240


def save_model(folder, real_model):
    """Write a random model whose attention heads vLLM's CPU kernels take (32 wide); embeddings tied."""
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32}
    return save_small(
        folder, real_model, hidden_size=64, intermediate_size=96, max_position_embeddings=CONTEXT, **heads
    )


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
        command += ["--no-enable-chunked-prefill", "--max-num-batched-tokens", "8192"]
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
        self.engine.sync_weights(self.policy.named_parameters(), self.version)

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
