"""`Helper`: the parent's end of the process that forks for each life of a kill sweep.

What may live here: starting the helper, handing it jobs, reading what its
children tell, and killing them at a moment of the clock.
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import math
import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Final, Self, TypeAlias

import attrs

from trio_runner.testing._kill_child import Job, load, serve
from trio_runner.testing._kill_judge import Life, Line, Stored
from trio_runner.testing._kill_site import KillSite, MakeJournal

#: A function, or its name: ``package.module:name`` or ``path/to/file.py:name``.
JournalTarget: TypeAlias = "MakeJournal | str"
WorkloadTarget: TypeAlias = "Callable[[KillSite], Awaitable[object]] | str"

_HELPER: Final = (
    "import json, sys; argument = sys.argv[1]; sys.path[:] = json.loads(argument)['path']; "
    "from trio_runner.testing._kill_child import main; main(argument)"
)
_KEPT_OUTPUT: Final = 4000  # bytes of what a process printed


class KillSweepError(RuntimeError):
    """The sweep itself cannot run: wrong platform, or what is to be killed cannot be loaded."""


def as_name(target: object) -> str | None:
    """The name under which a fresh process can import ``target``; None when there is none."""
    if isinstance(target, str):
        return target
    module, name = getattr(target, "__module__", None), getattr(target, "__qualname__", None)
    # The script itself is nobody else's to import, and a test module may be on no path.
    if not isinstance(module, str) or not isinstance(name, str) or module == "__main__":
        return None
    try:
        found = functools.reduce(getattr, name.split("."), sys.modules[module])
    except (KeyError, AttributeError):
        return None
    return f"{module}:{name}" if found is target and _is_on_the_path(module) else None


def _is_on_the_path(module: str) -> bool:
    path = module.replace(".", "/")
    ends = (f"{path}.py", f"{path}/__init__.py")
    return any((Path(folder) / end).exists() for folder in sys.path for end in ends)


class Helper:
    """The helper process; use it in ``with``.

    Raises:
      KillSweepError: on entering, when it cannot run here or cannot load the functions.
    """

    def __init__(self, journal: JournalTarget, workload: WorkloadTarget) -> None:
        self._journal = journal
        self._workload = workload
        #: Modules that it shall import before the next life.
        self.preload: Sequence[str] = ()
        #: Ours to the helper; it ends the helper when it is closed.
        self._channel: socket.socket
        #: What the helper says, line by line.
        self._answers: BinaryIO
        #: Waits until the helper is gone.
        self._join: Callable[[], object]

    def __enter__(self) -> Self:
        """Start it, and wait until it has imported everything."""
        if sys.platform == "win32" or not hasattr(os, "fork"):
            raise KillSweepError(
                f"a kill sweep needs fork and SIGKILL, which {sys.platform} does not have; "
                "run it on Linux or macOS"
            )
        names = as_name(self._journal), as_name(self._workload)
        if None in names:
            self._require_one_thread()
        self._channel, theirs = socket.socketpair()
        self._answers = self._channel.makefile("rb")
        with theirs:
            if None in names:
                self._fork(theirs)
            else:
                self._start(theirs, *names)
        ready = False
        try:
            error = self._answer().get("error")
            ready = error is None
        finally:
            if not ready:
                self._close()
        if error is not None:
            raise KillSweepError(f"what is to be killed could not be loaded:\n{error}")
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End it."""
        self._close()

    def _close(self) -> None:
        self._answers.close()
        self._channel.close()
        self._join()

    def _start(self, theirs: socket.socket, journal: str | None, workload: str | None) -> None:
        config = {
            "socket": theirs.fileno(),
            "path": sys.path,
            "journal": journal,
            "workload": workload,
        }
        options = [word for option in sys.warnoptions for word in ("-W", option)]
        process = subprocess.Popen(  # noqa: S603  our own interpreter and code
            [sys.executable, *options, "-c", _HELPER, json.dumps(config)],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
        )
        self._join = process.wait

    def _require_one_thread(self) -> None:
        threads = threading.active_count()
        if threads > 1:
            raise KillSweepError(
                f"this process has {threads} threads and cannot be forked, and a fresh process "
                f"could not import {self._journal!r} and {self._workload!r}; give both by name "
                "('package.module:name' or 'path/to/file.py:name')"
            )

    def _fork(self, theirs: socket.socket) -> None:
        """Be forked, for functions that only this process has."""
        make_journal = load(self._journal) if isinstance(self._journal, str) else self._journal
        workload = load(self._workload) if isinstance(self._workload, str) else self._workload
        pid = os.fork()
        if pid == 0:
            try:
                self._answers.close()  # it holds the channel open too
                self._channel.close()
                serve(theirs, make_journal, workload)
                os._exit(0)
            finally:
                os._exit(1)
        self._join = functools.partial(os.waitpid, pid, 0)

    def _answer(self) -> dict[str, Any]:
        with contextlib.suppress(ConnectionError):
            answer = self._answers.readline()
            if answer:
                return json.loads(answer)
        raise KillSweepError("the helper process of the kill sweep ended by itself")

    def live(self, job: Job, moment: float | None, timeout: float) -> Life:
        """Have one life lived, and killed ``moment`` seconds after it began to run.

        Returns:
          The life; what is stored after it is for the next process to say.
        """
        with contextlib.ExitStack() as stack:
            told, told_end = _pipe(stack)
            printed, printed_end = _pipe(stack)
            preload, self.preload = self.preload, ()
            request = json.dumps({**attrs.asdict(job), "preload": preload}).encode() + b"\n"
            socket.send_fds(self._channel, [request], [told_end.fileno(), printed_end.fileno()])
            pid = self._answer()["pid"]
            # Now only the child can write, so that the end of what it tells is its death.
            told_end.close()
            printed_end.close()
            watch = _Watch(pid, told.fileno(), printed.fileno())
            watch.until_it_is_dead(moment, timeout)
        self._channel.sendall(b"r")  # it will not be killed any more: let go of its number
        status = self._answer()["status"]
        return Life(
            kill=None,
            lines=watch.lines,
            stored=Stored(),
            end=_end(watch, status, planned=job.kill is not None or moment is not None),
            output=watch.output[-_KEPT_OUTPUT:].decode("utf-8", "replace"),
            seconds=watch.seconds,
        )


def _pipe(stack: contextlib.ExitStack) -> tuple[io.FileIO, io.FileIO]:
    reading, writing = os.pipe()
    return stack.enter_context(io.FileIO(reading)), stack.enter_context(io.FileIO(writing, "w"))


class _Watch:
    """Reads what one child tells and prints until it is dead; kills it when its time has come."""

    def __init__(self, pid: int, told: int, printed: int) -> None:
        self._pid = pid
        self._told = told
        self._printed = printed
        #: Of the line that has not come whole yet; what a kill cut off stays here.
        self._buffer = b""
        #: When the child began to run, and when it was killed from here.
        self._began = math.inf
        self._killed = math.inf
        #: What it told.
        self.lines: list[Line] = []
        #: What it printed.
        self.output: bytes = b""
        #: Whether it took too long.
        self.hung: bool = False
        #: From when it began to run to its end.
        self.seconds: float = 0.0

    def until_it_is_dead(self, moment: float | None, timeout: float) -> None:
        """Watch; kill it ``moment`` seconds after it began to run, or after ``timeout``."""
        limit = time.monotonic() + timeout
        with selectors.DefaultSelector() as selector:
            selector.register(self._told, selectors.EVENT_READ)
            selector.register(self._printed, selectors.EVENT_READ)
            while True:
                # After the kill only what is in the pipe still comes, unless a process that the
                # child had forked holds its end.
                due = min(limit, self._began + (math.inf if moment is None else moment))
                due = due if self._killed == math.inf else self._killed + 1.0
                ready = {key.fd for key, _ in selector.select(max(0.0, due - time.monotonic()))}
                if self._printed in ready and not self._read_output():
                    selector.unregister(self._printed)
                if self._told in ready and not self._read_lines():
                    break
                now = time.monotonic()
                if now < due:
                    continue
                if self._killed < math.inf:
                    break
                os.kill(self._pid, signal.SIGKILL)
                self._killed, self.hung = now, now >= limit
        if self._began < math.inf:
            self.seconds = time.monotonic() - self._began

    def _read_output(self) -> bool:
        chunk = os.read(self._printed, 65536)
        self.output += chunk
        return bool(chunk)

    def _read_lines(self) -> bool:
        chunk = os.read(self._told, 65536)
        *whole, self._buffer = (self._buffer + chunk).split(b"\n")
        for text in whole:
            line: Line = json.loads(text)
            self.lines.append(line)
            if line["what"] == "running":
                self._began = time.monotonic()
        return bool(chunk)


def _end(watch: _Watch, status: int, *, planned: bool) -> str:
    """How a life ended, in the words of `Life`."""
    if watch.hung:
        return "hung"
    if os.WIFSIGNALED(status):
        name = signal.Signals(os.WTERMSIG(status)).name
        return "killed" if planned and name in {"SIGKILL", "SIGXFSZ"} else f"it died of {name}"
    last = watch.lines[-1] if watch.lines else {"what": "nothing"}
    if last["what"] in {"finished", "stored"} and not status:
        return "finished"
    if last["what"] == "broke":
        return f"the workload raised {last['error']}"
    return f"exit status {os.waitstatus_to_exitcode(status)}"
