"""SIGTERM: finish the step, save, exit 143; a second one exits at once."""

import os
import signal
from types import FrameType

EXIT_TERMINATED = 128 + signal.SIGTERM


class StopSignal:
    """Remembers that the process was asked to end."""

    def __init__(self) -> None:
        self.asked = False

    def install(self) -> None:
        """Listen for SIGTERM."""
        signal.signal(signal.SIGTERM, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            os._exit(EXIT_TERMINATED)
        self.asked = True
