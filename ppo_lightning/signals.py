"""SIGTERM: break off a step that can be undone, or finish it; save, exit 143. A second one exits at once."""

import os
import signal
from types import FrameType
from typing import Any

from ppo_lightning.parallel.ranks import Ranks

EXIT_TERMINATED = 128 + signal.SIGTERM


class BrokenOffError(BaseException):
    """The process was asked to end in the middle of a step; the state is that of the last finished one.

    No `Exception`: whoever handles any failure of a reward, a request or a logger must not take this for one.
    """


class StopSignal:
    """Remembers that the process was asked to end, and breaks off what may be broken off.

    Attributes:
        asked: whether it was.
        breakable: whether what runs now has changed nothing for good: then the signal ends it.
        alone: whether it does so wherever the process waits; several ranks end together, where they `look`.
    """

    def __init__(self) -> None:
        self.asked = False
        self.breakable, self.alone = False, True
        self._before: Any = None

    def install(self) -> None:
        """Listen for SIGTERM, in place of whoever listens now."""
        before = signal.signal(signal.SIGTERM, self._on_signal)
        if before != self._on_signal and self._before is None:
            self._before = before

    def uninstall(self) -> None:
        """Give SIGTERM back to who listened before."""
        signal.signal(signal.SIGTERM, self._before or signal.SIG_DFL)

    def open(self, ranks: Ranks) -> None:
        """Begin what may be broken off.

        Raises:
            BrokenOffError: the process was asked to end before.
        """
        self.breakable, self.alone = True, ranks.size == 1
        if self.alone:
            self.look(ranks)

    def look(self, ranks: Ranks) -> None:
        """End here if any rank was asked to and may; all ranks look at the same places.

        Raises:
            BrokenOffError: on all ranks.
        """
        if self.breakable and ranks.most(int(self.asked)):
            self.asked = True
            self.close()
            raise BrokenOffError

    def close(self) -> None:
        """From here on nothing is broken off: the state is about to change for good."""
        self.breakable = False

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            os._exit(EXIT_TERMINATED)
        self.asked = True
        if self.breakable and self.alone:
            self.breakable = False
            raise BrokenOffError
