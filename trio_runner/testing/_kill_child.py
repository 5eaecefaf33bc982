"""The helper process of a kill sweep: it imports everything once and forks for each life.

What may live here: what runs in the helper (`serve`) and in its children, up
to where the workload takes over. Nothing here judges.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import importlib.util
import json
import os
import random
import signal
import socket
import sys
import traceback
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeAlias, cast

import attrs
import trio

from trio_runner.testing._kill_report import KillPoint
from trio_runner.testing._kill_site import KillSite, Ledger, MakeJournal, look

if sys.platform != "win32":
    import resource

Workload: TypeAlias = Callable[[KillSite], Awaitable[object]]


@attrs.frozen
class Job:
    """One life, as the parent orders it.

    Attributes:
      folder: of this session.
      life: how many processes were killed before.
      look: say what is stored, before anything else.
      run: run the workload.
      kill: the text of the `KillPoint` at which to die; None: at none of its own.
      seed: of the `random` module.
      timeout: seconds for looking.
    """

    folder: str
    life: int
    look: bool
    run: bool
    kill: str | None
    seed: int
    timeout: float


# --- the helper -----------------------------------------------------------------


def main(argument: str) -> None:
    """Be the helper process: import what is to be killed, then serve."""
    config = json.loads(argument)
    with socket.socket(fileno=config["socket"]) as channel:
        try:
            make_journal: MakeJournal = load(config["journal"])
            workload: Workload = load(config["workload"])
        except Exception:  # noqa: BLE001  what a user's module raises is the parent's to show
            channel.sendall(json.dumps({"error": traceback.format_exc()}).encode() + b"\n")
            return
        serve(channel, make_journal, workload)


def load(target: str) -> Any:
    """Import ``module:name`` or ``path/to/file.py:name``; the name may have dots."""
    where, _, name = target.rpartition(":")
    if where.endswith(".py"):
        module_name = f"_killed_{Path(where).stem}"
        if module_name not in sys.modules:
            spec = importlib.util.spec_from_file_location(module_name, where)
            assert spec is not None
            assert spec.loader is not None
            module = sys.modules[module_name] = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
        module = sys.modules[module_name]
    else:
        module = importlib.import_module(where)
    return functools.reduce(getattr, name.split("."), cast("Any", module))


def serve(channel: socket.socket, make_journal: MakeJournal, workload: Workload) -> None:
    """Fork for each job that comes, until the parent closes the channel."""
    channel.sendall(b"{}\n")
    while True:
        request, fds, _, _ = socket.recv_fds(channel, 65536, 2)
        while request and not request.endswith(b"\n"):
            request += channel.recv(65536)
        if not request:
            return
        order = json.loads(request)
        _preload(order.pop("preload"))
        job = Job(**order)
        pid = os.fork()
        if pid == 0:
            _be_a_child(channel, job, make_journal, workload, fds[0], fds[1])
        for fd in fds:
            os.close(fd)
        channel.sendall(json.dumps({"pid": pid}).encode() + b"\n")
        # The child is kept as a zombie, so that its number stays its own, until the parent
        # has seen its end and will not kill it any more.
        parent_lives = channel.recv(1)
        if not parent_lives:
            os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        if not parent_lives:
            return
        channel.sendall(json.dumps({"status": status}).encode() + b"\n")


def _preload(modules: Sequence[str]) -> None:
    for name in modules:
        if name not in sys.modules:
            with contextlib.suppress(ImportError):  # made by hand: the children make it again
                importlib.import_module(name)
    gc.collect()
    gc.freeze()  # what is there now stays shared with the children


# --- a child --------------------------------------------------------------------


def _be_a_child(
    channel: socket.socket,
    job: Job,
    make_journal: MakeJournal,
    workload: Workload,
    told: int,
    printed: int,
) -> NoReturn:
    """Live one life; nothing of the helper's runs after it."""
    try:
        channel.close()
        os.set_inheritable(told, False)  # its end is how the parent knows that we are dead
        os.dup2(printed, 1)
        os.dup2(printed, 2)
        os.close(printed)
        random.seed(job.seed)
        kill = KillPoint.parse(job.kill) if job.kill is not None else None
        write = functools.partial(_write_all, told)
        if job.look and not _look(job, make_journal, Ledger(write)):
            return os._exit(0)
        if job.run:
            _live(job, kill, make_journal, workload, Ledger(write, kill))
        os._exit(0)
    except Exception:  # noqa: BLE001  this process ends here, and its parent is told why
        traceback.print_exc()
    finally:
        os._exit(1)


def _write_all(fd: int, line: bytes) -> None:
    while line:
        line = line[os.write(fd, line) :]


def _look(job: Job, make_journal: MakeJournal, ledger: Ledger) -> bool:
    try:
        facts = trio.run(look, make_journal, Path(job.folder) / "journal", job.timeout)
    except Exception as error:  # noqa: BLE001  a session that does not open is what is looked for
        text = "".join(traceback.format_exception_only(error)).strip()
        ledger.tell("stored", error=f"{text} ({type(error).__name__})")
        return False
    ledger.tell("stored", **facts)
    return True


def _live(
    job: Job,
    kill: KillPoint | None,
    make_journal: MakeJournal,
    workload: Workload,
    ledger: Ledger,
) -> None:
    if kill is not None and kill.mode == "byte":
        _die_beyond(int(kill.number))
    known = set(sys.modules)
    ledger.tell("running")
    try:
        trio.run(_run, job, make_journal, workload, ledger)
    except Exception as error:  # noqa: BLE001  the end of a life is told, whatever it is
        traceback.print_exc()
        ledger.tell("broke", error=f"{type(error).__name__}: {error}")
        return
    passed = [[name, when, count] for (name, when), count in ledger.passed.items()]
    ledger.tell("finished", passed=passed, modules=sorted(set(sys.modules) - known))


async def _run(job: Job, make_journal: MakeJournal, workload: Workload, ledger: Ledger) -> None:
    await workload(KillSite(Path(job.folder), job.life, make_journal, ledger))


def _die_beyond(size: int) -> None:
    """Let the kernel kill this process in the write that takes a file beyond ``size`` bytes.

    The part of that write up to ``size`` is stored, the rest is not: a torn write, at a byte of
    our choice, whoever writes (SQLite and other libraries that are not Python included).
    """
    if sys.platform != "win32":
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # Python ignores it
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
