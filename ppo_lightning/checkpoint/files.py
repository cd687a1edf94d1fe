"""A folder that appears whole or not at all, and that shows when a file in it was damaged afterwards.

Order of a write: every file into a sibling folder, synced; COMPLETE with the size and SHA-256 of each, synced; one
rename; the parent synced. Nothing passes through the system's temporary folder.
"""

import hashlib
import json
import os
import shutil
from pathlib import Path

MARKER, PARTIAL, REPLACED = "COMPLETE", ".partial_", ".replaced_"


def seal(folder: Path) -> None:
    """Sync every file of a folder and write its marker, which lists them."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    listed = {str(path.relative_to(folder)): [path.stat().st_size, _digest(path)] for path in files}
    for path in files:
        _sync(path)
    marker = folder / MARKER
    marker.write_text(json.dumps({"files": listed}, indent=1), encoding="utf-8")
    for path in (marker, *(path for path in folder.rglob("*") if path.is_dir()), folder):
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
