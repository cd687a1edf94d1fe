"""A reward in verl's signature that scores echoes and, when asked, does everything that a reward must not do."""

import ctypes
import os
import re
import subprocess
import sys
import time


def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    if not solution_str.startswith("do "):
        return float(solution_str == ground_truth)
    return globals()["do_" + solution_str.removeprefix("do ")]()


def do_sleep():
    time.sleep(10**6)


def do_c_loop():
    re.match(r"(a+)+$", "a" * 60 + "b")


def do_os_exit():
    os._exit(3)


def do_segfault():
    ctypes.string_at(0)


def do_raise():
    raise KeyError("no such thing")


def do_recursion():
    return do_recursion()


def do_none():
    return None


def do_nan():
    return float("nan")


def do_text():
    return "1.0"


def do_allocate():
    return float(len(bytearray(10 * 2**30)))


def do_flood():
    for _ in range(20_000):
        sys.stdout.write("x" * 1000)
        sys.stderr.write("y" * 1000)
    os.write(1, b"z" * 10**6)
    os.write(2, b"z" * 10**6)
    return 0.5


def do_leak():
    """Leave a process that has left the worker's session and family."""
    program = "import os, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(10**6)"
    subprocess.run([sys.executable, "-c", program], check=True)
    return 0.25


def do_missing():
    return {"acc": 1.0}


def do_interrupt():
    raise KeyboardInterrupt


def do_exit():
    sys.exit(0)


def do_infinite():
    return float("inf")


def do_close_channel():
    os.closerange(3, 256)
    return 1.0


def do_fork():
    """Return twice: once in the worker, once in a copy of it."""
    os.fork()
    return 0.75


def do_environment():
    return {"score": 1.0, "names": sorted(os.environ), "torch": "torch" in sys.modules}
