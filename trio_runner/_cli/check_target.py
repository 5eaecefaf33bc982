"""Finds what ``trio-runner check`` is to check: ``MODULE:factory`` or ``PATH.py:factory``.

What may live here: importing the user's code, and saying in a sentence what is
wrong with a target. A `TargetError` is about what the user wrote on the command
line or in that file.
"""

from __future__ import annotations

import difflib
import functools
import importlib
import importlib.util
import inspect
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, Final, cast

import attrs
import trio

import trio_runner as tr

#: What `check_agent` gives to a factory that takes it.
GIVEN: Final = ("model", "journal", "session")
_EXPECTED: Final = "expected MODULE:factory or PATH.py:factory, such as my_app.agents:make_agent"
#: Frames of ours and of trio, which say nothing to the user.
_INSIDE: Final = (str(Path(__file__).parent.parent), str(Path(trio.__file__).parent))


class TargetError(Exception):
    """The target cannot be checked; the text says why, and shows the user's traceback."""


@attrs.frozen
class Target:
    """What to check.

    Attributes:
      module: the name under which the user's module can be imported.
      name: the factory's name in it.
      factory: makes the agent.
    """

    module: str
    name: str
    factory: Callable[..., tr.ToolAgent]

    def __str__(self) -> str:
        return f"{self.module}:{self.name}"


def find(text: str) -> Target:
    """Import the module of a target, and look its factory up.

    Raises:
      TargetError: there is no such thing, it raised, or it is no factory.
    """
    place, colon, name = text.rpartition(":")
    if not (colon and place and name):
        raise TargetError(f"found {text!r}; {_EXPECTED}")
    is_file = place.endswith(".py")
    module = _import_file(Path(place)) if is_file else _import_module(place)
    found: object = module
    for part in name.split("."):
        if not hasattr(found, part):
            raise TargetError(f"{place!r} has no {part!r}{_similar(part, module)}")
        found = getattr(found, part)
    return Target(module.__name__, name, _as_factory(found, text))


# --- importing ------------------------------------------------------------------


def _import_module(name: str) -> ModuleType:
    if not all(part.isidentifier() for part in name.split(".")):
        raise TargetError(f"{name!r} is no name of a module; {_EXPECTED}")
    try:
        here = os.getcwd()  # noqa: PTH109  text, as the path's entries are
    except OSError as error:
        raise TargetError(f"the current directory cannot be found: {error.strerror}") from error
    if here not in sys.path:
        sys.path.insert(0, here)  # as ``python -m`` does
    missing = False
    try:
        missing = importlib.util.find_spec(name) is None
    except ModuleNotFoundError as error:
        # A package above it is missing, or something that such a package imports.
        missing = f"{name}.".startswith(f"{error.name}.")
        if not missing:
            raise TargetError(f"importing {name!r} failed:\n{_import_trace(error)}") from error
    except (Exception, SystemExit) as error:  # a package above it may raise anything
        raise TargetError(f"importing {name!r} failed:\n{_import_trace(error)}") from error
    if missing:
        raise TargetError(
            f"there is no module {name!r}; it is looked for as `python -m` does, in {here!r} "
            "first. A file is named by its path: PATH.py:factory"
        )
    return _run(name, lambda: importlib.import_module(name))


def _import_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise TargetError(f"there is no file {str(path)!r}")
    # As ``python PATH.py`` does it, but under a name of its own: ``if __name__ ==
    # "__main__"`` is not for us.
    sys.path.insert(0, str(path.parent.absolute()))
    name = path.stem if path.stem not in sys.modules else f"{path.stem}_to_check"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    loader = spec.loader
    _run(str(path), lambda: loader.exec_module(module))
    return module


def _run(what: str, load: Callable[[], Any]) -> Any:
    try:
        return load()
    except (Exception, SystemExit) as error:  # the user's module may raise anything
        raise TargetError(f"importing {what!r} failed:\n{_import_trace(error)}") from error


def _import_trace(error: BaseException) -> str:
    """The traceback from the module's own code on.

    Whatever comes before it imports: the import system, or a hook that some other
    package has put into it.
    """
    frame: TracebackType | None = error.__traceback__
    while frame is not None and not _is_of_a_module(frame):
        frame = frame.tb_next
    if frame is None and not isinstance(error, SyntaxError):
        frame = error.__traceback__
    return _format(error, frame)


def _is_of_a_module(frame: TracebackType) -> bool:
    code = frame.tb_frame.f_code
    return code.co_name == "<module>" and not code.co_filename.startswith(_INSIDE)


def trace_of(error: BaseException) -> str:
    """The traceback from the first frame that is neither ours nor trio's."""
    frame: TracebackType | None = error.__traceback__
    while frame is not None and frame.tb_frame.f_code.co_filename.startswith(_INSIDE):
        frame = frame.tb_next
    return _format(error, frame or error.__traceback__)  # all of it may be inside


def _format(error: BaseException, frame: TracebackType | None) -> str:
    lines = traceback.format_exception(type(error), error, frame)
    return "".join(lines).rstrip()


def _similar(name: str, module: ModuleType) -> str:
    public = sorted(
        each
        for each, value in vars(module).items()
        if callable(value)
        and not each.startswith("_")
        and getattr(value, "__module__", None) == module.__name__
    )
    close = difflib.get_close_matches(name, public)
    if close:
        return f"; there is {' and '.join(map(repr, close))}"
    return f"; it has {', '.join(public[:20]) or 'nothing that can be called'}"


# --- what a factory is ----------------------------------------------------------


def _as_factory(found: object, text: str) -> Callable[..., tr.ToolAgent]:
    """Refuse at once what would fail later in a way that is hard to read."""
    wanted = "expected a function that makes a trio_runner.ToolAgent"
    if not callable(found):
        makes = ", anew for each run" if hasattr(found, "conversation") else ""
        raise TargetError(f"{text} is {found!r}, which cannot be called; {wanted}{makes}")
    if inspect.iscoroutinefunction(found):
        raise TargetError(f"{text} is async; {wanted}, and awaits nothing")
    try:
        parameters = inspect.signature(found).parameters.values()
    except (TypeError, ValueError) as error:
        raise TargetError(f"{text} is {found!r}; {wanted} ({error})") from error
    more = [
        each.name
        for each in parameters
        if each.default is each.empty
        and each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
        and (each.name not in GIVEN or each.kind is each.POSITIONAL_ONLY)
    ]
    if more:
        raise TargetError(
            f"{text} needs {', '.join(map(repr, more))}; {wanted} from nothing, or from those of "
            "model=, journal= and session= that it takes (by keyword)"
        )
    factory = cast("Callable[..., tr.ToolAgent]", found)

    @functools.wraps(factory)
    def make_agent(**given: Any) -> tr.ToolAgent:
        agent = factory(**given)
        if not hasattr(agent, "conversation"):
            raise TargetError(f"{text} returned {agent!r}; {wanted}")
        return agent

    return make_agent
