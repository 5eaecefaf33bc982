"""`groups`: which calls of a batch run side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from trio_runner._shell.loop_agent import Planned


def groups(waiting: Sequence[Planned], *, parallel: bool) -> Iterator[Sequence[Planned]]:
    """Cut the calls at the barriers: what runs side by side, one group after the other."""
    together: list[Planned] = []
    for planned in waiting:
        tool = planned.tool
        if not parallel or (tool is not None and tool.sequential):
            if together:
                yield together
                together = []
            yield [planned]
        else:
            together.append(planned)
    if together:
        yield together
