"""SIGTERM: break off a step that has changed nothing yet, or finish it; save, exit 143. A second one exits at once."""

import os
import signal
from types import FrameType
from typing import Any

EXIT_TERMINATED = 128 + signal.SIGTERM


class BrokenOffError(BaseException):
    """The process was asked to end in the middle of a step; the state is that of the last finished one.

    No `Exception`: whoever handles any failure of a reward, a request or a logger must not take this for one.
    """


class StopSignal:
    """Remembers that the process was asked to end, and breaks off what may be broken off.

    Attributes:
        asked: whether it was.
        breakable: whether what runs now has changed nothing that lasts: then the signal ends it, wherever it waits.
    """

    def __init__(self) -> None:
        self.asked = False
        self.breakable = False
        self._before: Any = None

    def install(self) -> None:
        """Listen for SIGTERM, in place of whoever listens now."""
        before = signal.signal(signal.SIGTERM, self._on_signal)
        if before != self._on_signal and self._before is None:
            self._before = before

    def uninstall(self) -> None:
        """Give SIGTERM back to who listened before."""
        signal.signal(signal.SIGTERM, self._before or signal.SIG_DFL)

    def open(self) -> None:
        """Begin what may be broken off.

        Raises:
            BrokenOffError: the process was asked to end before.
        """
        self.breakable = True
        if self.asked:
            self.close()
            raise BrokenOffError

    def close(self) -> None:
        """From here on nothing is broken off: the state is about to change."""
        self.breakable = False

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            os._exit(EXIT_TERMINATED)
        self.asked = True
        if self.breakable:
            self.breakable = False
            raise BrokenOffError
