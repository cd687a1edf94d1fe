"""vLLM in this process, one engine per rank: sampled log-probs, seeds per request, weights without a detour over disk.

The engine is stepped here, so each response is handed over as soon as it ends. After each sync the prefix cache is
emptied, and a checksum of what the kernels use is compared with the policy's (engines/vllm_worker.py).
"""

import contextlib
import gc
import os
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from ppo_lightning.config.schema import Config
from ppo_lightning.engines.base import Completion, Interruptible, OnFinish, Request, Sampling, check_prompts, context_of
from ppo_lightning.engines.checksum import checksum_of_policy
from ppo_lightning.engines.sampling import seeds
from ppo_lightning.engines.vllm_import import import_vllm
from ppo_lightning.errors import EngineError
from ppo_lightning.models.load import model_path

WORKER = "ppo_lightning.engines.vllm_worker.PolicyWeights"
"""What runs in the worker."""


CPU_BATCH_TOKENS = 8192
"""Prompt tokens taken at once on a CPU."""

CPU_BLOCK_TOKENS = 32
"""The least that vLLM's attention takes on a CPU. Prompts share whole blocks only: with its 128 most share nothing."""


@dataclass(frozen=True)
class VllmOptions:
    """How vLLM is started.

    Attributes:
        dtype: of its weights.
        context: longest sequence.
        memory_gib: key-value cache on a CPU.
        memory_fraction: share of a GPU's memory that it may take.
        eager: no compilation, no CUDA graphs.
        trust_remote_code: run code that comes with the model.
        gpu: whether it runs on a GPU.
        ranks: processes that train side by side, each with an engine of its own.
        device: number of its GPU.
    """

    dtype: str
    context: int
    memory_gib: float = 4.0
    memory_fraction: float = 0.5
    eager: bool = True
    trust_remote_code: bool = False
    gpu: bool = False
    ranks: int = 1
    device: int = 0


class VllmEngine(Interruptible):
    """Generates with vLLM in this process.

    Args:
        folder: model folder or Hub id whose architecture the engine takes; the weights come with the first sync.
        options: how vLLM is started.
    """

    name = "vllm"

    def __init__(self, folder: str, options: VllmOptions) -> None:
        super().__init__()
        vllm = import_vllm()
        self.context, self.options = options.context, options
        self.dtype = getattr(torch, options.dtype)
        self.version, self.asleep = 0, False
        self.names: list[str] | None = None
        self.counts: dict[str, float] = {}
        self.params, self.final_only = vllm.SamplingParams, _final_only()
        self.joined_group = dist.is_available() and dist.is_initialized()
        with kept_state(), told_its_place(options):
            self.llm: Any = _start(vllm, folder, options)

    def sync_weights(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Hand the policy's tensors to the worker, then forget prefixes computed with the former ones.

        Raises:
            EngineError: vLLM could not take them, or cannot empty its prefix cache.
        """
        try:
            tensors = ((name, tensor.detach()) for name, tensor in weights)
            self.names = self.llm.collective_rpc("ppo_take_weights", kwargs={"weights": tensors})[0]
        except (RuntimeError, ValueError, KeyError, AttributeError) as error:
            raise EngineError(f"rollout.engine=vllm could not take the policy's weights: {error}") from error
        self.forget_prefixes()
        self.version = version

    def forget_prefixes(self) -> None:
        """Empty the prefix cache.

        Raises:
            EngineError: requests are still running.
        """
        if not self.llm.reset_prefix_cache():
            raise EngineError("vLLM's prefix cache must be emptied after a sync, but requests still hold blocks of it")

    def checksum(self) -> float:
        """Return the checksum of what the kernels use, in the columns that the version picks."""
        return self.llm.collective_rpc("ppo_checksum", args=(self._checked(), self.version))[0]

    def expected_checksum(self, policy: nn.Module) -> float | None:
        """Return what `checksum` must be for the policy's weights; None where vLLM's layout of them is not known."""
        return checksum_of_policy(policy, self.dtype, self.version, self._checked())

    def generate(
        self, requests: list[Request], sampling: Sampling, on_finish: OnFinish | None = None
    ) -> list[Completion]:
        """Sample one response per request.

        Raises:
            EngineError: a prompt is empty or leaves no room in the model's context.
        """
        check_prompts(requests, self.context)
        engine, done = self.llm.llm_engine, {}
        try:
            for request, seed in zip(requests, seeds(requests), strict=True):
                prompt = {"prompt_token_ids": list(request.prompt_ids)}
                engine.add_request(str(request.row), prompt, self._params(request, sampling, seed))
            with kept_state():
                while engine.has_unfinished_requests():
                    self.go_on()
                    for output in engine.step():
                        completion = _completion(output, sampling)
                        done[completion.row] = completion
                        if on_finish:
                            on_finish(completion)
        finally:
            if len(done) < len(requests):
                engine.abort_request([str(r.row) for r in requests if r.row not in done])
        return [done[request.row] for request in requests]

    def sleep(self) -> None:
        """Give a GPU's memory back: weights go to the CPU's, the key-value cache is dropped."""
        if self.options.gpu and not self.asleep:
            self.llm.sleep(level=1)
            self.asleep = True

    def wake(self) -> None:
        """Take the memory again."""
        if self.asleep:
            self.llm.wake_up()
            self.asleep = False

    def close(self) -> None:
        """End the engine and the process group that it opened; the strategy's, if there was one, stays."""
        if self.llm is None:
            return
        client = self.llm.llm_engine.engine_core
        if self.joined_group:  # vLLM's own end would destroy the default group
            client._finalizer.detach()
            client.engine_core.model_executor.shutdown()
        else:
            client.shutdown()
        self.llm = None
        gc.collect()

    def _checked(self) -> list[str]:
        if self.names is None:
            raise EngineError("the engine must be given weights before they can be compared: call sync_weights first")
        return self.names

    def _params(self, request: Request, sampling: Sampling, seed: int) -> Any:
        room = self.context - len(request.prompt_ids)
        return self.params(
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=max(sampling.top_k, 0),
            min_p=sampling.min_p,
            max_tokens=min(sampling.max_tokens, room),
            seed=seed,
            stop_token_ids=[] if sampling.ignore_eos else list(sampling.stop_ids),
            ignore_eos=True,  # the list above is the truth
            logprobs=0,
            detokenize=False,
            output_kind=self.final_only,
        )


def build_vllm(config: Config, module: Any) -> VllmEngine:
    """Start vLLM for a run; called when the strategy has set up its ranks."""
    rollout = config.rollout
    options = VllmOptions(
        dtype=config.model.dtype if rollout.dtype == "model" else rollout.dtype,
        context=context_of(config, module.actor),
        memory_gib=rollout.memory_gib,
        memory_fraction=rollout.memory_fraction,
        eager=rollout.enforce_eager,
        trust_remote_code=config.model.trust_remote_code,
        gpu=module.device.type == "cuda",
        ranks=module.ranks.size,
        device=module.device.index or 0,
    )
    return VllmEngine(model_path(config.model.path), options)


@contextlib.contextmanager
def kept_state() -> Iterator[None]:
    """Keep vLLM from changing this process's random state and from disabling `torch.set_num_threads`."""
    set_threads = torch.set_num_threads
    python, numpy_state = random.getstate(), np.random.get_state()
    with torch.random.fork_rng():
        try:
            yield
        finally:
            torch.set_num_threads = set_threads
            random.setstate(python)
            np.random.set_state(numpy_state)


@contextlib.contextmanager
def told_its_place(options: VllmOptions) -> Iterator[None]:
    """Name this process's place as torchrun does: vLLM reads it there, whoever started the ranks."""
    if options.ranks == 1:
        yield
        return
    place = {"RANK": str(dist.get_rank()), "LOCAL_RANK": str(options.device)}
    before = {name: os.environ.get(name) for name in place}
    os.environ |= place
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _start(vllm: Any, folder: str, options: VllmOptions) -> Any:
    threads = torch.get_num_threads()
    place: dict[str, Any] = (
        {"gpu_memory_utilization": options.memory_fraction, "enable_sleep_mode": True}
        if options.gpu
        else {
            "kv_cache_memory_bytes": int(options.memory_gib * 2**30),
            "block_size": CPU_BLOCK_TOKENS,
            # A prompt cut in two makes vLLM wind a seed's generator back, which CPU generators cannot do.
            "enable_chunked_prefill": False,
            "max_num_batched_tokens": max(CPU_BATCH_TOKENS, options.context),
        }
    )
    if options.ranks > 1:
        place["distributed_executor_backend"] = "external_launcher"
    try:
        llm = vllm.LLM(
            folder,
            dtype=options.dtype,
            max_model_len=options.context,
            enforce_eager=options.eager,
            trust_remote_code=options.trust_remote_code,
            skip_tokenizer_init=True,
            logprobs_mode="processed_logprobs",
            generation_config="vllm",  # no sampling defaults from the model's folder
            worker_extension_cls=WORKER,
            hf_overrides={"head_dtype": "float32"},  # the trainer's logits are float32, whatever the weights are
            **place,
        )
    except (RuntimeError, ValueError, OSError, AssertionError) as error:
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise EngineError(f"rollout.engine=vllm could not start on {folder}: {reason[-1]}") from error
    if torch.get_num_threads() != threads:
        torch.set_num_threads(threads)
    return llm


def _final_only() -> Any:
    from vllm.sampling_params import RequestOutputKind

    return RequestOutputKind.FINAL_ONLY


def _completion(output: Any, sampling: Sampling) -> Completion:
    """Read one finished request; the log-prob is that of the sampled token, looked up by its id."""
    response = output.outputs[0]
    tokens = list(response.token_ids)
    log_probs = [float(entry[token].logprob) for token, entry in zip(tokens, response.logprobs, strict=True)]
    stopped = bool(tokens) and tokens[-1] in sampling.stop_ids and not sampling.ignore_eos
    reason = "abort" if response.finish_reason == "abort" else "stop" if stopped else "length"
    return Completion(int(output.request_id), tokens, log_probs, reason)
