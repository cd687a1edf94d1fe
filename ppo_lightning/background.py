"""A thread that writes what a step leaves behind, so that no disk and no service holds the step up.

Its queue is bounded, and its errors surface at the next step and at the end.
"""

import queue
import threading
import time
from collections.abc import Callable

WAITING = 8
"""Tasks that may wait; the next one makes the caller wait."""

PATIENCE_S = 60.0
"""Longest wait for a thread that is behind, for a place in its queue or for its end."""


class Background:
    """Runs tasks one after the other, in the order given.

    Args:
        name: of what is written, for messages.
        say: takes a line for the console.
        tolerated: errors that are said and counted; any other ends the run at the next call.
        patience_s: longest wait of a caller.

    Attributes:
        lost: tasks that failed or found no place, since `take_lost` was called.
    """

    def __init__(
        self,
        name: str,
        say: Callable[[str], None],
        tolerated: type[Exception] = OSError,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self.name, self.say, self.tolerated, self.patience_s = name, say, tolerated, patience_s
        self.tasks: queue.Queue[tuple[str, Callable[[], None]] | None] = queue.Queue(WAITING)
        self.failed: queue.SimpleQueue[tuple[str, Exception]] = queue.SimpleQueue()
        self.lost, self.stuck = 0, False
        self.said: set[str] = set()
        self.thread = threading.Thread(target=self._work, name=f"write {name}", daemon=True)
        self.thread.start()

    def submit(self, what: str, task: Callable[[], None]) -> None:
        """Queue a task; waits only if `WAITING` others are ahead, and not for a thread that is stuck.

        Raises:
            Exception: an earlier task failed in a way that is not tolerated.
        """
        self.check()
        try:
            self.tasks.put((what, task), timeout=0 if self.stuck else self.patience_s)
            self.stuck = False
        except queue.Full:
            self.stuck = True
            self._lose(f"{what}: {WAITING} others still wait to be written")

    def check(self) -> None:
        """Say what failed since the last call, each kind once.

        Raises:
            Exception: one that is not tolerated.
        """
        while not self.failed.empty():
            what, error = self.failed.get()
            if not isinstance(error, self.tolerated):
                raise error
            self._lose(f"{what}: {getattr(error, 'strerror', None) or error or type(error).__name__}")

    def take_lost(self) -> int:
        """Return how many tasks were lost since the last call."""
        lost, self.lost = self.lost, 0
        return lost

    def drain(self) -> bool:
        """Wait until everything queued is done, `patience_s` at most; returns whether it is."""
        done = threading.Event()
        began = time.monotonic()
        try:
            self.tasks.put(("", done.set), timeout=self.patience_s)
        except queue.Full:
            return False
        return done.wait(max(0.0, self.patience_s - (time.monotonic() - began)))

    def close(self) -> None:
        """Finish what is queued and end the thread, or say after `patience_s` that it did not end.

        Raises:
            Exception: a task failed in a way that is not tolerated.
        """
        if self.drain():
            self.tasks.put(None)
            self.thread.join()
        else:
            self.say(f"warning: {self.name} did not finish in {self.patience_s:g} s and is left behind")
        self.check()

    def _lose(self, reason: str) -> None:
        self.lost += 1
        kind = reason.rpartition(": ")[2]
        if kind not in self.said:
            self.said.add(kind)
            self.say(f"warning: {self.name} lost {reason} (said once); the run goes on")

    def _work(self) -> None:
        while (item := self.tasks.get()) is not None:
            what, task = item
            try:
                task()
            except Exception as error:  # noqa: BLE001 - handed to the caller's thread, which judges it
                self.failed.put((what, error))
