"""Whether an open file is still the one at its path, and so is the WAL beside it.

What may live here: the look at both, and what to say when they are not. It is needed
since SQLite writes into a file that was removed, and says that all is well. That happens
without anybody's fault: SQLite's locks are those of POSIX, which a process loses for a
file when any part of it opens and closes that file. Then the next process that closes
the journal believes itself the last one, and takes the WAL away.
"""

from __future__ import annotations

import os
from typing import Final, TypeAlias

import trio_runner._journal.faults as faults

_Identity: TypeAlias = tuple[int, int]
#: Device, number and count of names of a file; zeros: there is none.
_Found: TypeAlias = tuple[int, int, int]

_REMEDY: Final = (
    "What it acknowledged before was in the file then; nothing more is acknowledged. End this "
    "process, and open the session in a new one. Leave the files of an open journal alone: do not "
    "move, remove or replace them, and do not open them in a process that has the journal open"
)


class Place:
    """The file at ``path`` and its WAL, as this process opened them."""

    def __init__(self, path: str) -> None:
        self._paths = (path, f"{path}-wal")
        #: Device and number of both files; None before `note`.
        self._noted: tuple[_Identity, _Identity] | None = None
        #: Why the file must not be written any more: set for good.
        self.lost: faults.JournalStorageError | None = None

    def note(self) -> None:
        """Both are open from here on; the caller has the write lock."""
        file, wal = self._look()
        self._noted = file[:2], wal[:2]

    def check_before(self) -> None:
        """Look before something is written.

        Raises:
          JournalStorageError: one of the files was moved, removed or replaced; or the file has
            several names, and could be open by another one, with another WAL.
        """
        names = self._checked()
        if names > 1:
            raise faults.JournalStorageError(
                f"{self._paths[0]} has {names} names (hard links); a journal that is open by two "
                "of them loses what it was told. Remove the other names, or copy the file instead"
            )

    def check_after(self) -> None:
        """Look after something was written, and before anybody hears that it is durable.

        Raises:
          JournalStorageError: one of the files was moved, removed or replaced.
        """
        self._checked()

    def _checked(self) -> int:
        """How many names the file has."""
        found = self._look()
        if self.lost is None and self._noted is not None:
            for path, one, noted in zip(self._paths, found, self._noted, strict=True):
                if one[:2] != noted:
                    self.lost = faults.JournalStorageError(
                        f"{path} was moved, removed or replaced while this process had it open. "
                        + _REMEDY
                    )
                    break
        if self.lost is not None:
            raise faults.JournalStorageError(str(self.lost))
        return found[0][2]

    def _look(self) -> tuple[_Found, _Found]:
        file, wal = self._paths
        return _stat(file), _stat(wal)


def _stat(path: str) -> _Found:
    try:
        found = os.stat(path)  # noqa: PTH116  each transaction waits for it
    except FileNotFoundError:
        return 0, 0, 0
    return found.st_dev, found.st_ino, found.st_nlink
