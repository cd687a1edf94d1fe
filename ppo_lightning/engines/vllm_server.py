"""vLLM servers that run already, on this machine or others: requests are spread over them, weights go through a folder.

A server that is lost in the middle of a batch loses nothing: its requests go to the others, and the loss is counted.
Weights are written into the run directory, which the servers must see under the same path (public weight transfer
without a file needs GPUs on both sides), and servers that come back get them at the next sync.
"""

import collections
import contextlib
import queue
import shutil
import threading
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from ppo_lightning.config.schema import Config
from ppo_lightning.engines.base import Completion, Interruptible, OnFinish, Request, Sampling, check_prompts, context_of
from ppo_lightning.engines.checksum import agree, checksum_of_policy
from ppo_lightning.engines.sampling import seeds
from ppo_lightning.engines.vllm_client import LOST, ServerError, VllmServer
from ppo_lightning.errors import EngineError
from ppo_lightning.parallel.ranks import Ranks

CONNECTIONS = 64
"""Requests open at a time per server and rank."""

SERVERS_LOST, REQUESTS_MOVED = "training/rollout_servers_lost", "training/rollout_requests_moved"


@dataclass
class Batch:
    """Requests on their way: what is still to be sent, and what came back."""

    sampling: Sampling
    todo: "queue.SimpleQueue[tuple[Request, int] | None]" = field(default_factory=queue.SimpleQueue)
    done: "queue.SimpleQueue[Completion | Exception | VllmServer]" = field(default_factory=queue.SimpleQueue)


class VllmServerEngine(Interruptible):
    """Generates with running vLLM servers.

    Args:
        addresses: of the servers.
        folder: where weights are written for them.
        dtype: of the servers' weights.
        context: longest sequence that will be asked for.
        timeout_s: longest wait for one answer.
        ranks: the first one syncs for all.

    Raises:
        EngineError: no server answers, or one lacks what is needed.
    """

    name = "vllm_server"

    def __init__(
        self, addresses: list[str], folder: Path, dtype: torch.dtype, context: int, timeout_s: float, ranks: Ranks
    ) -> None:
        super().__init__()
        self.servers = [VllmServer(address, timeout_s) for address in addresses]
        self.folder, self.dtype, self.ranks = folder, dtype, ranks
        self.version, self.names = 0, None
        self.counts: dict[str, float] = {}
        self.live = [server for server in self.servers if server.alive()]
        for server in self.servers:
            if server not in self.live:
                warnings.warn(f"rollout.servers: {server.address} does not answer; going on without it", stacklevel=2)
        self._some_left()
        for server in self.live:
            server.greet()
        self.context = min([context, *(server.context for server in self.live)])

    def sync_weights(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Write the weights, let every server that answers load them and forget its prefixes.

        Raises:
            EngineError: a server refused, none is left, or one says that it has another version.
        """
        state: tuple[list[str], list[str], str] = ([], [], "")
        if self.ranks.first:
            try:
                state = (*self._push(weights, version), "")
            except EngineError as error:  # told to all ranks before it is raised
                state = ([], [], str(error))
        else:
            collections.deque(weights, maxlen=0)  # whole weights of a sharded model are gathered by all ranks
        addresses, names, problem = self.ranks.gather(state)[0]
        if problem:
            raise EngineError(problem)
        self.live = [server for server in self.servers if server.address in addresses]
        self.names, self.version = names, version

    def checksum(self) -> float:
        """Return the checksum of what the servers use, which must be one number for all of them."""
        found = {server.address: server.checksum(self.names or [], self.version) for server in self.live}
        first = next(iter(found.values()))
        if not all(agree(value, first) for value in found.values()):
            raise EngineError(f"the servers must all have the policy's weights, got checksums {found}")
        return first

    def expected_checksum(self, policy: nn.Module) -> float | None:
        """Return what `checksum` must be; None where the layout is not known (tensor-parallel servers)."""
        return checksum_of_policy(policy, self.dtype, self.version, self.names or [])

    def generate(
        self, requests: list[Request], sampling: Sampling, on_finish: OnFinish | None = None
    ) -> list[Completion]:
        """Sample one response per request on whichever server is free.

        Raises:
            EngineError: a prompt is too long, a server refused a request, or no server is left.
        """
        check_prompts(requests, self.context)
        batch = Batch(sampling)
        for item in zip(requests, seeds(requests), strict=True):
            batch.todo.put(item)
        each = min(CONNECTIONS, len(requests))
        workers = [
            threading.Thread(target=self._work, args=(server, batch), daemon=True)
            for server in self.live
            for _ in range(each)
        ]
        for worker in workers:
            worker.start()
        done: dict[int, Completion] = {}
        try:
            while len(done) < len(requests):
                self.go_on()
                with contextlib.suppress(queue.Empty):
                    self._take(batch.done.get(timeout=0.5), done, on_finish)
        finally:
            for _ in workers:
                batch.todo.put(None)
        return [done[request.row] for request in requests]

    def sleep(self) -> None:
        """Servers have memory of their own."""

    def wake(self) -> None:
        """Servers have memory of their own."""

    def close(self) -> None:
        """Remove the weights; the servers are not ours to end."""
        if self.ranks.first:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _take(self, item: Any, done: dict[int, Completion], on_finish: OnFinish | None) -> None:
        """Book one thing that came back: a response, an error, or the server that a request was lost with."""
        if isinstance(item, Exception):
            raise item
        if isinstance(item, VllmServer):
            self._count(REQUESTS_MOVED)
            if item in self.live:
                self._lose(item)
                self._some_left()
            return
        done[item.row] = item
        if on_finish:
            on_finish(item)

    def _work(self, server: VllmServer, batch: Batch) -> None:
        """Send requests until there are no more; put a request back when its server is lost, and stop."""
        while item := batch.todo.get():
            try:
                batch.done.put(server.complete(item[0], batch.sampling, item[1]))
            except LOST:
                return self._return(item, server, batch)
            except ServerError as error:
                if not server.alive():
                    return self._return(item, server, batch)
                batch.done.put(error)
            except (KeyError, TypeError, ValueError) as error:
                batch.done.put(ServerError(f"{server.address}: an answer that no vLLM gives: {error!r}"))
        return None

    @staticmethod
    def _return(item: tuple[Request, int], server: VllmServer, batch: Batch) -> None:
        batch.todo.put(item)
        batch.done.put(server)

    def _push(self, weights: Iterable[tuple[str, Tensor]], version: int) -> tuple[list[str], list[str]]:
        """Write the weights and have the servers load them; return the addresses that did, and the names to check."""
        path = write_weights(weights, self.folder, version, self.dtype)
        names: list[list[str]] = []

        def load(server: VllmServer) -> None:
            names.append(server.take_weights(str(path), version))
            if server.version() != str(version):
                raise ServerError(f"{server.address} must have weight version {version}, got {server.version()}")

        taken = self._each(self.servers, load)
        shutil.rmtree(path)
        return [server.address for server in taken], sorted(set.intersection(*map(set, names)))

    def _each(self, servers: list[VllmServer], action: Callable[[VllmServer], None]) -> list[VllmServer]:
        """Do something with every server that answers; return those."""
        reached = []
        for server in servers:
            try:
                if server not in self.live and server.alive():
                    server.greet()
                elif server not in self.live:
                    continue
                action(server)
                reached.append(server)
            except LOST:
                self._lose(server)
        self.live = reached
        self._some_left()
        return reached

    def _lose(self, server: VllmServer) -> None:
        self.live = [other for other in self.live if other is not server]
        self._count(SERVERS_LOST)
        left = f"{len(self.live)} of {len(self.servers)} servers"
        warnings.warn(f"rollout.servers: {server.address} is lost; {left} go on with its requests", stacklevel=2)

    def _count(self, key: str) -> None:
        self.counts[key] = self.counts.get(key, 0.0) + 1.0

    def _some_left(self) -> None:
        if not self.live:
            addresses = ", ".join(server.address for server in self.servers)
            raise EngineError(f"rollout.servers: none of {addresses} answers: start them, then resume")


def write_weights(weights: Iterable[tuple[str, Tensor]], folder: Path, version: int, dtype: torch.dtype) -> Path:
    """Write named tensors as one safetensors file in a folder of its own; return that."""
    path = folder / f"version_{version}"
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)
    save_file({name: t.detach().to("cpu", dtype).contiguous() for name, t in weights}, path / "model.safetensors")
    return path


def build_server_engine(config: Config, module: Any) -> VllmServerEngine:
    """Connect to the servers of `rollout.servers`."""
    rollout = config.rollout
    dtype = getattr(torch, config.model.dtype if rollout.dtype == "model" else rollout.dtype)
    folder = (Path(config.output_dir) / config.name / "server_weights").resolve()
    context = context_of(config, module.actor)
    return VllmServerEngine(rollout.servers, folder, dtype, context, rollout.request_timeout_s, module.ranks)
