"""`python -m ppo_lightning`, and the command `ppo-lightning`."""

import atexit
import os
import sys
from collections.abc import Callable
from typing import NoReturn


def end_with(work: Callable[[], int]) -> NoReturn:
    """Do the work and end the process with its exit code, once all that waits for the end of the process was called.

    Taking the interpreter apart as well, gigabytes of tensors in it, would take seconds and give nothing.
    """
    codes: list[int] = []
    atexit.register(_leave, codes)  # first in, last out
    codes.append(work())
    sys.exit(codes[0])


def run() -> NoReturn:
    """Run the command line."""
    end_with(_command)


def _command() -> int:
    from ppo_lightning.cli import main  # here: what is imported may ask to be called at the end

    return main()


def _leave(codes: list[int]) -> None:
    if codes:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(codes[0])


if __name__ == "__main__":
    run()
