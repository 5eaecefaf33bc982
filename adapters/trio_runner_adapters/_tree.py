"""Reading a directory tree without leaving it: bounded, stoppable, safe on odd trees. Sync.

What may live here: file work for worker threads; no trio, no MCP.

Confinement does not rest on comparing paths. Every directory and file is opened
component by component from the root's own descriptor, and never through a
symbolic link, so neither ``..`` nor a link made at the wrong moment leads out.
Only regular files are opened; of pseudo file systems (``/proc``, ``/sys``, …)
nothing is, since reading there can block or act.
"""

from __future__ import annotations

import os
import stat
import threading
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Literal

import attrs

Kind = Literal["file", "directory", "link", "other"]
Parts = tuple[str, ...]

#: Directories that hold no text a person wrote; they are listed, not entered.
SKIPPED: Final = frozenset(
    {".git", ".hg", ".svn", ".tox", ".venv", "venv", "node_modules", "__pycache__"}
)
_PSEUDO: Final = frozenset(
    {
        "autofs", "binfmt_misc", "bpf", "cgroup", "cgroup2", "configfs", "debugfs", "devpts",
        "devtmpfs", "efivarfs", "fusectl", "mqueue", "nsfs", "proc", "pstore", "rpc_pipefs",
        "securityfs", "selinuxfs", "sysfs", "tracefs",
    }
)  # fmt: skip
_DIRECTORY_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Not blocking: were a file swapped for a pipe since we looked, opening it would wait.
_FILE_FLAGS: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_CHUNK_BYTES: Final = 256 * 1024
#: Entries of one directory that are looked at; more are left out.
_DIRECTORY_ENTRIES: Final = 10_000


class StoppedError(Exception):
    """The caller is gone; whatever was found is of no use."""


class RefusedError(Exception):
    """What was asked for cannot be read; the text is for the one who asked."""


class Budget:
    """How much one job may still do. Shared by the thread that works and the task that stops it."""

    def __init__(self, *, time_limit: float, max_entries: int) -> None:
        self._deadline = time.monotonic() + time_limit
        self._entries = max_entries
        self._stop = threading.Event()
        #: Which bound was reached first; None while none was.
        self.cut: str | None = None

    def stop(self) -> None:
        """Make the thread leave at its next step."""
        self._stop.set()

    def goes_on(self) -> bool:
        """Return whether to go on; False once a bound is reached.

        Raises:
          StoppedError: the caller is gone.
        """
        if self._stop.is_set():
            raise StoppedError
        if self.cut is None and time.monotonic() > self._deadline:
            self.cut = "time limit"
        return self.cut is None

    def take_entry(self) -> bool:
        """Count one entry of the tree; like `goes_on`."""
        self._entries -= 1
        if self._entries < 0 and self.cut is None:
            self.cut = "entry limit"
        return self.goes_on()


@attrs.frozen
class Entry:
    """One entry of the tree; ``parts`` is its path from the root."""

    parts: Parts
    kind: Kind
    size_bytes: int
    #: Whether it may be opened: not on a pseudo file system.
    readable: bool


@attrs.define
class Trouble:
    """What a walk could not see."""

    unreadable: int = 0
    not_entered: int = 0
    #: That a directory had more entries than are looked at; the walk went on without them.
    cut: str | None = None


def shown(parts: Parts) -> str:
    """Return a path as text that is always valid, whatever bytes its names hold."""
    raw = os.fsencode("/".join(parts) or ".")
    return raw.decode("utf-8", "backslashreplace")


class Tree:
    """A directory that can be read and not left."""

    def __init__(self, root: Path) -> None:
        """Open ``root``, following links in its own path.

        Raises:
          OSError: it is no directory, or may not be read.
        """
        self._root = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._pseudo = _pseudo_devices()

    def close(self) -> None:
        """Give the root up."""
        os.close(self._root)

    def parts_of(self, path: str) -> Parts:
        """Split a path that somebody asked for.

        Raises:
          RefusedError: it is absolute, or leads out.
        """
        parts = tuple([part for part in path.split("/") if part not in ("", ".")])
        if path.startswith("/") or ".." in parts or "\0" in path:
            raise RefusedError(f"{path!r} leads out of the directory; use a path inside it")
        return parts

    def walk(self, start: Parts, budget: Budget, trouble: Trouble, depth: int) -> Iterator[Entry]:
        """Yield what is below ``start``, the near before the far, each directory sorted.

        Raises:
          RefusedError: ``start`` is no directory that can be read.
        """
        todo: deque[Parts] = deque([start])
        while todo:
            here = todo.popleft()
            try:
                entries = self._scan(here, budget, trouble)
            except OSError as error:
                if here == start:
                    raise RefusedError(_reason(here, error)) from error
                trouble.unreadable += 1
                continue
            for entry in entries:
                if not budget.take_entry():
                    return
                yield entry
                if entry.kind == "directory":
                    deep = len(entry.parts) - len(start) >= depth
                    if deep or entry.parts[-1] in SKIPPED or not entry.readable:
                        trouble.not_entered += 1
                    else:
                        todo.append(entry.parts)

    def chunks(self, parts: Parts, budget: Budget, limit_bytes: int) -> Iterator[bytes]:
        """Yield the beginning of a regular file, at most ``limit_bytes``.

        Raises:
          RefusedError: there is no such regular file, or it cannot be read.
        """
        try:
            with open(self._open_file(parts), "rb", buffering=0) as file:  # noqa: PTH123 - an fd
                left = limit_bytes
                while left > 0 and budget.goes_on():
                    chunk = file.read(min(left, _CHUNK_BYTES))
                    if not chunk:
                        return
                    left -= len(chunk)
                    yield chunk
        except OSError as error:
            raise RefusedError(_reason(parts, error)) from error

    def size(self, parts: Parts) -> int:
        """Return a file's size in bytes.

        Raises:
          RefusedError: there is no such file.
        """
        try:
            parent = self._open_directory(parts[:-1])
            try:
                return os.stat(parts[-1], dir_fd=parent, follow_symlinks=False).st_size
            finally:
                os.close(parent)
        except OSError as error:
            raise RefusedError(_reason(parts, error)) from error

    def _scan(self, parts: Parts, budget: Budget, trouble: Trouble) -> list[Entry]:
        directory = self._open_directory(parts)
        try:
            found: list[Entry] = []
            with os.scandir(directory) as scan:
                for item in scan:
                    if len(found) >= _DIRECTORY_ENTRIES:
                        trouble.cut = f"more than {_DIRECTORY_ENTRIES} in one directory"
                        break
                    if not budget.goes_on():
                        break
                    found.append(self._entry(parts, item))
        finally:
            os.close(directory)
        return sorted(found, key=lambda entry: entry.parts[-1])

    def _entry(self, parent: Parts, item: os.DirEntry[str]) -> Entry:
        parts = (*parent, item.name)
        try:
            status = item.stat(follow_symlinks=False)
        except OSError:
            return Entry(parts, "other", 0, readable=False)
        readable = status.st_dev not in self._pseudo
        return Entry(parts, _kind(status.st_mode), status.st_size, readable)

    def _open_directory(self, parts: Parts) -> int:
        """Open a directory below the root, one component at a time."""
        # Opened anew, not duplicated: copies of a descriptor share one reading position,
        # and several threads read the same directories.
        here = os.open(".", _DIRECTORY_FLAGS, dir_fd=self._root)
        try:
            for part in parts:
                below = os.open(part, _DIRECTORY_FLAGS, dir_fd=here)
                os.close(here)
                here = below
        except OSError:
            os.close(here)
            raise
        return here

    def _open_file(self, parts: Parts) -> int:
        if not parts:
            raise RefusedError("'.' is a directory; name a file")
        parent = self._open_directory(parts[:-1])
        try:
            # Looked at before it is opened: opening a device or a pipe can act.
            self._check_regular(parts, os.stat(parts[-1], dir_fd=parent, follow_symlinks=False))
            file = os.open(parts[-1], _FILE_FLAGS, dir_fd=parent)
        finally:
            os.close(parent)
        try:
            self._check_regular(parts, os.fstat(file))
        except RefusedError:
            os.close(file)
            raise
        return file

    def _check_regular(self, parts: Parts, status: os.stat_result) -> None:
        kind = _kind(status.st_mode)
        if kind != "file":
            name = {"link": "a symbolic link", "directory": "a directory"}.get(kind, "no file")
            raise RefusedError(f"{shown(parts)!r} is {name}; only regular files are read")
        if status.st_dev in self._pseudo:
            raise RefusedError(
                f"{shown(parts)!r} is on a pseudo file system; nothing there is read"
            )


def _kind(mode: int) -> Kind:
    if stat.S_ISREG(mode):
        return "file"
    if stat.S_ISDIR(mode):
        return "directory"
    return "link" if stat.S_ISLNK(mode) else "other"


def _reason(parts: Parts, error: OSError) -> str:
    return f"{shown(parts)!r} cannot be read: {error.strerror or error}"


def _pseudo_devices() -> frozenset[int]:
    """The devices of mounted pseudo file systems, where the system tells."""
    try:
        lines = Path("/proc/self/mountinfo").read_text(errors="replace").splitlines()
    except OSError:
        return frozenset()
    devices: set[int] = set()
    for line in lines:
        # "36 35 98:0 /root /mount options - fstype source ...", with optional fields before "-".
        mount, _, source = line.partition(" - ")
        if source.split(" ", 1)[0] in _PSEUDO:
            major, _, minor = mount.split()[2].partition(":")
            devices.add(os.makedev(int(major), int(minor)))
    return frozenset(devices)
