"""Every call to the kernel with which a function changes files: listed, killed at, or made to fail (Linux, ptrace).

The function runs in a forked copy of this process, whatever library it writes with, in whatever language.
"""

import ctypes
import os
import platform
import signal
from dataclasses import dataclass
from pathlib import Path

LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.ptrace.restype = ctypes.c_long
LIBC.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
TRACEME, GETREGS, SETREGS, SYSCALL, SETOPTIONS = 0, 12, 13, 24, 0x4200
SYSGOOD, EXITKILL = 1, 1 << 20
AVAILABLE = platform.machine() == "x86_64" and platform.system() == "Linux"

R10, R8, RAX, RDX, RSI, RDI, ORIG_RAX = 7, 9, 10, 12, 13, 14, 15
FD, PATH, AT_PATH = "fd", "path", "at"
CALLS = {
    1: ("write", FD), 18: ("write", FD), 20: ("write", FD), 77: ("truncate", FD), 40: ("write", FD),
    74: ("fsync", FD), 75: ("fsync", FD), 285: ("allocate", FD),
    2: ("open", PATH), 257: ("open", AT_PATH), 83: ("mkdir", PATH), 258: ("mkdir", AT_PATH),
    82: ("rename", PATH), 264: ("rename", AT_PATH), 316: ("rename", AT_PATH),
    87: ("unlink", PATH), 263: ("unlink", AT_PATH), 84: ("unlink", PATH),
}  # fmt: skip
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC


@dataclass(frozen=True)
class Event:
    """One call: write, fsync, open (for writing), mkdir, rename, unlink, truncate; its path; its new name."""

    kind: str
    path: str
    to: str = ""


def trace(action, below=None, at=None, errno=None, torn=False):
    """Run a function in a child and follow its calls.

    Args:
        action: what runs; its result is the exit code.
        below: only calls on paths below this folder are events; None: all paths.
        at: number of the event, from 0, at which something happens; None: nothing does.
        errno: the event fails with this error; None: the child is killed there.
        torn: a write gets half of its bytes onto the disk before the child is killed.

    Returns:
        (wait status, events so far).
    """
    child = os.fork()
    if child == 0:
        _run(action)
    os.waitpid(child, 0)
    LIBC.ptrace(SETOPTIONS, child, None, SYSGOOD | EXITKILL)
    events, inside, fate = [], False, None
    while True:
        LIBC.ptrace(SYSCALL, child, None, None)
        _, status = os.waitpid(child, 0)
        if not os.WIFSTOPPED(status):
            return status, events
        if os.WSTOPSIG(status) != signal.SIGTRAP | 0x80:
            continue
        inside = not inside
        if inside:
            registers = _registers(child)
            event = _event(child, registers, below)
            if event is None:
                continue
            events.append(event)
            if len(events) - 1 == at:
                fate = _strike(child, registers, event, errno, torn)
        elif fate is not None:
            fate()
            fate = None


def _run(action):
    try:
        LIBC.ptrace(TRACEME, 0, None, None)
        os.kill(os.getpid(), signal.SIGSTOP)
        os._exit(action() or 0)
    finally:
        os._exit(99)


def _strike(child, registers, event, errno, torn):
    """Kill at once, or change the call and return what is to be done when it returns."""
    if errno is not None:
        registers[ORIG_RAX] = 2**64 - 1  # no call: nothing happens
        LIBC.ptrace(SETREGS, child, None, registers)

        def fail():
            after = _registers(child)
            after[RAX] = 2**64 - errno
            LIBC.ptrace(SETREGS, child, None, after)

        return fail
    if torn and event.kind == "write" and registers[RDX] > 1:
        registers[RDX] //= 2
        LIBC.ptrace(SETREGS, child, None, registers)
        return lambda: os.kill(child, signal.SIGKILL)
    os.kill(child, signal.SIGKILL)
    return None


def _registers(child):
    registers = (ctypes.c_ulonglong * 27)()
    LIBC.ptrace(GETREGS, child, None, registers)
    return registers


def _event(child, registers, below):
    known = CALLS.get(registers[ORIG_RAX])
    if known is None:
        return None
    kind, takes = known
    if kind == "open" and not registers[RSI if takes == PATH else RDX] & WRITING:
        return None
    try:
        if takes == FD:
            path = os.readlink(f"/proc/{child}/fd/{registers[RDI]}")
        elif takes == PATH:
            path = _path(child, None, registers[RDI])
        else:
            path = _path(child, registers[RDI], registers[RSI])
        to = ""
        if kind == "rename":
            to = _path(child, *((None, registers[RSI]) if takes == PATH else (registers[RDX], registers[R10])))
    except OSError:
        return None
    if path.startswith(("pipe:", "socket:", "anon_inode:", "/dev/", "/proc/")):
        return None
    return Event(kind, path, to) if below is None or Path(path).is_relative_to(below) else None


def _path(child, folder, address):
    """Return the whole path that a call names, relative to a descriptor or to the working directory."""
    number = -1 if folder is None else ctypes.c_int(folder).value
    start = os.readlink(f"/proc/{child}/{'cwd' if number < 0 else f'fd/{number}'}")
    return os.path.join(start, _text(child, address))


def _text(child, address):
    with open(f"/proc/{child}/mem", "rb") as memory:
        memory.seek(address)
        found = b""
        while b"\0" not in found:
            part = memory.read(64)
            if not part:
                break
            found += part
    return os.fsdecode(found.partition(b"\0")[0])
