"""Advisory locks between processes, each an flock on a small file of its own.

What may live here: taking, giving up and reading such a lock. The kernel frees
it when its process ends, however it ends. A lock's file is removed when it is
given up, so whoever has locked a file looks whether it is still the one at its
path: if not, somebody removed it in between and the lock means nothing.

POSIX only, and only as good as the file system: some network file systems do
not carry flock from one machine to another.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import time
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import trio_runner._journal.faults as faults

_log = logging.getLogger("trio_runner")

#: Seconds between two tries to get a lock that somebody else has.
_TRY_AGAIN: Final = 0.002


class FileLock:
    """One lock; ``path`` is its file, which exists while somebody has it.

    Not for several threads at once.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        #: The open file, locked or not; None before the first try and after `remove`.
        self._fd: int | None = None

    def try_lock(self) -> bool:
        """Take the lock unless somebody else has it.

        Raises:
          OSError: the file cannot be made or opened.
        """
        while True:
            if self._fd is None:
                self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            if self._is_at_its_path():
                return True
            self.drop()

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
            except OSError as error:
                _log.warning("%s cannot be removed: %s", self.path, error)
            self.drop()

    def drop(self) -> None:
        """Close the file. Frees the lock unless a forked process still has it open."""
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)

    # --- who has it ---

    def sign(self) -> None:
        """Write down who has the lock, if it can be: the lock holds without."""
        if self._fd is not None:
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
            return faults.Holder(int(note["pid"]), str(note["host"]), str(note["since"]))
        except (OSError, ValueError, TypeError, KeyError):  # not signed yet, or not by us
            return None

    def _is_at_its_path(self) -> bool:
        assert self._fd is not None
        try:
            there = self.path.stat()
        except FileNotFoundError:
            return False
        mine = os.fstat(self._fd)
        return (there.st_dev, there.st_ino) == (mine.st_dev, mine.st_ino)
