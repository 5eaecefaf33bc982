"""`sweep_lines`: SIGINT before every *line* of chosen code.

What may live here: the trace function that counts lines and sends the signal,
and the sweep over them.

A signal may be handled between any two lines. The trace function of a frame is
called before each line, on top of that frame; the handler it triggers
therefore walks the same frames as a real one would, finds the same protection,
and either defers the interrupt or raises it, and then Python raises it in the
traced frame, before the line. (Python handles signals at some places within a
line as well, after a call for instance; those are not reached.)

Positions are lines as they are executed, in all tasks, from the call of ``run``
to its end: a line in a loop is a position each time.
"""

from __future__ import annotations

import os
import pathlib
import random
import sys
from collections.abc import Callable, Iterable
from types import CodeType, FrameType, ModuleType
from typing import Any, Final, TypeAlias

import trio

import trio_runner.testing._determinism as _determinism
import trio_runner.testing._ends as _ends
import trio_runner.testing._faults as _faults
import trio_runner.testing._places as _places
import trio_runner.testing._position as _position
import trio_runner.testing._probe as _probe
from trio_runner.testing._faults import SIGINT, SweepError
from trio_runner.testing._judge import judge
from trio_runner.testing._options import at_least_one, listed, spread
from trio_runner.testing._outcome import Case, Outcome
from trio_runner.testing._probe import LineTracer, Options, Planned, Probe
from trio_runner.testing._report import SweepReport
from trio_runner.testing._surroundings import surroundings
from trio_runner.testing._sweep import Runner

# The engine does not interrupt itself, also when its own package is swept.
_ENGINE_FILES: Final = frozenset(
    str(module.__file__)
    for module in (_determinism, _ends, _faults, _places, _position, _probe, sys.modules[__name__])
)

#: Code to sweep: a module or package, or the path of a file or folder.
Source: TypeAlias = "ModuleType | str | os.PathLike[str]"


def sweep_lines(
    make_case: Callable[[], Case],
    *,
    paths: Iterable[Source],
    seeds: Iterable[int] = (0,),
    restrict_ki: bool = True,
    in_child: bool = False,
    max_positions: int | None = None,
    pairs: int = 0,
    max_failures: int | None = None,
    hang_after: float = 3600.0,
) -> SweepReport:
    """Run a case with SIGINT before each line of some code, and check what is left each time.

    Call it outside trio, in the main thread. A debugger or a coverage tracer is
    switched off while the case runs.

    Args:
      make_case: as for `sweep`.
      paths: whose lines count: packages, modules, files, folders. A coroutine's
        lines count as well as a plain function's.
      seeds: of trio's scheduler.
      restrict_ki: run trio with ``restrict_keyboard_interrupt_to_checkpoints``, as
        `trio_runner.run` does. With False the interrupt is raised at the line
        itself wherever the code is not protected.
      in_child: run the operation in a child of the main task.
      max_positions: at most this many lines per seed, spread over the whole; None: all.
      pairs: so many runs per seed with a second SIGINT, at a later line. Both
        lines are drawn by the seed: the first from the lines of the run without a
        fault, the second from what is executed after the first.
      max_failures: stop after so many failing positions; None: go on.
      hang_after: seconds on the mock clock after which a run counts as hung.

    Raises:
      SweepError: the sweep could not do its work, or no line of ``paths`` was executed.
    """
    sources = _sources(paths)
    wanted = tuple(_prefix(source) for source in sources)
    seed_list = listed("seeds", seeds)
    at_least_one(max_failures=max_failures)
    if pairs < 0:
        raise ValueError(f"pairs is {pairs!r}; expected a number of runs")
    if not pairs or max_positions != 0:  # 0: pairs only
        at_least_one(max_positions=max_positions)
    options = Options(restrict_ki=restrict_ki, hang_after=hang_after, in_child=in_child)
    with surroundings(needs_signal=True) as around:
        words = (f"paths=[{', '.join(map(_written, sources))}]",)
        runner = Runner(make_case, options, around, max_failures, replay_words=words)
        for seed in seed_list:
            tracer = _Tracer(wanted)
            # What is done only once in a process (a cache, an import) is done here.
            runner.run((), seed, tracer=tracer, count=False)
            clean = runner.run_clean(seed, tracer=tracer)
            if clean is None:
                continue
            total = tracer.count
            if total == 0:
                raise SweepError(f"the case executed no line below {wanted}; nothing was swept")
            lines = spread(total, max_positions)
            runner.skipped += total - len(lines)
            for done, line in enumerate(lines):
                if runner.full:
                    runner.skipped += len(lines) - done
                    break
                plan = [Planned(SIGINT, line, "line")]
                runner.run(plan, seed, base=clean, tracer=tracer)
            _sweep_pairs(runner, tracer, seed, clean, total, pairs)
        return runner.report()


def _sweep_pairs(
    runner: Runner, tracer: _Tracer, seed: int, clean: Outcome, total: int, pairs: int
) -> None:
    chooser = random.Random(f"{seed} pairs of lines")  # noqa: S311  # a sample
    for done in range(pairs):
        if runner.full:
            runner.skipped += pairs - done
            return
        first = Planned(SIGINT, chooser.randrange(total), "line")
        # How far the run goes after the first is known only from running it.
        tracer.counts_on = True
        base = runner.run([first], seed, base=clean, tracer=tracer, count=False)
        tracer.counts_on = False
        if tracer.count > first.position + 1:
            line = chooser.randrange(first.position + 1, tracer.count)
            runner.run([first, Planned(SIGINT, line, "line")], seed, base=base, tracer=tracer)
        else:  # nothing of the code runs after it
            runner.skipped += 1


def replay_line(
    make_case: Callable[[], Case],
    *lines: int,
    paths: Iterable[Source],
    seed: int = 0,
    restrict_ki: bool = True,
    in_child: bool = False,
    hang_after: float = 3600.0,
) -> Outcome:
    """Run one position of `sweep_lines`; its ``violations`` hold the check's as well."""
    tracer = _Tracer(tuple(_prefix(source) for source in _sources(paths)))
    options = Options(restrict_ki=restrict_ki, hang_after=hang_after, in_child=in_child)
    with surroundings(needs_signal=True) as around:
        judge(make_case, (), seed, options, around, tracer, keep=False)
        plan = [Planned(SIGINT, line, "line") for line in lines]
        return judge(make_case, plan, seed, options, around, tracer)


def _sources(paths: Iterable[Source]) -> list[Source]:
    """The sources of an option.

    Raises:
      TypeError: it is a single one.
      ValueError: it is empty.
    """
    if isinstance(paths, (str, os.PathLike, ModuleType)):
        one = _written(paths)
        raise TypeError(f"paths is {one}; expected several: [{one}] for that one")
    given = list(paths)
    if not given:
        raise ValueError("paths is empty; expected a package, a module, a file or a folder")
    return given


def _written(source: Source) -> str:
    """A source as it stands in a call."""
    match source:
        case ModuleType():
            return source.__name__
        case _:
            return repr(os.fspath(source))


def _prefix(source: Source) -> str:
    """How the file names of a source begin."""
    match source:
        case ModuleType():
            file = getattr(source, "__file__", None)
            if file is None:
                raise ValueError(f"{source!r} has no file; give the path of its folder")
            path = pathlib.Path(file)
            if hasattr(source, "__path__"):
                path = path.parent
        case _:
            # Not resolved: the file names of code objects keep their symbolic links.
            path = pathlib.Path(source).absolute()
            if not path.exists():
                raise ValueError(f"there is no file or folder {str(path)!r}")
    return f"{path}{os.sep}" if path.is_dir() else str(path)


class _Tracer(LineTracer):
    """Counts the lines of the wanted files while a run is active."""

    def __init__(self, wanted: tuple[str, ...]) -> None:
        #: How many lines the last run executed.
        self.count = 0
        #: Whether lines are counted when there is no further line to interrupt.
        self.counts_on = False
        self._wanted = wanted
        self._is_wanted: dict[CodeType, bool] = {}
        self._probe: Probe | None = None
        #: The line to send SIGINT before, -1 for none.
        self._target = -1
        self._previous: Any = None

    def start(self, probe: Probe) -> None:
        """Count from 0."""
        self.count = 0
        self._probe = probe
        self._target = probe.next_line()
        self._previous = sys.gettrace()
        sys.settrace(self._on_call)

    def stop(self) -> None:
        """Put the tracer of before back. Python may have removed this one: it raised."""
        sys.setprofile(None)
        sys.settrace(self._previous)
        self._probe = None

    def _on_call(self, frame: FrameType, _event: str, _arg: object) -> Any:
        code = frame.f_code
        wanted = self._is_wanted.get(code)
        if wanted is None:
            file = code.co_filename
            wanted = file.startswith(self._wanted) and file not in _ENGINE_FILES
            self._is_wanted[code] = wanted
        return self._on_event if wanted else None

    def _on_event(self, frame: FrameType, event: str, _arg: object) -> Any:
        if event == "line":
            line = self.count
            self.count = line + 1
            if line == self._target:
                self._send(frame)
        return self._on_event

    def _send(self, frame: FrameType) -> None:
        probe = self._probe
        if probe is None:  # a frame that outlived the run
            return
        code = frame.f_code
        task = trio.lowlevel.current_task()
        try:
            probe.fire(task.name, f"{code.co_filename}:{frame.f_lineno} in {code.co_qualname}")
        except KeyboardInterrupt:
            # Into the traced frame: it was not protected. Python stops tracing for that.
            if self._goes_on(probe):
                sys.setprofile(self._trace_again)
            raise
        except BaseException as exc:
            probe.errors.append(exc)
            raise
        finally:
            self._target = probe.next_line()
        if not self._goes_on(probe):
            # From here on tracing would only cost time.
            sys.settrace(None)

    def _goes_on(self, probe: Probe) -> bool:
        return self.counts_on or probe.next_line() >= 0

    def _trace_again(self, frame: FrameType, _event: str, _arg: object) -> None:
        """Trace again from the first call or return after the interrupt was raised."""
        sys.setprofile(None)
        sys.settrace(self._on_call)
        on_the_stack: FrameType | None = frame
        while on_the_stack is not None:
            if self._is_wanted.get(on_the_stack.f_code):
                on_the_stack.f_trace = self._on_event
            on_the_stack = on_the_stack.f_back
