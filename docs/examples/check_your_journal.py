"""Check your own journal: this one is wrong in three places, and the kit says where."""

from collections.abc import Sequence

import trio

from trio_runner.records import Record
from trio_runner.testing import check_journal


class Ticket:
    """A commit that is durable at once."""

    done, error = True, None

    async def wait(self) -> None:
        pass  # wrong: no checkpoint, so a loop of waits cannot be cancelled


class Session:
    def __init__(self, stored: list[Record]) -> None:
        self.stored = stored

    @property
    def records(self) -> Sequence[Record]:
        return self.stored  # wrong: the caller's list grows with each append

    def append(self, records: Sequence[Record]) -> Ticket:
        self.stored.extend(records)
        return Ticket()

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


class DictJournal:
    def __init__(self) -> None:
        self.sessions: dict[str, list[Record]] = {}

    async def open(self, session_id: str) -> Session:
        await trio.lowlevel.checkpoint()
        return Session(self.sessions.setdefault(session_id, []))  # wrong: twice at once


if __name__ == "__main__":
    rules = ["wait_is_a_checkpoint", "records_does_not_grow", "one_writer_at_a_time"]
    print(check_journal(DictJournal, rules=rules).render())
