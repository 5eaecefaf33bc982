"""What a sweep is told, checked: a mistake in a call is said before anything runs.

What may live here: from arguments to values, or to an error that says what was expected.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable

from trio_runner.testing._faults import Fault, as_fault
from trio_runner.testing._outcome import Case


def as_case(made: object) -> Case:
    """What ``make_case`` made.

    Raises:
      TypeError: it is no `Case`.
    """
    match made:
        case Case():
            return made
        case _:
            pass
    if inspect.iscoroutine(made):
        made.close()
    raise TypeError(
        f"make_case made {made!r}; expected a Case. It is a plain function, called for every "
        "position: def make_case(): return Case(run=…), where run is the async function to sweep"
    )


def require_function(make_case: object) -> None:
    """Refuse a case in the place of what makes it.

    Raises:
      TypeError: it cannot be called.
    """
    if not callable(make_case):
        raise TypeError(
            f"make_case is {make_case!r}; expected a function that makes a Case, called for every "
            "position: def make_case(): return Case(run=…)"
        )


def as_faults(faults: Iterable[str | Fault]) -> list[Fault]:
    """The faults of an option.

    Raises:
      TypeError: it is a single name.
      ValueError: no fault has that name.
    """
    if isinstance(faults, str):
        raise TypeError(f"faults is {faults!r}; expected several: [{faults!r}] for that one")
    return [as_fault(fault) for fault in faults]


def as_pairs(pairs: Iterable[tuple[str | Fault, str | Fault]]) -> list[tuple[Fault, Fault]]:
    """The pairs of an option.

    Raises:
      TypeError: it is not made of pairs.
      ValueError: no fault has that name.
    """
    given = list(pairs)
    for pair in given:
        if isinstance(pair, str) or not hasattr(pair, "__len__") or len(pair) != 2:
            raise TypeError(
                f"pairs is {given!r}; expected pairs of faults, such as [('cancel', 'sigint')]"
            )
    return [(as_fault(first), as_fault(second)) for first, second in given]


def listed(name: str, seeds: Iterable[int]) -> tuple[int, ...]:
    """The seeds of an option.

    Raises:
      TypeError: they are a single number.
      ValueError: there is none.
    """
    if isinstance(seeds, int):
        raise TypeError(
            f"{name} is {seeds!r}; expected several numbers: range({seeds}) for that many seeds, "
            f"[{seeds}] for that one"
        )
    given = tuple(seeds)
    if not given:
        raise ValueError(f"{name} is empty; expected at least one number, such as range(8)")
    return given


def at_least_one(**limits: int | None) -> None:
    """Refuse a limit that would leave nothing to run.

    Raises:
      ValueError: one of them is below 1.
    """
    for name, limit in limits.items():
        if limit is not None and limit < 1:
            raise ValueError(f"{name} is {limit!r}; expected 1 or more, or None for no limit")


def spread(total: int, at_most: int | None) -> list[int]:
    """``range(total)``, or ``at_most`` numbers spread evenly over it, first and last included."""
    if at_most is None or total <= at_most:
        return list(range(total))
    if at_most < 2:
        return list(range(at_most))
    return [round(i * (total - 1) / (at_most - 1)) for i in range(at_most)]
