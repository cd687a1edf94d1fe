"""Every call to the kernel with which a function changes files: listed, killed at, or made to fail (Linux, ptrace).

The function runs in a forked copy of this process, whatever library it writes with, in whatever language and thread.
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
SYSGOOD, CLONE, EXITKILL = 1, 1 << 3, 1 << 20
ALL = 0x40000000
"""Of waitpid: threads too."""
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
    """One call: write, fsync, open (for writing), mkdir, rename, unlink, truncate.

    Attributes:
        kind: which of these.
        path: of the file, relative to the folder that is watched.
        to: its new name.
        nth: how many of the same came before it: threads may do theirs in another order at another time.
    """

    kind: str
    path: str
    to: str = ""
    nth: int = 0


def trace(action, below=None, at=None, errno=None, torn=False):
    """Run a function in a child and follow the calls of all its threads.

    Args:
        action: what runs; its result is the exit code.
        below: only calls on paths below this folder are events; None: all paths.
        at: the event, as an earlier trace gave it, at which something happens; None: nothing does.
        errno: the event fails with this error; None: the child is killed there.
        torn: a write gets half of its bytes onto the disk before the child is killed.

    Returns:
        (wait status, events so far).
    """
    child = os.fork()
    if child == 0:
        _run(action)
    os.waitpid(child, 0)
    LIBC.ptrace(SETOPTIONS, child, None, SYSGOOD | CLONE | EXITKILL)
    LIBC.ptrace(SYSCALL, child, None, None)
    events, inside, fates = [], set(), {}
    while True:
        thread, status = os.waitpid(-1, ALL)
        if not os.WIFSTOPPED(status):
            if thread == child:
                return status, events
            continue
        if os.WSTOPSIG(status) == signal.SIGTRAP | 0x80:
            inside ^= {thread}
            if thread in inside:
                event = _event(thread, _registers(thread), below, events)
                if event is not None:
                    events.append(event)
                    if event == at:
                        fates[thread] = _strike(child, thread, event, errno, torn)
            elif thread in fates:
                fates.pop(thread)()
        LIBC.ptrace(SYSCALL, thread, None, None)


def _run(action):
    try:
        LIBC.ptrace(TRACEME, 0, None, None)
        os.kill(os.getpid(), signal.SIGSTOP)
        os._exit(action() or 0)
    finally:
        os._exit(99)


def _strike(child, thread, event, errno, torn):
    """Kill at once, or change the call and return what is to be done when it returns."""
    registers = _registers(thread)
    if errno is not None:
        registers[ORIG_RAX] = 2**64 - 1  # no call: nothing happens
        LIBC.ptrace(SETREGS, thread, None, registers)

        def fail():
            after = _registers(thread)
            after[RAX] = 2**64 - errno
            LIBC.ptrace(SETREGS, thread, None, after)

        return fail
    if torn and event.kind == "write" and registers[RDX] > 1:
        registers[RDX] //= 2
        LIBC.ptrace(SETREGS, thread, None, registers)
        return lambda: os.kill(child, signal.SIGKILL)
    os.kill(child, signal.SIGKILL)
    return lambda: None


def _registers(child):
    registers = (ctypes.c_ulonglong * 27)()
    LIBC.ptrace(GETREGS, child, None, registers)
    return registers


def _event(child, registers, below, before):
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
    if below is not None:
        if not Path(path).is_relative_to(below):
            return None
        path, to = os.path.relpath(path, below), to and os.path.relpath(to, below)
    nth = sum((event.kind, event.path, event.to) == (kind, path, to) for event in before)
    return Event(kind, path, to, nth)


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
