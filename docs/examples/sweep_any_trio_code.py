"""Any trio code, swept: no agent, no tool, nothing of this library in what is tested."""

from collections.abc import Iterator

import trio

from trio_runner.testing import Case, Outcome, sweep


class Box:
    """Hands one thing over; somebody must have it at the end."""

    def __init__(self) -> None:
        self.things = ["ring"]
        self.taken: list[str] = []
        self.lock = trio.Lock()

    async def take(self) -> None:
        async with self.lock:
            thing = self.things.pop()
            try:
                await trio.sleep(1)  # wrapping it up
            except BaseException:
                self.things.append(thing)
                raise
            self.taken.append(thing)


def make_case() -> Case:
    box = Box()

    def check(_: Outcome) -> Iterator[str]:
        if len(box.things) + len(box.taken) != 1:
            yield f"in the box: {box.things}, taken: {box.taken}"
        if box.lock.locked():
            yield "the lock is held by nobody"

    # It may end just before a cancel would be seen: releasing a lock is no checkpoint.
    return Case(run=box.take, check=check, raises_cancel=False)


if __name__ == "__main__":
    report = sweep(make_case, pairs=[("cancel", "sigint")])
    report.raise_if_failed()
    print(report.render())
