"""Structured answers, the pure part: when the schema is shown, and what is said to the model.

What may live here: the policies of one turn that must end in JSON, the texts
they need, and finding the JSON in a reply. What a type's schema is, and whether
a value fits it, is ``_shell/output_types.py``.

Nothing is remembered but what the turn's messages tell: the messages that are
written here are marked in their ``meta``, so that a turn which a crash cut goes
on as it would have.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal, NoReturn, TypeAlias, cast

import attrs

import trio_runner._core.json_data as json_data
import trio_runner._core.values as v
from trio_runner._core.describe import shorten

#: When a turn's schema is shown to the model; see `RequestParams`.
StructuredPolicy: TypeAlias = Literal["auto", "always", "defer", "no_tools"]

#: One that is resolved: ``"auto"`` is the model's own.
PlannedPolicy: TypeAlias = Literal["always", "defer", "no_tools"]

#: The key in a message's ``meta`` that marks what the loop wrote to get its JSON:
#: ``"asked"`` (the one more call of ``defer``) or ``"refused"`` (an answer did not fit).
MARK: Final = "structured_output"

_MAX_PROBLEMS: Final = 10
_MAX_PROBLEM_LENGTH: Final = 500


@attrs.frozen
class OutputFormat:
    """What a reply must be, for a model that can be held to it.

    Attributes:
      name: 1 to 64 characters of ``A-Za-z0-9_-``.
      schema: JSON Schema of the answer.
      strict: whether every object in it lists all its properties as required and allows
        no others, as the strict modes of providers ask.
    """

    name: str
    schema: Mapping[str, Any]
    strict: bool = False


class NoJSONError(ValueError):
    """A reply holds no JSON; private to the library, which tells the model."""


class MisfitError(ValueError):
    """An answer does not fit its schema; private to the library, which tells the model."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__(listed(problems))
        self.problems: tuple[str, ...] = tuple(problems)


# --- when the schema is shown ---------------------------------------------------


class AnswerPlan:
    """How the model calls of one turn ask for the answer.

    Args:
      messages: the turn's so far; it may be one that goes on.
      retries: how many answers that do not fit may go back to the model.
    """

    def __init__(
        self,
        output: OutputFormat,
        policy: PlannedPolicy,
        messages: Iterable[v.Message],
        retries: int,
    ) -> None:
        self._output: Final = output
        self._policy: Final = policy
        self._retries: Final = retries
        #: Answers that went back so far.
        self._refused = 0
        #: Whether the one more call of ``defer`` was asked for: no tools from there on.
        self._asked = False
        #: Whether the schema was shown, or is from here on.
        self._shown = policy != "defer"
        self._note(messages)

    def _note(self, messages: Iterable[v.Message]) -> None:
        for message in messages:
            mark = message.meta.get(MARK)
            self._refused += mark == "refused"
            self._asked = self._asked or mark == "asked"
            self._shown = self._shown or mark is not None or bool(message.tool_results)

    @property
    def attempts(self) -> int:
        """How many answers were judged and refused so far."""
        return self._refused

    @property
    def withholds_tools(self) -> bool:
        """Whether the next call is made without tools."""
        return self._asked or self._policy == "no_tools"

    def shows_schema(self, delta: Iterable[v.Message], *, has_tools: bool) -> bool:
        """Whether the next call, which sends ``delta``, shows the schema."""
        if not self._shown:
            self._shown = not has_tools or any(message.tool_results for message in delta)
        return self._shown

    @property
    def has_shown(self) -> bool:
        """Whether the newest call showed the schema, so that its reply can be judged."""
        return self._shown

    def ask(self) -> v.Message:
        """The message of the one more call of ``defer``, to a reply that was not shown the schema.

        What it answers is to be the JSON, so the schema is shown and no tools are.
        """
        self._asked = self._shown = True
        return v.Message.user(
            "Give your final answer now, as JSON that fits the schema "
            f"{self._output.name!r}: only the JSON, no text around it.",
            meta={MARK: "asked"},
        )

    def refuse(self, problems: Sequence[str]) -> v.Message | None:
        """The message that sends an answer back to the model; None when the retries are used up."""
        if self._refused >= self._retries:
            return None
        self._refused += 1
        return v.Message.user(
            f"This answer does not fit the schema {self._output.name!r}:\n"
            f"{listed(problems)}\n"
            "Give the whole answer again, corrected: only the JSON, no text around it.",
            meta={MARK: "refused"},
        )


# --- what is said ---------------------------------------------------------------


def instruction(own: str | None, output: OutputFormat) -> str:
    """The instruction of one call, for a model that cannot be held to a schema by itself."""
    schema = json.dumps(output.schema, ensure_ascii=False, separators=(",", ":"))
    wanted = (
        "Your final answer must be JSON that fits the JSON Schema below: only the JSON, no text "
        f"around it.\n\nJSON Schema of {output.name!r}:\n{schema}"
    )
    return f"{own}\n\n{wanted}" if own else wanted


def listed(problems: Sequence[str]) -> str:
    """Problems as lines, bounded."""
    lines = [f"- {shorten(each, _MAX_PROBLEM_LENGTH)}" for each in problems[:_MAX_PROBLEMS]]
    if len(problems) > _MAX_PROBLEMS:
        lines.append(f"- and {len(problems) - _MAX_PROBLEMS} more")
    return "\n".join(lines)


# --- reading the answer ---------------------------------------------------------

_FENCED: Final = re.compile(r"^ {0,3}```[^\n`]*\n(.*?)^ {0,3}```[ \t]*$", re.MULTILINE | re.DOTALL)


def find_json(text: str) -> v.JSONValue:
    """The JSON in a reply: the whole text, or its one fenced block.

    Raises:
      NoJSONError: there is none; says why, for the model.
    """
    try:
        return _parse(text)
    except NoJSONError as error:
        blocks: list[str] = _FENCED.findall(text)
        if len(blocks) != 1:
            many = f", and it has {len(blocks)} fenced blocks" if blocks else ""
            raise NoJSONError(f"the answer is not JSON: {error}{many}") from None
    try:
        return _parse(blocks[0])
    except NoJSONError as error:
        raise NoJSONError(f"the fenced block of the answer is not JSON: {error}") from None


def _parse(text: str) -> v.JSONValue:
    try:
        return json_data.plain_json(json.loads(text, parse_constant=_no_constant))
    except json.JSONDecodeError as error:
        where = f"line {error.lineno} column {error.colno}"
        raise NoJSONError(f"{error.msg} at {where}") from None
    except RecursionError:
        raise NoJSONError("it is nested too deeply") from None
    except ValueError as error:  # no plain JSON, or a number of thousands of digits
        raise NoJSONError(str(error)[:_MAX_PROBLEM_LENGTH]) from None


def _no_constant(name: str) -> NoReturn:
    raise NoJSONError(f"{name} is no JSON number")


# --- schemas --------------------------------------------------------------------

_NO_NAME: Final = re.compile(r"[^A-Za-z0-9_-]+")


def output_name(text: object) -> str:
    """A name for a schema, of what it is called: what providers do not take is replaced."""
    return (_NO_NAME.sub("_", text).strip("_")[:64] if type(text) is str else "") or "answer"


def is_strict(schema: object) -> bool:
    """Whether every object in a schema requires all its properties and allows no others.

    False where that cannot be told at a glance.
    """
    match schema:
        case dict():
            fields = cast("dict[str, Any]", schema)
        case _:
            return False  # ``true`` allows anything
    if not fields.keys().isdisjoint(_LOOSE):
        return False
    kinds = fields.get("type", ())
    kinds = (kinds,) if type(kinds) is str else kinds
    if "object" in kinds:
        names = set(fields.get("properties", ()))
        if (
            fields.get("additionalProperties") is not False
            or set(fields.get("required", ())) != names
        ):
            return False
    if "array" in kinds and "items" not in fields:
        return False
    if not kinds and fields.keys().isdisjoint(_SAYS_WHAT):
        return False
    inner = [one for key in _MAPS for one in fields.get(key, {}).values()]
    inner += [*fields.get("anyOf", ()), *([fields["items"]] if "items" in fields else [])]
    return all(map(is_strict, inner))


_LOOSE: Final = frozenset(("oneOf", "allOf", "not", "if", "patternProperties", "prefixItems"))
_SAYS_WHAT: Final = frozenset(("$ref", "anyOf", "enum", "const"))
_MAPS: Final = ("properties", "$defs", "definitions")
