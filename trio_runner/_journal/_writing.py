"""What is held while a journal's file is written.

What may live here: the order of the write lock, the look at the file's place and the
transaction; how each is given up, and how what goes wrong becomes a `JournalError`.
"""

from __future__ import annotations

import logging
import sqlite3

import trio_runner._journal._connect as connect
import trio_runner._journal.faults as faults
from trio_runner._journal._lease import FileLock
from trio_runner._journal._place import Place

_log = logging.getLogger("trio_runner")


class Writing:
    """Holds the write lock; turns what the system says into a `JournalError`, rolled back.

    Args:
      begin: whether to begin a transaction.
    """

    def __init__(
        self,
        connection: sqlite3.Connection,
        lock: FileLock | None,
        place: Place | None,
        path: str,
        *,
        begin: bool,
    ) -> None:
        self._connection = connection
        self._lock = lock
        self._place = place
        self._path = path
        self._begin = begin

    def __enter__(self) -> None:
        self._take_lock()
        try:
            with connect.Faults(self._path):
                if self._place is not None:
                    self._place.check_before()
                if self._begin:
                    self._connection.execute("BEGIN IMMEDIATE")
        except BaseException:
            self._give_up_lock()
            raise

    def _take_lock(self) -> None:
        if self._lock is not None:
            with connect.Faults(self._path):
                locked = self._lock.lock(connect.BUSY_TIMEOUT)
            if not locked:
                raise faults.JournalStorageError(
                    f"{self._path}: another process has been writing for "
                    f"{connect.BUSY_TIMEOUT:g} s; look for one that hangs or was stopped"
                )

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        try:
            if error is not None:
                _roll_back(self._connection)
        finally:
            self._give_up_lock()
        match error:
            case sqlite3.Error() | OSError():
                raise connect.fault_of(error, self._path) from error
            case _:
                pass

    def _give_up_lock(self) -> None:
        if self._lock is not None:
            self._lock.unlock()


def _roll_back(connection: sqlite3.Connection) -> None:
    try:
        if connection.in_transaction:  # some failures roll back by themselves
            connection.execute("ROLLBACK")
    except sqlite3.Error as error:
        _log.warning("rolling back: %s", error)
