"""Advisory locks between processes, each an flock on a small file of its own.

What may live here: taking, giving up and reading such a lock. The kernel frees
it when its process ends, however it ends. A lock's file is removed when it is
given up, so whoever has locked a file looks whether it is still the one at its
path: if not, somebody removed it in between and the lock means nothing.

A forked process inherits every lock, and would keep those of a parent that died. So it
closes their files before it does anything else; no fork happens between the opening of
such a file and the note of it.

POSIX only, and only as good as the file system: some network file systems do
not carry flock from one machine to another.
"""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import stat
import threading
import time
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import trio_runner._journal.faults as faults

_log = logging.getLogger("trio_runner")

#: Seconds between two tries to get a lock that somebody else has.
_TRY_AGAIN: Final = 0.002
#: A link in the place of the file leads to somebody's file, which would be written over.
_FLAGS: Final = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


class _OpenLocks:
    """The locks of this process whose files are open."""

    def __init__(self) -> None:
        #: Held while a file is opened or closed, and during a fork. Reentrant: a signal
        #: handler may fork.
        self.changing = threading.RLock()
        self.locks: set[FileLock] = set()

    def before_fork(self) -> None:
        self.changing.acquire()

    def after_fork_in_parent(self) -> None:
        self.changing.release()

    def after_fork_in_child(self) -> None:
        for lock in list(self.locks):
            lock.drop()
        self.changing.release()


_OPEN: Final = _OpenLocks()
os.register_at_fork(
    before=_OPEN.before_fork,
    after_in_parent=_OPEN.after_fork_in_parent,
    after_in_child=_OPEN.after_fork_in_child,
)


class FileLock:
    """One lock; ``path`` is its file, which exists while somebody has it.

    Not for several threads at once.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        #: The open file, locked or not; None before the first try, after `remove`, and in a
        #: forked process.
        self._fd: int | None = None
        #: Whether it could be opened for reading only: another user made it.
        self._is_foreign = False

    def try_lock(self) -> bool:
        """Take the lock unless somebody else has it.

        Raises:
          JournalStorageError: the file cannot be made, opened or locked.
        """
        try:
            while True:
                fd = self._opened()
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    return False
                if self._is_at_its_path() and not self._is_made_anew():
                    return True
                self.drop()
        except OSError as error:
            self.drop()
            raise self._fault(error) from error

    def _opened(self) -> int:
        if self._fd is None:
            with _OPEN.changing:
                self._fd, self._is_foreign = self._open()
                _OPEN.locks.add(self)
            found = os.fstat(self._fd)
            if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
                raise OSError(errno.EEXIST, "it is not a file of its own")
        return self._fd

    def _open(self) -> tuple[int, bool]:
        while True:
            try:
                return os.open(self.path, os.O_RDWR | os.O_CREAT | _FLAGS, 0o666), False
            except PermissionError:
                try:
                    # A user who was killed left it behind. flock needs no right to write.
                    return os.open(self.path, os.O_RDONLY | _FLAGS), True
                except FileNotFoundError:  # removed in between, or it cannot be made
                    if os.access(self.path.parent, os.W_OK):
                        continue
                raise

    def _is_made_anew(self) -> bool:
        """Remove what another user left behind, if that is allowed: nobody has the lock."""
        if not self._is_foreign:
            return False
        try:
            self.path.unlink()
        except OSError:  # it stays, and the lock holds
            return False
        return True

    def _fault(self, error: OSError) -> faults.JournalStorageError:
        what = error.strerror or str(error)
        remedy = "see that its directory can be written to"
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            remedy = "make room"
        try:
            found = self.path.lstat()
        except OSError:  # none is there
            pass
        else:
            if stat.S_ISREG(found.st_mode) and found.st_nlink == 1:
                what += f" (it belongs to the user with the id {found.st_uid})"
            else:
                what += " (it is a link, or no regular file)"
            remedy = "when no process uses the journal, remove it"
        return faults.JournalStorageError(f"the lock {self.path}: {what}; {remedy}")

    def lock(self, timeout: float) -> bool:
        """Take the lock; wait at most ``timeout`` seconds for whoever has it."""
        deadline = time.monotonic() + timeout
        while not self.try_lock():
            if time.monotonic() >= deadline:
                return False
            time.sleep(_TRY_AGAIN)
        return True

    def unlock(self) -> None:
        """Give the lock up and keep its file, to take it again soon."""
        if self._fd is not None:
            fcntl.flock(self._fd, fcntl.LOCK_UN)

    def remove(self) -> None:
        """Give the lock up and remove its file; only while it is locked. Never raises."""
        if self._fd is not None:
            try:
                if self._is_at_its_path():
                    self.path.unlink(missing_ok=True)
            except OSError as error:  # it may stay: the lock is what counts
                _log.warning("%s cannot be removed: %s", self.path, error)
            self.drop()

    def remove_if_free(self) -> None:
        """Remove the file of a lock that is not held here, unless another has it. Never raises."""
        if self._fd is not None:
            try:
                if self.try_lock():
                    self.remove()
            except (OSError, faults.JournalStorageError) as error:
                _log.warning("%s cannot be removed: %s", self.path, error)
            self.drop()

    def drop(self) -> None:
        """Close the file. Frees the lock unless a forked process still has it open."""
        with _OPEN.changing:
            fd, self._fd = self._fd, None
            _OPEN.locks.discard(self)
            if fd is not None:
                os.close(fd)

    # --- who has it ---

    def sign(self) -> None:
        """Write down who has the lock, if it can be: the lock holds without."""
        if self._fd is not None and not self._is_foreign:
            since = datetime.now().astimezone().isoformat(timespec="seconds")
            note = {"pid": os.getpid(), "host": os.uname().nodename, "since": since}
            try:
                os.ftruncate(self._fd, 0)
                os.pwrite(self._fd, json.dumps(note).encode(), 0)
            except OSError as error:  # a full disk
                _log.warning("%s cannot be signed: %s", self.path, error)

    def holder(self) -> faults.Holder | None:
        """Who has the lock, as they signed; None when that cannot be read."""
        if self._fd is None:
            return None
        try:
            note: Any = json.loads(os.pread(self._fd, 4096, 0))
            return faults.Holder(int(note["pid"]), _text(note["host"]), _text(note["since"]))
        except (OSError, ValueError, TypeError, KeyError, OverflowError, RecursionError):
            # Not signed yet, or not by us.
            return None

    def _is_at_its_path(self) -> bool:
        assert self._fd is not None
        try:
            there = self.path.stat()
        except FileNotFoundError:
            return False
        mine = os.fstat(self._fd)
        return (there.st_dev, there.st_ino) == (mine.st_dev, mine.st_ino)


def _text(value: object) -> str:
    return str(value).encode("utf-8", "replace").decode()
