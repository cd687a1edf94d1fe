"""The program of one reward worker process: receive samples over a socket, score them, answer.

Started as `python -I worker.py <fd>` with an environment of its own; imports the standard library only, so it starts in
well under a tenth of a second. Frames are a 4-byte length and a body: pickle towards the worker, JSON back.
"""

import contextlib
import ctypes
import io
import json
import os
import pickle
import resource
import signal
import socket
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

LENGTH = struct.Struct("!I")
OUTPUT_BYTES = 2000
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36


class Tail(io.BufferedIOBase):
    """A stream that keeps only the end of what is written: a flood of output costs no memory and reaches nobody."""

    def __init__(self) -> None:
        self.kept = b""

    def writable(self) -> bool:
        """Say that it can be written to."""
        return True

    def write(self, data: Any) -> int:
        """Keep the last bytes."""
        size = memoryview(data).nbytes
        self.kept = (self.kept + bytes(data[-OUTPUT_BYTES:]))[-OUTPUT_BYTES:]
        return size

    def take(self) -> str:
        """Return the kept text and forget it."""
        kept, self.kept = self.kept, b""
        return kept.decode("utf-8", errors="replace")


def text_stream(tail: Tail) -> io.TextIOWrapper:
    """Return a text stream over a tail, with `.buffer` and all."""
    return io.TextIOWrapper(tail, encoding="utf-8", errors="replace", write_through=True)  # type: ignore[arg-type]


def isolate(parent: int) -> None:
    """Die with the parent, adopt orphaned grandchildren (so that they can be found), ignore Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":
        libc = ctypes.CDLL(None)
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if os.getppid() != parent:
        os._exit(0)


def limit_memory(megabytes: int) -> None:
    """Allow so much address space beyond what is mapped now; 0: no limit. Loading a function is not limited."""
    if not megabytes:
        return
    mapped = 0
    with contextlib.suppress(OSError, ValueError):
        mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    wanted, hard = mapped + megabytes * 2**20, resource.getrlimit(resource.RLIMIT_AS)[1]
    with contextlib.suppress(OSError, ValueError):  # some systems know no such limit
        resource.setrlimit(resource.RLIMIT_AS, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard))


def lift_memory_limit() -> None:
    """Set the soft limit back to the hard one."""
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_AS, (hard, hard))


def children() -> int:
    """Return how many living processes this worker has started and not ended; 0 where the system does not tell."""
    alive = 0
    for listing in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for pid in listing.read_text().split():
                with contextlib.suppress(OSError):
                    alive += Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    return alive


class Desk:
    """Functions loaded so far, and how a request becomes an answer."""

    def __init__(self, memory_mb: int, adapters: Any, judge: Any) -> None:
        self.memory_mb = memory_mb
        self.adapters = adapters
        self.judge = judge
        self.functions: dict[str, Any] = {}

    def load(self, request: dict[str, Any]) -> dict[str, Any]:
        """Load a target and describe it; an error becomes text."""
        lift_memory_limit()
        try:
            function = self.adapters.load(**request["target"])
            self.functions[request["key"]] = function
            return {"style": function.style, "is_async": function.is_async, "line": function.line, "error": None}
        except BaseException as error:  # noqa: BLE001 - whatever the user's file raises is for the parent to tell
            short = str(error) if type(error) is ValueError else ""
            return {"error": short or self.judge.raised(error)["detail"]}
        finally:
            limit_memory(self.memory_mb)

    def arguments(self, function: Any, samples: list[dict[str, Any]]) -> dict[str, Any]:
        """Return the keywords of the call."""
        if function.style == "verl":
            return self.adapters.sample_arguments(function, samples[0])
        return self.adapters.batch_arguments(function, samples)

    def outcomes(self, function: Any, value: Any, count: int) -> list[dict[str, Any]]:
        """Judge the returned value, one outcome per sample."""
        if function.style == "verl":
            return [self.judge.judge(value)]
        return self.judge.judge_batch(value, count)

    def guarded(self, samples: list[dict[str, Any]], work: Callable[[], list[dict[str, Any]]]) -> list[dict[str, Any]]:
        """Run `work`; whatever it raises becomes the outcome of every sample."""
        try:
            return work()
        except BaseException as error:  # noqa: BLE001 - counted by the parent as an exception of these samples
            return [self.judge.raised(error)] * len(samples)

    def score(self, request: dict[str, Any]) -> list[dict[str, Any]]:
        """Call the function for a request and judge the result."""
        samples, function = request["samples"], self.functions[request["key"]]

        def work() -> list[dict[str, Any]]:
            value = function.call(**self.arguments(function, samples))
            if hasattr(value, "__await__"):
                import asyncio

                value = asyncio.run(_finish(value))
            return self.outcomes(function, value, len(samples))

        return self.guarded(samples, work)

    async def score_async(self, request: dict[str, Any]) -> list[dict[str, Any]]:
        """The same for a coroutine function, inside the running loop."""
        samples, function = request["samples"], self.functions[request["key"]]
        try:
            value = await function.call(**self.arguments(function, samples))
        except BaseException as error:  # noqa: BLE001 - counted by the parent as an exception of these samples
            return [self.judge.raised(error)] * len(samples)
        return self.guarded(samples, lambda: self.outcomes(function, value, len(samples)))


async def _finish(value: Any) -> Any:
    return await value


def receive(channel: socket.socket) -> dict[str, Any] | None:
    """Read one request; None at the end of the stream."""
    head = _exactly(channel, LENGTH.size)
    body = _exactly(channel, LENGTH.unpack(head)[0]) if head else None
    return pickle.loads(body) if body is not None else None


def _exactly(channel: socket.socket, size: int) -> bytes | None:
    parts = bytearray()
    while len(parts) < size:
        part = channel.recv(min(size - len(parts), 1 << 20))
        if not part:
            return None
        parts += part
    return bytes(parts)


def frame(answer: dict[str, Any]) -> bytes:
    """Return the answer as a frame."""
    body = json.dumps(answer).encode()
    return LENGTH.pack(len(body)) + body


def answer_of(request: dict[str, Any], outcomes: list[dict[str, Any]], tails: tuple[Tail, Tail], start: float) -> dict:
    """Return the answer: outcomes, seconds, processes left behind; faults carry the last output of the function."""
    output = (tails[0].take() + tails[1].take())[-OUTPUT_BYTES:]
    for outcome in outcomes:
        if outcome["fault"] is not None and output:
            outcome["detail"] = f"{outcome['detail']}\noutput: {output}"
    return {"id": request["id"], "outcomes": outcomes, "seconds": time.perf_counter() - start, "children": children()}


def serve(channel: socket.socket, desk: Desk, tails: tuple[Tail, Tail]) -> None:
    """Answer one request after the other, the function in the main thread."""
    own = os.getpid()
    while (request := receive(channel)) is not None:
        start = time.perf_counter()
        if "target" in request:
            answer = {"id": request["id"], **desk.load(request)}
        else:
            outcomes = desk.score(request)
            if os.getpid() != own:  # a forked copy that came back here instead of ending itself
                os._exit(0)
            answer = answer_of(request, outcomes, tails, start)
        channel.sendall(frame(answer))


async def serve_async(channel: socket.socket, desk: Desk, tails: tuple[Tail, Tail]) -> None:
    """Answer many requests at a time, each as a task."""
    import asyncio

    channel.setblocking(False)
    reader, writer = await asyncio.open_connection(sock=channel)
    running: set[asyncio.Task[None]] = set()

    async def one(request: dict[str, Any]) -> None:
        start = time.perf_counter()
        try:
            outcomes = await asyncio.wait_for(desk.score_async(request), request["limit"])
        except TimeoutError:
            detail = f"no answer within {request['limit']:g} s"
            outcomes = [desk.judge.fault("timeout", detail)] * len(request["samples"])
        writer.write(frame({**answer_of(request, outcomes, tails, start), "children": 0}))
        await writer.drain()

    while True:
        try:
            size = LENGTH.unpack(await reader.readexactly(LENGTH.size))[0]
            request = pickle.loads(await reader.readexactly(size))
        except asyncio.IncompleteReadError:
            return
        if "target" in request:
            writer.write(frame({"id": request["id"], **desk.load(request)}))
            continue
        task = asyncio.create_task(one(request))
        running.add(task)
        task.add_done_callback(running.discard)


def main(descriptor: int) -> None:
    """Set the process up as the first frame says, then serve until the parent closes the socket."""
    channel = socket.socket(fileno=descriptor)
    setup = receive(channel)
    if setup is None:
        return
    isolate(setup["parent"])
    sys.path[:] = setup["sys_path"]
    from ppo_lightning.rewards import adapters, judge

    tails = (Tail(), Tail())
    sys.stdout, sys.stderr = text_stream(tails[0]), text_stream(tails[1])
    desk = Desk(setup["memory_mb"], adapters, judge)
    if setup["concurrent"]:
        import asyncio

        asyncio.run(serve_async(channel, desk, tails))
    else:
        serve(channel, desk, tails)
    os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]))
