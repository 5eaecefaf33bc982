"""`RequestParams`: the settings of a turn, layered over the agent's.

A field left `UNSET` falls back to the agent's value and then to the default,
so ``None`` can mean "none" (no timeout, no limit).
"""

from __future__ import annotations

import enum
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Literal, TypeAlias, cast

import attrs

from trio_runner._core.structured import StructuredPolicy

#: Which tools the model may see: their names, or a function that says so of each tool.
ToolsFilter: TypeAlias = frozenset[str] | Callable[[Any], bool] | None

#: What becomes of the results of a batch.
ToolResultMode: TypeAlias = Literal["postprocess", "passthrough", "selectable"]


class _Unset(enum.Enum):
    UNSET = "UNSET"

    def __repr__(self) -> str:
        return "UNSET"


#: A field that was not given; typed Any so that a resolved field has its plain type.
UNSET: Final[Any] = _Unset.UNSET


def _count(*, minimum: int, optional: bool) -> Any:
    def check(_: object, attribute: attrs.Attribute[Any], value: Any) -> None:
        if value is UNSET or (optional and value is None):
            return
        if type(value) is bool:
            raise ValueError(f"{attribute.name} is {value!r}; expected a whole number")
        if type(value) is not int:
            raise TypeError(f"{attribute.name} is {value!r}; expected a whole number")
        if value < minimum:
            raise ValueError(f"{attribute.name} is {value!r}; expected at least {minimum}")

    return check


def check_seconds(name: str, value: Any, *, optional: bool = False) -> None:
    """Refuse what is no finite, non-negative number of seconds (``inf`` is not one)."""
    if optional and value is None:
        return
    if type(value) not in (int, float):
        raise TypeError(f"{name} is {value!r}; expected a number of seconds")
    # Above it a whole number cannot become a time on the clock.
    if not (0 <= value <= sys.float_info.max):
        raise ValueError(f"{name} is {value!r}; expected a finite number of seconds, 0 or more")


def _seconds(_: object, attribute: attrs.Attribute[Any], value: Any) -> None:
    if value is not UNSET:
        check_seconds(attribute.name, value, optional=True)


def _flag(_: object, attribute: attrs.Attribute[Any], value: Any) -> None:
    if value is not UNSET and type(value) is not bool:
        raise TypeError(f"{attribute.name} is {value!r}; expected True or False")


def _one_of(*names: str) -> Any:
    def check(_: object, attribute: attrs.Attribute[Any], value: Any) -> None:
        if value is UNSET:
            return
        if type(value) is not str or value not in names:
            expected = ", ".join(map(repr, names))
            raise ValueError(f"{attribute.name} is {value!r}; expected one of {expected}")

    return check


def _check_choice(_: object, attribute: attrs.Attribute[Any], value: Any) -> None:
    if value is not UNSET and (type(value) is not str or not value):
        raise TypeError(
            f"{attribute.name} is {value!r}; expected 'auto', 'required', 'none' or a tool's name"
        )


def _as_filter(value: Iterable[str] | Callable[[Any], bool] | None) -> ToolsFilter:
    """Names of tools, frozen; everything else as it is."""
    given: Any = value
    if type(given) is str or given is UNSET or given is None or callable(given):
        return cast("Any", given)
    try:
        names = frozenset(given)
    except TypeError:
        return given
    return names if all(type(name) is str for name in names) else given


def _check_filter(_: object, attribute: attrs.Attribute[Any], value: Any) -> None:
    if value is UNSET or value is None or type(value) is frozenset or callable(value):
        return
    raise TypeError(
        f"{attribute.name} is {value!r}; expected names of tools, or a function that takes a "
        "tool and says whether the model may see it"
    )


@attrs.frozen(kw_only=True)
class RequestParams:
    """How a turn runs. Every field may be left unset.

    Attributes:
      max_iterations: at most this many batches, and one model call more (default 199).
      use_history: send and keep the agent's history (default True).
      parallel_tool_calls: run the calls of a batch side by side (default True).
      max_parallel_tools: at most this many calls of a batch at once (default None: all).
      tool_timeout: seconds for each call, from when it really starts (default None).
      turn_timeout: seconds for the whole turn (default None).
      tool_result_mode: what becomes of a batch's results: ``"postprocess"``: the model is asked
        again with them (the default); ``"passthrough"``: they are the answer, unless a call
        failed; ``"selectable"``: as the model chooses for agents that are tools.
      structured_policy: when a turn that must end in JSON shows its schema to the model:
        ``"always"``; ``"defer"``: not before there are tool results, and by one more call
        where there were none; ``"no_tools"``: always, and the turn offers no tools;
        ``"auto"``: as the model says, else always (the default).
      tool_choice: ``"auto"``; ``"required"``: the model must call a tool; ``"none"``: it
        must not; or the name of the tool that it must call. What is forced holds for one
        reply, then it is ``"auto"`` again (the default).
      tools_filter: what the model may see of the tools: names, or a function that says so
        of each; names that no tool has are ignored (default None: all of them).
      max_result_bytes: cap on one result over all its blocks (default 256 KiB).
      model_settings: passed to the model as they are.
    """

    max_iterations: int = attrs.field(default=UNSET, validator=_count(minimum=0, optional=False))
    use_history: bool = attrs.field(default=UNSET, validator=_flag)
    parallel_tool_calls: bool = attrs.field(default=UNSET, validator=_flag)
    max_parallel_tools: int | None = attrs.field(
        default=UNSET, validator=_count(minimum=1, optional=True)
    )
    tool_timeout: float | None = attrs.field(default=UNSET, validator=_seconds)
    turn_timeout: float | None = attrs.field(default=UNSET, validator=_seconds)
    tool_result_mode: ToolResultMode = attrs.field(
        default=UNSET, validator=_one_of("postprocess", "passthrough", "selectable")
    )
    structured_policy: StructuredPolicy = attrs.field(
        default=UNSET, validator=_one_of("auto", "always", "defer", "no_tools")
    )
    tool_choice: str = attrs.field(default=UNSET, validator=_check_choice)
    tools_filter: ToolsFilter = attrs.field(
        default=UNSET, converter=_as_filter, validator=_check_filter
    )
    max_result_bytes: int = attrs.field(
        default=UNSET, validator=_count(minimum=1024, optional=False)
    )
    model_settings: Mapping[str, Any] = UNSET

    def over(self, base: RequestParams) -> RequestParams:
        """These params, with ``base``'s value wherever a field is unset."""
        unset = {
            field.name: getattr(base, field.name)
            for field in attrs.fields(RequestParams)
            if getattr(self, field.name) is UNSET
        }
        return attrs.evolve(self, **unset)


DEFAULT_PARAMS: Final = RequestParams(
    max_iterations=199,
    use_history=True,
    parallel_tool_calls=True,
    max_parallel_tools=None,
    tool_timeout=None,
    turn_timeout=None,
    tool_result_mode="postprocess",
    structured_policy="auto",
    tool_choice="auto",
    tools_filter=None,
    max_result_bytes=256 * 1024,
    model_settings={},
)
