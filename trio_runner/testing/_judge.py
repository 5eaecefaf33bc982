"""One position from the making of its case to the last thing that it left behind.

What may live here: the life of a case, and what is found wrong in the course of it.
How a position is run is `_position.py`.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence

import attrs

from trio_runner.testing._faults import FAULTS
from trio_runner.testing._options import as_case
from trio_runner.testing._outcome import (
    Case,
    Outcome,
    afterwards_violations,
    chain_of,
    sentences,
    standard_violations,
)
from trio_runner.testing._position import run_position
from trio_runner.testing._probe import LineTracer, Options, Planned
from trio_runner.testing._surroundings import Surroundings, let_go


def judge(
    make_case: Callable[[], Case],
    plan: Sequence[Planned],
    seed: int,
    options: Options,
    around: Surroundings,
    tracer: LineTracer | None = None,
    *,
    look: Callable[[Case, Outcome], None] = lambda _case, _outcome: None,
    keep: bool = True,
) -> Outcome:
    """Run a position, and add what the engine and the case's check find wrong with it.

    The case is gone when it returns, so what only then is found open or never
    awaited is told with the position that it comes from.

    Args:
      look: looks at the outcome while the case is still there.
      keep: keep in the outcome what was returned and raised.

    Raises:
      SweepError: the engine could not do its work.
    """

    def once(*, collect_first: bool) -> tuple[Outcome, tuple[str, ...]]:
        outcome = _judged(
            make_case, plan, seed, options, around, tracer, look, collect_first=collect_first
        )
        if not keep:
            outcome = attrs.evolve(
                outcome, raised=None, value=None, afterwards_raised=None, planned=()
            )
        gc.collect()
        # What trio had to drop was taken apart with much noise.
        late = () if outcome.broken is not None else around.trouble[len(outcome.trouble) :]
        return outcome, tuple(late)

    outcome, late = once(collect_first=False)
    if late:
        # Again, and this time so that the case's check can see it.
        outcome, late = once(collect_first=True)
    return attrs.evolve(
        outcome,
        trouble=(*outcome.trouble, *late),
        violations=(*outcome.violations, *late),
    )


def _judged(
    make_case: Callable[[], Case],
    plan: Sequence[Planned],
    seed: int,
    options: Options,
    around: Surroundings,
    tracer: LineTracer | None,
    look: Callable[[Case, Outcome], None],
    *,
    collect_first: bool,
) -> Outcome:
    case = as_case(make_case())
    outcome = run_position(case, plan, seed, options, around, tracer)
    if outcome.left_behind:
        # A pool, or a helper process, that was made for the whole process is not made twice.
        case = as_case(make_case())
        outcome = run_position(case, plan, seed, options, around, tracer)
    let_go((outcome.broken, outcome.raised, outcome.afterwards_raised))
    if outcome.broken is not None:
        # The tasks that trio had to drop are taken apart here, with much noise, and not
        # in somebody else's hands. Their tracebacks would keep them alive.
        for broken in (outcome.broken, outcome.raised, outcome.afterwards_raised):
            for exc in chain_of(broken):
                exc.__traceback__ = None
    if collect_first or outcome.broken is not None:
        gc.collect()
    if outcome.broken is None:
        outcome = attrs.evolve(outcome, trouble=tuple(around.trouble))
    wrong = [
        *(standard_violations(case, outcome) if case.judge else ()),
        *afterwards_violations(outcome),
    ]
    outcome = attrs.evolve(outcome, violations=tuple(wrong))
    try:
        wrong += sentences(case.check(outcome))
    except AssertionError as exc:
        wrong.append(f"check failed: {exc}")
    except Exception as exc:
        exc.add_note(f"raised by the case's check after {replay_text(plan, seed, options)}")
        raise
    look(case, outcome)
    return attrs.evolve(outcome, violations=tuple(wrong))


def replay_text(
    plan: Sequence[Planned], seed: int, options: Options, more_words: Sequence[str] = ()
) -> str:
    """The line of Python that runs a position again."""
    by_line = bool(plan) and plan[0].unit == "line"
    words, theirs = ["make_case"], dict[str, None]()
    for entry in plan:
        if by_line:
            words.append(str(entry.position))
            continue
        name = entry.fault.name
        if FAULTS.get(name) == entry.fault:
            words.append(f"({name!r}, {entry.position})")
        else:
            variable = name if name.isidentifier() else "fault"
            words.append(f"({variable}, {entry.position})")
            theirs[f"{variable}: your Fault({name!r}, …)"] = None
    words += [*more_words, f"seed={seed}"]
    defaults = Options(restrict_ki=by_line)
    words += [
        f"{field.name}={getattr(options, field.name)!r}"
        for field in attrs.fields(Options)
        if getattr(options, field.name) != getattr(defaults, field.name)
    ]
    text = f"{'replay_line' if by_line else 'replay'}({', '.join(words)})"
    return f"{text}  # {', '.join(theirs)}" if theirs else text
