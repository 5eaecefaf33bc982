"""What can be wrong with a journal on disk, sorted by whose fault it is.

What may live here: subclasses of `trio_runner.JournalError` and the small
values that they carry. Nothing here looks at a file.
"""

from __future__ import annotations

import attrs

import trio_runner._core.errors as errors


@attrs.frozen
class Holder:
    """Who has a session open for writing.

    Attributes:
      pid: its process id on its host.
      host: the name of the machine.
      since: when it opened the session, as ISO 8601 text with the time zone.
    """

    pid: int
    host: str
    since: str

    def __str__(self) -> str:
        """In words, for a message."""
        return f"process {self.pid} on {self.host!r} since {self.since}"


class SessionInUseError(errors.JournalError):
    """Somebody else has the session open for writing; nothing was changed.

    Attributes:
      holder: who; None when that could not be read.
    """

    def __init__(self, message: str, holder: Holder | None = None) -> None:
        super().__init__(message)
        self.holder: Holder | None = holder


class SessionIdError(errors.JournalError, ValueError):
    """The id is not one that a new session may have; nothing was changed."""


class NoSuchSessionError(errors.JournalError):
    """The journal has no session of that id, or the session no such turn."""


class SessionExistsError(errors.JournalError):
    """The new session's id is that of a session that holds records; nothing was changed."""


class JournalDamagedError(errors.JournalError):
    """The file holds a record that cannot be what was written; it is not opened.

    Attributes:
      where: the place, such as ``session 's-1', record 12 (row 345)``.
    """

    def __init__(self, message: str, where: str) -> None:
        super().__init__(message)
        self.where: str = where


class JournalFormatError(errors.JournalError):
    """The file is not a journal, or was written by a newer version of the library."""


class JournalStorageError(errors.JournalError):
    """The system refused to read or write: no directory, no permission, no room, a bad disk."""
