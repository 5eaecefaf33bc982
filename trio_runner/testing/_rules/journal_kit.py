"""What the rules of `check_journal` share: the kit, and looks that several rules take.

Journals are ``Any`` in the rules: what they promise is just what is in doubt.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import attrs
import trio
import trio.testing

from trio_runner.testing._conformance import Findings
from trio_runner.testing._rules.odd_records import difference
from trio_runner.testing._stages import Stage
from trio_runner.testing._trials import Span, Trial, check_run, with_made

#: Use of a journal inside one trio run.
Body = Callable[[Any], Awaitable[object]]

SESSION: Final = "kit"


@attrs.frozen
class JournalKit:
    """What the rules of `check_journal` work with; its arguments say what the fields are."""

    stage: Stage
    make: Callable[[], Any]
    reopen: Callable[[Any], Any] | None
    make_failing: Callable[[], Any] | None
    leaves_within: float

    def use(
        self, found: Findings, doing: str, body: Body, make: Callable[[], Any] | None = None
    ) -> None:
        """Run ``body`` with a new journal, undisturbed."""

        def make_trial() -> Trial:
            return Trial(
                lambda: with_made(make or self.make, body),
                lambda ending: check_run(ending, found, doing),
            )

        self.stage.once(make_trial)

    async def restarted(self, journal: Any) -> Any:
        """The journal as a new process would find it."""
        if self.reopen is None:
            return journal
        made = self.reopen(journal)
        return await made if inspect.isawaitable(made) else made

    async def stored(self, journal: Any, session_id: str = SESSION) -> Sequence[Any]:
        """What a session holds that nobody has open, after a restart."""
        session = await (await self.restarted(journal)).open(session_id)
        try:
            return tuple(session.records)
        finally:
            await session.aclose()


async def is_checkpoint(operation: Callable[[], Awaitable[object]]) -> bool:
    """Whether ``operation`` is a checkpoint; what it raises goes on."""
    span = Span()
    try:
        with trio.testing.assert_checkpoints():
            await span.over(operation)
    except AssertionError:
        if span.raised is not None:
            raise
        return False
    return True


def done_flags(tickets: list[Any]) -> list[bool]:
    # The last one first: what lands while we look can then not look like disorder.
    return [ticket.done for ticket in reversed(tickets)][::-1]


def check_same(found: Findings, expected: Sequence[Any], records: Sequence[Any], when: str) -> None:
    problem = difference(tuple(expected), tuple(records), "records")
    if problem is not None:
        found.violated(
            f"{when}: {problem}",
            expected="the records as they were appended, in value, type and order",
            remedy="store each record, in the order of the appends, and encode it without loss; "
            "a number may have more than 64 bits",
        )


def check_prefix(
    found: Findings, appended: Sequence[Any], stored: Sequence[Any], acknowledged: int
) -> None:
    """Note when ``stored`` is no prefix of what was appended, or lacks what was acknowledged."""
    problem = difference(tuple(appended[: len(stored)]), tuple(stored), "records")
    if problem is not None:
        found.violated(
            f"after a fault the stored {problem}",
            expected="a prefix of what was appended",
            remedy="commit in the order of the appends, each once",
        )
    elif len(stored) < acknowledged:
        found.violated(
            f"{acknowledged} records were acknowledged and {len(stored)} are stored",
            expected="what a ticket called done without an error to be stored",
            remedy="set done only when the store has confirmed the commit",
        )
