"""One running `vllm serve`: completions, and the control calls that weight syncs need. Standard library only."""

import http.client
import json
import os
from typing import Any
from urllib.parse import urlparse

from ppo_lightning.engines.base import Completion, Request, Sampling
from ppo_lightning.errors import EngineError

KEY = "VLLM_API_KEY"
"""Environment variable with the servers' API key, if they want one."""

HOW = (
    "start it with `VLLM_SERVER_DEV_MODE=1 vllm serve MODEL --host 127.0.0.1 --logprobs-mode processed_logprobs "
    "--worker-extension-cls ppo_lightning.engines.vllm_worker.PolicyWeights` (docs/engines.md), with ppo_lightning "
    "importable there"
)

LOST = (OSError, http.client.HTTPException)
"""What a server that is gone, or going, raises: refused, reset, closed half way, timed out."""


class ServerError(EngineError):
    """The server answered, but not with what was asked for."""


class VllmServer:
    """A client of one server.

    Args:
        address: `http://host:port`.
        timeout_s: longest wait for one answer.

    Raises:
        EngineError: the address is no HTTP address.
    """

    def __init__(self, address: str, timeout_s: float) -> None:
        parsed = urlparse(address)
        if parsed.scheme not in ("http", "https") or not parsed.hostname:
            raise EngineError(f"rollout.servers must hold addresses such as http://127.0.0.1:8000 - got {address!r}")
        self.address, self.timeout_s = address.rstrip("/"), timeout_s
        self.secure, self.host, self.port = parsed.scheme == "https", parsed.hostname, parsed.port
        self.model, self.context = "", 2**31

    def alive(self) -> bool:
        """Tell whether the server answers."""
        try:
            status, _ = self._exchange("GET", "/health", None, timeout_s=5.0)
        except LOST:
            return False
        return status == http.client.OK

    def greet(self) -> None:
        """Learn the model's name and its longest sequence, and check that log-probs are those sampled from.

        Raises:
            EngineError: the server lacks what a rollout or a sync needs.
        """
        found = self.call("GET", "/v1/models")["data"][0]
        self.model, self.context = found["id"], found["max_model_len"]
        info = self.call("GET", "/server_info?config_format=json")["vllm_config"]
        mode = info["model_config"]["logprobs_mode"]
        if mode != "processed_logprobs":
            raise EngineError(
                f"{self.address} must report the log-probs it samples from, got --logprobs-mode {mode}: {HOW}"
            )
        if info["device_config"]["device_type"] == "cpu" and info["scheduler_config"]["enable_chunked_prefill"]:
            raise EngineError(
                f"{self.address} runs on a CPU, where vLLM cannot cut a prompt with a seed in two: start it with "
                "--no-enable-chunked-prefill --max-num-batched-tokens 8192"
            )

    def complete(self, request: Request, sampling: Sampling, seed: int) -> Completion:
        """Sample one response."""
        room = self.context - len(request.prompt_ids)
        body = {
            "model": self.model,
            "prompt": list(request.prompt_ids),
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": max(sampling.top_k, 0),
            "min_p": sampling.min_p,
            "max_tokens": min(sampling.max_tokens, room),
            "seed": seed,
            "stop_token_ids": [] if sampling.ignore_eos else list(sampling.stop_ids),
            "ignore_eos": True,  # the list above is the truth
            "logprobs": 0,
            "return_token_ids": True,
        }
        choice = self.call("POST", "/v1/completions", body)["choices"][0]
        tokens, log_probs = choice["token_ids"], choice["logprobs"]["token_logprobs"]
        if len(tokens) != len(log_probs):
            raise ServerError(f"{self.address}: {len(tokens)} tokens came with {len(log_probs)} log-probs")
        stopped = bool(tokens) and tokens[-1] in sampling.stop_ids and not sampling.ignore_eos
        reason = "abort" if choice["finish_reason"] == "abort" else "stop" if stopped else "length"
        return Completion(request.row, tokens, log_probs, reason)

    def take_weights(self, folder: str, version: int) -> list[str]:
        """Load the weights of a folder that the server sees too; return the names that can be checked."""
        names = self.rpc("ppo_take_weights", kwargs={"folder": folder})[0]
        self.forget_prefixes()
        self.call("POST", "/update_weight_version", {"new_version": str(version)})
        return names

    def forget_prefixes(self) -> None:
        """Empty the prefix cache.

        Raises:
            ServerError: the server still runs requests, perhaps somebody else's.
        """
        if not self.call("POST", "/reset_prefix_cache")["success"]:
            raise ServerError(
                f"{self.address}: the prefix cache must be emptied after a sync, but requests are running"
            )

    def version(self) -> str:
        """Return the version of the weights that the server says it has."""
        return self.call("GET", "/weight_info")["weight_version"]

    def checksum(self, names: list[str], version: int) -> float:
        """Return the checksum of what the server's kernels use."""
        return float(self.rpc("ppo_checksum", args=[names, version])[0])

    def rpc(self, method: str, args: list | None = None, kwargs: dict | None = None) -> list[Any]:
        """Call a method of the server's workers; return one result per worker."""
        body = {"method": method, "args": args or [], "kwargs": kwargs or {}, "timeout": self.timeout_s}
        return self.call("POST", "/collective_rpc", body)["results"]

    def call(self, verb: str, route: str, body: dict | None = None) -> Any:
        """Return the decoded answer.

        Raises:
            ServerError: the server refused (4xx) or failed (5xx).
            OSError, http.client.HTTPException: it is gone.
        """
        status, text = self._exchange(verb, route, body, self.timeout_s)
        if status == http.client.NOT_FOUND:
            raise ServerError(f"{self.address} does not know {route}: {HOW}")
        if status != http.client.OK:
            raise ServerError(f"{self.address}{route} answered {status}: {text[:300]!r}; if it lacks a method, {HOW}")
        return json.loads(text) if text else None

    def _exchange(self, verb: str, route: str, body: dict | None, timeout_s: float) -> tuple[int, str]:
        connection = self._connection(timeout_s)
        headers = {"Content-Type": "application/json"}
        if key := os.environ.get(KEY):
            headers["Authorization"] = f"Bearer {key}"
        try:
            connection.request(verb, route, json.dumps(body) if body is not None else None, headers)
            response = connection.getresponse()
            return response.status, response.read().decode("utf-8", "replace")
        finally:
            connection.close()

    def _connection(self, timeout_s: float) -> http.client.HTTPConnection:
        kind = http.client.HTTPSConnection if self.secure else http.client.HTTPConnection
        return kind(self.host, self.port, timeout=timeout_s)
