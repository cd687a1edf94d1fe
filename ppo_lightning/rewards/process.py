"""The trainer's end of one reward worker process: start it, ask it, and end it with everything it started."""

import asyncio
import contextlib
import json
import os
import pickle
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ppo_lightning.errors import RewardError
from ppo_lightning.rewards.sample import Loaded, Target
from ppo_lightning.rewards.worker import LENGTH

WORKER_FILE = Path(__file__).with_name("worker.py")
MARK = "PPO_LIGHTNING_REWARD_WORKER"
SWEEPS = 100
ANSWER_BYTES = 64 * 2**20
POLL_SECONDS = 0.5
LAST_LOOK_SECONDS = 0.01
LOAD_SECONDS = 120.0
INHERITED = (
    *("PATH", "HOME", "USER", "LANG", "LANGUAGE", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR", "TEMP", "TMP"),
    *("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "VIRTUAL_ENV", "CONDA_PREFIX"),
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "NO_PROXY", "no_proxy"),
    *("HF_HOME", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"),
)
FIXED = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "CUDA_VISIBLE_DEVICES": "",
    "MALLOC_ARENA_MAX": "2",
}


class WorkerDiedError(Exception):
    """The worker process ended, or spoke nonsense, while a request was open."""


@dataclass(frozen=True)
class WorkerSettings:
    """What every worker of a pool is started with."""

    memory_mb: int
    environment: tuple[str, ...] = ()
    concurrent: bool = False


def worker_environment(names: Iterable[str], mark: str) -> dict[str, str]:
    """Return the environment of a worker: a whitelist, so that no token or key of the trainer reaches a reward."""
    harmless = {name: os.environ[name] for name in INHERITED if name in os.environ}
    asked = {name: os.environ[name] for name in names if name in os.environ}
    return {**harmless, **FIXED, **asked, MARK: mark}


class Worker:
    """One worker process; used from one event loop only."""

    def __init__(self, settings: WorkerSettings) -> None:
        self.settings = settings
        self._mark = f"{os.getpid()}-{uuid.uuid4().hex}"
        self._process: subprocess.Popen[bytes] | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._listener: asyncio.Task[None] | None = None
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._next_id = 0
        self._ended = False

    @property
    def alive(self) -> bool:
        """Whether the process has been started and not ended."""
        return self._process is not None and not self._ended and self._process.poll() is None

    async def start(self) -> None:
        """Start the process in a session of its own and send it its settings."""
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-I", str(WORKER_FILE), str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=worker_environment(self.settings.environment, self._mark),
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        ours.setblocking(False)
        reader, self._writer = await asyncio.open_connection(sock=ours)
        setup = {
            "parent": os.getpid(),
            "sys_path": [str(Path(entry).resolve()) for entry in sys.path],
            "memory_mb": self.settings.memory_mb,
            "concurrent": self.settings.concurrent,
        }
        self._send(setup)
        self._listener = asyncio.create_task(self._listen(reader))

    async def ask(self, request: dict[str, Any], seconds: float) -> dict[str, Any]:
        """Send a request and return its answer.

        Raises:
            TimeoutError: no answer within `seconds`.
            WorkerDiedError: the process ended first.
        """
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        number, self._next_id = self._next_id, self._next_id + 1
        self._waiting[number] = answer
        try:
            self._send({**request, "id": number})
            await self._wait(answer, seconds)
            return answer.result()
        finally:
            self._waiting.pop(number, None)
            answer.cancel()

    async def _wait(self, answer: asyncio.Future[dict[str, Any]], seconds: float) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while not answer.done():
            left = end - loop.time()
            await asyncio.wait({answer}, timeout=min(max(left, LAST_LOOK_SECONDS), POLL_SECONDS))
            if not answer.done() and left <= 0:  # looked once more: the answer may be here and the loop was late
                raise TimeoutError
            if not answer.done() and not self.alive:  # its end can stay unseen while a leaked child holds the socket
                raise WorkerDiedError(self.obituary())

    def _send(self, request: dict[str, Any]) -> None:
        if self._writer is None or self._writer.is_closing():
            raise WorkerDiedError(self.obituary())
        body = pickle.dumps(request)
        self._writer.write(LENGTH.pack(len(body)) + body)

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, OSError, ValueError, KeyError):
            while True:
                size = LENGTH.unpack(await reader.readexactly(LENGTH.size))[0]
                if size > ANSWER_BYTES:
                    break
                answer = json.loads(await reader.readexactly(size))
                waiting = self._waiting.get(answer["id"])
                if waiting is not None and not waiting.done():
                    waiting.set_result(answer)
        self._mourn()

    def _mourn(self) -> None:
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(WorkerDiedError(self.obituary()))

    def obituary(self) -> str:
        """Say how the process ended."""
        if self._process is None:
            return "the worker was not started"
        try:
            code = self._process.wait(timeout=0.05)
        except subprocess.TimeoutExpired:
            return "the worker process closed its connection"
        if code >= 0:
            return f"the worker process ended with exit code {code}"
        with contextlib.suppress(ValueError):
            return f"the worker process was ended by {signal.Signals(-code).name}"
        return f"the worker process was ended by signal {-code}"

    def kill(self) -> None:
        """End the process and everything it has started; nothing of it is left when this returns."""
        if self._process is None or self._ended:
            return
        self._ended = True
        kill_all(descendants(self._process.pid))
        if self._process.returncode is None or not Path("/proc/self").exists():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
        for _ in range(SWEEPS):  # forked in between, or no longer in the family: found by the mark in its environment
            strays = marked(self._mark)
            if not strays:
                break
            kill_all(strays)
            time.sleep(0.002)
        if self._listener is not None:
            self._listener.cancel()
        if self._writer is not None:
            self._writer.close()
        self._process.wait(timeout=10)
        self._mourn()


class Seat:
    """A place for one worker: whoever sits down finds a living one with the function loaded."""

    def __init__(self, settings: WorkerSettings) -> None:
        self.settings = settings
        self._worker: Worker | None = None
        self._loaded: dict[str, Loaded] = {}
        self._lock = asyncio.Lock()

    async def ready(self, target: Target) -> tuple[Worker, Loaded]:
        """Return the worker and what the function is; the time that starting and loading take is not a sample's.

        Raises:
            RewardError: the function cannot be loaded.
            WorkerDiedError: the process ended while it loaded the function.
        """
        async with self._lock:
            if self._worker is None or not self._worker.alive:
                self.kill()
                self._loaded = {}
                self._worker = Worker(self.settings)
                await self._worker.start()
            if target.key not in self._loaded:
                self._loaded[target.key] = await self._load(self._worker, target)
            return self._worker, self._loaded[target.key]

    async def _load(self, worker: Worker, target: Target) -> Loaded:
        request = {"key": target.key, "target": dict(vars(target))}
        try:
            answer = await worker.ask(request, LOAD_SECONDS)
        except TimeoutError as error:
            worker.kill()
            raise RewardError(f"{target.place} must load within {LOAD_SECONDS:g} s: it does not") from error
        if answer["error"]:
            raise RewardError(f"{target.place}:{target.name} cannot be loaded: {answer['error']}")
        return Loaded(answer["style"], answer["is_async"], answer["line"])

    def kill(self) -> None:
        """End the worker, if there is one."""
        if self._worker is not None:
            self._worker.kill()


def kill_all(pids: Iterable[int]) -> None:
    """Kill processes that may be gone already."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def descendants(root: int) -> list[int]:
    """Return all living descendants of a process; empty where there is no /proc."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            parents[int(entry.parent.name)] = int(entry.read_text().rsplit(")", 1)[1].split()[1])
    family: list[int] = []
    frontier = {root}
    while frontier:
        frontier = {pid for pid, parent in parents.items() if parent in frontier}
        family += frontier
    return family


def marked(mark: str) -> list[int]:
    """Return the processes whose environment holds a worker's mark, zombies left out; empty where there is no /proc.

    Args:
        mark: a worker's mark, or the beginning of it: `<pid>-` stands for all workers that process pid has started.
    """
    wanted = f"{MARK}={mark}".encode()
    found = []
    for entry in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if wanted in entry.read_bytes() and int(entry.parent.name) != os.getpid():
                found.append(int(entry.parent.name))
    return found
