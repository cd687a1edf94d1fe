"""A folder that appears whole or not at all, and that shows when a file in it was damaged afterwards.

Order of a write: every file into a sibling folder, synced as soon as it is there; COMPLETE with the size and SHA-256 of
each, synced; one rename; the parent synced. Nothing passes through the system's temporary folder.
"""

import hashlib
import json
import os
import shutil
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Self

MARKER, PARTIAL, REPLACED = "COMPLETE", ".partial_", ".replaced_"
THREADS = 4
"""Two files at a time are synced and hashed."""


class Sealing:
    """Syncs and hashes the files of a folder in threads, while more of them are written; then marks the folder whole.

    The disk works from the first file on, and hashing waits for nothing: neither needs Python's lock.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.threads = ThreadPoolExecutor(THREADS)
        self.taken: dict[Path, tuple[Future[None], Future[str]]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Wait for what the threads are at; the folder may be removed then."""
        self.threads.shutdown(cancel_futures=True)

    def take(self) -> None:
        """Begin with the files that are new; nothing may write into them any more."""
        for path in sorted(self.folder.rglob("*")):
            if path not in self.taken and path.is_file():
                self.taken[path] = self.threads.submit(_sync, path), self.threads.submit(_digest, path)

    def finish(self) -> None:
        """Wait until every file is on the disk, and write the marker, which lists them.

        Raises:
            OSError: a file could not be written or read.
        """
        self.take()
        listed = {}
        for path, (synced, digest) in sorted(self.taken.items()):
            synced.result()
            listed[str(path.relative_to(self.folder))] = [path.stat().st_size, digest.result()]
        marker = self.folder / MARKER
        marker.write_text(json.dumps({"files": listed}, indent=1), encoding="utf-8")
        for path in (marker, *(path for path in self.folder.rglob("*") if path.is_dir()), self.folder):
            _sync(path)


def publish(partial: Path, target: Path) -> None:
    """Give a sealed folder its name; what has that name stays findable (`stand_ins`) until then."""
    old = target.with_name(REPLACED + target.name)
    put_back(target)
    if target.exists():
        target.rename(old)
    try:
        partial.rename(target)
    except OSError:
        put_back(target)
        raise
    _sync(target.parent)
    shutil.rmtree(old, ignore_errors=True)


def put_back(target: Path) -> None:
    """Undo a replacement that was broken off; remove what a finished one left behind."""
    old = target.with_name(REPLACED + target.name)
    if not target.exists() and old.exists():
        old.rename(target)
    shutil.rmtree(old, ignore_errors=True)


def damage(folder: Path) -> str | None:
    """Say what is wrong with a folder; None: it is whole, byte for byte as it was sealed."""
    try:
        listed = json.loads((folder / MARKER).read_text(encoding="utf-8"))["files"]
    except FileNotFoundError:
        return f"no {MARKER} file in it"
    except (OSError, ValueError, TypeError, KeyError):
        return f"its {MARKER} file cannot be read"
    for name, (size, digest) in listed.items():
        path = folder / name
        try:
            found = path.stat().st_size
            if found != size:
                return f"{name} has {found} bytes instead of {size}"
            if _digest(path) != digest:
                return f"{name} has other bytes than were written"
        except FileNotFoundError:
            return f"{name} is missing"
        except OSError as error:
            return f"{name} cannot be read: {error.strerror}"
    return None


def discard(folder: Path) -> None:
    """Remove a folder; broken off at any point it is either whole or without a marker."""
    (folder / MARKER).unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
