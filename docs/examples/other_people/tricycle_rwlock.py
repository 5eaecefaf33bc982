"""A writer gives up waiting for a lock; a reader behind it must not go on waiting for it."""

from importlib.metadata import version

import tricycle
import trio
import trio.testing

from trio_runner.testing import Case, Outcome, sweep


def make_case() -> Case:
    lock = tricycle.RWLock()
    went: list[float] = []
    late: list[float] = []

    async def read(
        seconds: int, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        # The readers are shielded: what is cancelled is the writer.
        with trio.CancelScope(shield=True):
            began = trio.current_time()
            async with lock.read_locked():
                late.append(trio.current_time() - max([began, *went]))
                task_status.started()
                for _ in range(seconds):
                    await trio.sleep(1)

    async def write() -> None:
        try:
            async with lock.write_locked():
                await trio.sleep(1)
        finally:
            went.append(trio.current_time())

    async def run() -> None:
        async with trio.open_nursery() as nursery:
            await nursery.start(read, 10)
            nursery.start_soon(write)
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(read, 0)

    def check(_: Outcome) -> list[str]:
        if max(late, default=0) > 0:
            return ["a reader waited, though no writer held the lock or wanted it any more"]
        return []

    return Case(run, check, afterwards=lock.acquire_write, raises_cancel=False)


if __name__ == "__main__":
    reports = {"tricycle": sweep(make_case, seeds=range(2))}
    for name, report in reports.items():
        print(name, version(name), report.render(), sep="\n")
