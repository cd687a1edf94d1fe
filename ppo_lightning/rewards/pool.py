"""Score samples while generation goes on: every sample is an asyncio task, every call runs in a worker process.

The event loop lives on a thread of its own. Synchronous functions get a worker to themselves per call; coroutine
functions share workers; functions that take whole batches are called once, at `collect`. Nothing that a function does
- hang, crash, leak, flood, return nonsense - reaches the trainer: it is counted under its kind, the worker replaced.
"""

import asyncio
import math
import os
import pickle
import threading
import weakref
from collections.abc import Coroutine, Sequence
from concurrent.futures import Future
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

from ppo_lightning.config.schema import RewardConfig
from ppo_lightning.errors import RewardError
from ppo_lightning.rewards.combine import Part, combine, parts_of
from ppo_lightning.rewards.judge import fault
from ppo_lightning.rewards.process import Seat, WorkerDiedError, WorkerSettings
from ppo_lightning.rewards.sample import Loaded, Sample, Scored, Target

ASYNC_WORKERS = 2
ASYNC_LANES = 32
ASYNC_GRACE_SECONDS = 1.0
BATCH_ROUNDS = 30
HANG_ROUNDS = 3
SUSPECTS = 2
UNSENDABLE = (pickle.PicklingError, TypeError, AttributeError)


class RewardPool:
    """Worker processes that score samples; a context manager.

    Args:
        config: the reward section: function, workers, limits.
        parts: the reward functions and weights; by default those of `config`.
    """

    def __init__(self, config: RewardConfig, parts: Sequence[Part] | None = None) -> None:
        self.config = config
        self.parts = list(parts) if parts is not None else parts_of(config)
        self._open: list[Future[Scored]] = []
        self._crew = _Crew(config)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="rewards", daemon=True)
        self._thread.start()
        self._finalizer = weakref.finalize(self, _shut_down, os.getpid(), self._loop, self._thread, self._crew)

    def start(self) -> list[str]:
        """Load every function that is known by now in a worker and return one line about each.

        Raises:
            RewardError: a function cannot be loaded or has no known signature.
        """
        targets = [part.target for part in self.parts if part.target is not None]
        return [self._run(self._crew.inspect(target)).result().line for target in targets]

    def submit(self, sample: Sample) -> None:
        """Hand in a finished response; returns at once.

        Raises:
            RewardError: the pool is closed, or no scorer belongs to the sample's data source.
        """
        targets = [part.target_of(sample) for part in self.parts]
        self._crew.expected += 1
        self._open.append(self._run(self._score(sample, targets)))

    def collect(self) -> list[Scored]:
        """Wait for everything handed in since the last call and return it in row order."""
        waiting, self._open = self._open, []
        self._run(self._crew.flush()).result()
        results = [future.result() for future in waiting]
        self._crew.new_step()
        return sorted(results, key=lambda scored: scored.row)

    def score(self, samples: Sequence[Sample]) -> list[Scored]:
        """Submit and collect."""
        for sample in samples:
            self.submit(sample)
        return self.collect()

    def close(self) -> None:
        """End all workers and everything they started; open samples are lost."""
        self._finalizer()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(self, work: Coroutine[Any, Any, Any]) -> "Future[Any]":
        if not self._finalizer.alive:
            work.close()
            raise RewardError("the reward pool is closed: make a new one")
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    async def _score(self, sample: Sample, targets: list[Target]) -> Scored:
        return combine(sample.row, self.parts, await self._crew.outcomes(sample, targets))


def _shut_down(owner: int, loop: asyncio.AbstractEventLoop, thread: threading.Thread, crew: "_Crew") -> None:
    if os.getpid() != owner:  # a forked copy of the trainer ends: the thread and the workers are not its own
        return

    async def stop() -> None:
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        crew.kill()
        await asyncio.gather(*tasks, return_exceptions=True)
        crew.kill()

    asyncio.run_coroutine_threadsafe(stop(), loop).result()
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


class _Crew:
    """The workers and who gets the next free one; lives on the event loop."""

    def __init__(self, config: RewardConfig) -> None:
        self.config = config
        self.expected = 0
        self._hung = 0
        self._settings = WorkerSettings(config.memory_mb, tuple(config.environment))
        self._infos: dict[str, asyncio.Task[Loaded]] = {}
        self._seats: dict[bool, asyncio.LifoQueue[Seat]] = {}
        self._all_seats: set[Seat] = set()
        self._batches: dict[str, tuple[Target, list[_Entry]]] = {}
        self._deciding = 0
        self._decided = asyncio.Event()
        self._suspects = asyncio.Semaphore(SUSPECTS)

    def new_step(self) -> None:
        """Forget the hangs of the last step."""
        self.expected = self._hung = 0

    def kill(self) -> None:
        """End every worker."""
        for seat in self._all_seats:
            seat.kill()

    async def inspect(self, target: Target) -> Loaded:
        """Load a target in a worker, once, and return what it is.

        Raises:
            RewardError: it cannot be loaded.
        """
        if target.key not in self._infos:
            self._infos[target.key] = asyncio.create_task(self._inspect(target))
        return await asyncio.shield(self._infos[target.key])

    async def _inspect(self, target: Target) -> Loaded:
        queue = self._queue(concurrent=False)
        seat = await queue.get()
        try:
            return (await seat.ready(target))[1]
        except WorkerDiedError as error:
            raise RewardError(f"{target.place}:{target.name} cannot be loaded: {error}") from error
        finally:
            queue.put_nowait(seat)

    async def outcomes(self, sample: Sample, targets: Sequence[Target]) -> list[dict[str, Any]]:
        """Score one sample with several functions at once: {score, extra, fault, detail, seconds, batched} of each."""
        self._deciding += len(targets)
        return await asyncio.gather(*(self._outcome(sample, target) for target in targets))

    async def _outcome(self, sample: Sample, target: Target) -> dict[str, Any]:
        try:
            info = await self.inspect(target)
            waiting = self._enqueue(sample, target) if info.batched else None
        except RewardError as error:
            return {**fault("exception", str(error)), "seconds": 0.0, "batched": False}
        finally:
            self._deciding -= 1
            self._decided.set()
        if waiting is not None:
            return {**await waiting, "batched": True}
        return {**(await self._call(target, info, [sample]))[0], "batched": False}

    def _enqueue(self, sample: Sample, target: Target) -> "asyncio.Future[dict[str, Any]]":
        waiting: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._batches.setdefault(target.key, (target, []))[1].append((sample, waiting))
        return waiting

    async def flush(self) -> None:
        """Call the batched functions with everything that waits for them."""
        while self._deciding:
            self._decided.clear()
            await self._decided.wait()
        batches, self._batches = self._batches, {}
        await asyncio.gather(*(self._flush(target, entries) for target, entries in batches.values()))

    async def _flush(self, target: Target, entries: list["_Entry"]) -> None:
        entries.sort(key=lambda entry: entry[0].row)
        outcomes = await self._call(target, await self.inspect(target), [sample for sample, _ in entries])
        for (_, waiting), outcome in zip(entries, outcomes, strict=True):
            waiting.set_result(outcome)

    async def _call(self, target: Target, info: Loaded, samples: list[Sample]) -> list[dict[str, Any]]:
        """Score on a free worker; a sample whose worker died gets a second try alone on a fresh one."""
        queue = self._queue(info.is_async)
        seat = await queue.get()
        try:
            if self._given_up():
                detail = (
                    f"not run: {self._hung} samples of this step hung for reward.timeout_s={self.config.timeout_s:g} s"
                )
                return _all(samples, fault("timeout", detail))
            return await self._attempt(seat, target, samples)
        except WorkerDiedError:
            pass
        finally:
            queue.put_nowait(seat)
        async with self._suspects:
            return await self._second_attempt(target, samples)

    async def _second_attempt(self, target: Target, samples: list[Sample]) -> list[dict[str, Any]]:
        seat = Seat(self._settings)
        self._all_seats.add(seat)
        try:
            return await self._attempt(seat, target, samples)
        except WorkerDiedError as error:
            return _all(samples, fault("worker_death", str(error)))
        finally:
            seat.kill()
            self._all_seats.discard(seat)

    async def _attempt(self, seat: Seat, target: Target, samples: list[Sample]) -> list[dict[str, Any]]:
        """Ask a worker once.

        Raises:
            WorkerDiedError: it ended before it answered, by its own doing or because another sample hung in it.
        """
        try:
            worker, _ = await seat.ready(target)
        except RewardError as error:
            return _all(samples, fault("exception", str(error)))
        limit = self.config.timeout_s * min(len(samples), BATCH_ROUNDS)
        shared = seat.settings.concurrent
        request = {"key": target.key, "samples": [dict(vars(sample)) for sample in samples], "limit": limit}
        try:
            answer = await worker.ask(request, limit + (ASYNC_GRACE_SECONDS if shared else 0.0))
        except TimeoutError as error:
            worker.kill()
            if shared:  # one of many samples blocks the worker's event loop: each is tried again on its own
                raise WorkerDiedError("a coroutine blocked the event loop") from error
            self._hung += len(samples)
            return _all(samples, fault("timeout", f"no answer within {limit:g} s; the worker was killed"), limit)
        except WorkerDiedError:
            worker.kill()
            raise
        except UNSENDABLE as error:
            return _all(samples, fault("exception", f"the sample cannot be sent to a worker: {error}"))
        self._hung += sum(outcome["fault"] == "timeout" for outcome in answer["outcomes"])
        if answer["children"]:
            worker.kill()
        note = f"left {answer['children']} process(es) running; they were killed" if answer["children"] else None
        share = answer["seconds"] / len(samples)
        return [
            {**outcome, "detail": _lines(outcome["detail"], note), "seconds": share} for outcome in answer["outcomes"]
        ]

    def _given_up(self) -> bool:
        allowed = max(HANG_ROUNDS * self.config.workers, math.ceil(self.config.max_error_share * self.expected))
        return self._hung >= allowed

    def _queue(self, concurrent: bool) -> "asyncio.LifoQueue[Seat]":
        if concurrent not in self._seats:
            count = min(ASYNC_WORKERS, self.config.workers) if concurrent else self.config.workers
            seats = [Seat(replace(self._settings, concurrent=concurrent)) for _ in range(count)]
            self._all_seats |= set(seats)
            self._seats[concurrent] = asyncio.LifoQueue()
            for seat in seats * (ASYNC_LANES if concurrent else 1):
                self._seats[concurrent].put_nowait(seat)
        return self._seats[concurrent]


_Entry = tuple[Sample, "asyncio.Future[dict[str, Any]]"]


def _all(samples: list[Sample], outcome: dict[str, Any], seconds: float = 0.0) -> list[dict[str, Any]]:
    return [{**outcome, "seconds": seconds / len(samples)} for _ in samples]


def _lines(*texts: str | None) -> str | None:
    return "\n".join(text for text in texts if text) or None
