"""One rank's failure ends all of them, soon and with its own message as the last thing on the screen.

A rank that fails in the middle of a step leaves the others waiting in a collective. So it puts its message into the
group's store, where a thread of every other rank finds it; the first rank speaks for all, when the others are gone.
"""

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, NoReturn, Self

import torch.distributed as dist

from ppo_lightning.errors import PPOLightningError, RankFailedError

KEY, GONE = "failure", "gone"
POLL_S = 0.5
GRACE_S = 3.0
"""What a rank that learns of another's failure has to close its engine and loggers, if it is not stuck."""
LAST_S = 10.0
"""How long the first rank waits for the others to be gone before it speaks."""

EXIT_BUG, EXIT_INTERRUPTED = 1, 130
_watches = 0


class Watch:
    """Watches over the ranks of one run; a context manager around everything that they do together.

    Args:
        children: the ranks that this process started, as far as it has.
    """

    def __init__(self, children: Callable[[], Sequence[subprocess.Popen]]) -> None:
        self.children = children
        self.rank, self.size = 0, 1
        self.store: Any = None
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True, name="rank-watch")

    def start(self) -> None:
        """Begin to watch; before the process group exists only children can be seen to fail."""
        self.thread.start()

    def join(self, rank: int, size: int) -> None:
        """Use the store of the process group from now on."""
        global _watches
        _watches += 1  # the ranks run the same program: the n-th watch of each is the same one
        default: Any = dist.distributed_c10d._get_default_store()
        store = default.clone()  # the main thread may be waiting in the other one
        self.rank, self.size = rank, size
        self.store = dist.PrefixStore(f"ppo_lightning/{_watches}", store)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End together: wait for the others, or tell them why this rank fails and let the first rank speak.

        Raises:
            RankFailedError: on the first rank, when another one failed before it.
        """
        try:
            if error is None:
                dist.barrier()
                self.over.set()
                self._reap(LAST_S)
                return
        except RuntimeError as late:  # another rank failed where only it had work left
            error = late
        first = self._publish(error)
        self.over.set()
        if self.rank:
            self._vanish(first)
        self._wait_for_others()
        if first["rank"]:
            raise RankFailedError(self._told(first), first["code"]) from None

    def _publish(self, error: BaseException) -> dict[str, Any]:
        """Put this rank's failure into the store if it is the first one; return the first one."""
        code, text = described(error)
        mine = {"rank": self.rank, "code": code, "text": text}
        try:
            first: dict[str, Any] = json.loads(self.store.compare_set(KEY, "", json.dumps(mine)))
        except (RuntimeError, ValueError):  # the store is gone with the first rank
            return mine
        if first == mine:
            from torch.distributed.elastic.multiprocessing.errors import get_error_handler

            with contextlib.suppress(OSError):
                get_error_handler().record_exception(error)  # torchrun's summary then tells this one
        return first

    def _run(self) -> None:
        while not self.over.wait(POLL_S):
            codes = [child.poll() for child in self.children()]
            failed = [(place, code) for place, code in enumerate(codes, 1) if code]
            if self.store is None:
                if failed:  # the child has said why
                    self._end(failed[0][1])
                continue
            first = self._look(failed)
            if first is not None and not self.over.wait(GRACE_S):
                if self.rank:
                    self._vanish(first)
                self._wait_for_others()
                self._end(first["code"], f"error: {self._told(first)}")

    def _look(self, failed: list[tuple[int, int]]) -> dict[str, Any] | None:
        """Return the first failure of another rank, if there is one."""
        try:
            if not self.store.check([KEY]):
                if not failed:
                    return None
                place, code = failed[0]
                text = f"ended with code {code} and said nothing: killed by the system, out of memory?"
                self.store.compare_set(KEY, "", json.dumps({"rank": place, "code": EXIT_BUG, "text": text}))
            first: dict[str, Any] = json.loads(self.store.get(KEY))
        except RuntimeError:
            if self.over.is_set():
                return None
            self._end(EXIT_BUG, f"error: rank {self.rank} lost the first rank, which ended and said nothing")
        return None if first["rank"] == self.rank else first

    def _told(self, first: dict[str, Any]) -> str:
        return f"rank {first['rank']} of {self.size} failed, and all ranks with it\n{first['text']}"

    def _vanish(self, first: dict[str, Any]) -> NoReturn:
        """End a rank that leaves the speaking to the first one."""
        with contextlib.suppress(RuntimeError):
            self.store.add(GONE, 1)
        self._end(first["code"])

    def _wait_for_others(self) -> None:
        end = time.monotonic() + LAST_S
        with contextlib.suppress(RuntimeError):
            while self.store.add(GONE, 0) < self.size - 1 and time.monotonic() < end:
                time.sleep(POLL_S / 5)
        self._reap(1.0)

    def _reap(self, seconds: float) -> None:
        """Wait for the children, and end those that do not."""
        end = time.monotonic() + seconds
        for child in self.children():
            try:
                child.wait(max(end - time.monotonic(), 0.1))
            except subprocess.TimeoutExpired:
                child.kill()

    @staticmethod
    def _end(code: int, text: str | None = None) -> NoReturn:
        """End the process at once: its main thread may be waiting for what never comes."""
        if text:
            print(text, file=sys.stderr)  # noqa: T201
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(code if 0 < code < 256 else EXIT_BUG)


def described(error: BaseException) -> tuple[int, str]:
    """Return the exit code and the text of a failure: the message alone where the user can mend it."""
    if isinstance(error, PPOLightningError):
        return error.exit_code, str(error)
    if isinstance(error, KeyboardInterrupt | SystemExit):
        return EXIT_INTERRUPTED, "interrupted"
    return EXIT_BUG, "".join(traceback.format_exception(error)).strip()
