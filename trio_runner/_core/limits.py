"""Limits: what may be spent, what was, and which limit was reached.

What may live here: frozen values and their arithmetic. Who counts, and when it is
asked, is ``_shell/limits.py``.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, Final, Literal, TypeAlias, TypeVar

import attrs

import trio_runner._core.values as v
from trio_runner._core.params import check_seconds

#: What can be limited.
LimitKind: TypeAlias = Literal[
    "model_calls",
    "tool_calls",
    "input_tokens",
    "output_tokens",
    "total_tokens",
    "cost",
    "seconds",
]

#: What keeps the model from being asked once it is used up, in the order in which it is looked
#: at. Tool calls do not, since an answer needs none; time is a deadline.
_FOR_A_MODEL_CALL: Final[tuple[LimitKind, ...]] = (
    "model_calls",
    "input_tokens",
    "output_tokens",
    "total_tokens",
    "cost",
)
_PRICED_TOKENS: Final = 1_000_000


def _check_amount(_: object, attribute: attrs.Attribute[Any], value: Any) -> None:
    """Refuse what is no finite, non-negative amount of money."""
    if type(value) not in (int, float):
        raise TypeError(f"{attribute.name} is {value!r}; expected a number")
    if not (0 <= value <= sys.float_info.max):
        raise ValueError(f"{attribute.name} is {value!r}; expected a finite number, 0 or more")


def check_count(name: str, value: Any) -> None:
    """Refuse what is no number of calls or tokens."""
    if type(value) is not int:
        raise TypeError(f"{name} is {value!r}; expected a whole number")
    if value < 0:
        raise ValueError(f"{name} is {value!r}; expected 0 or more")


def _check_count(_: object, attribute: attrs.Attribute[Any], value: Any) -> None:
    check_count(attribute.name, value)


def _check_seconds(_: object, attribute: attrs.Attribute[Any], value: Any) -> None:
    check_seconds(attribute.name, value, optional=True)


_optional_count: Final = attrs.validators.optional(_check_count)
_optional_amount: Final = attrs.validators.optional(_check_amount)


@attrs.frozen(kw_only=True)
class Price:
    """What a million tokens of a model cost, in the money that the limit is given in.

    Attributes:
      cached_input: for input tokens that the provider had in its cache; None: as ``input``.
    """

    input: float = attrs.field(validator=_check_amount)
    output: float = attrs.field(validator=_check_amount)
    cached_input: float | None = attrs.field(default=None, validator=_optional_amount)

    def cost(self, usage: v.Usage) -> float:
        """What ``usage`` costs; cached tokens are a part of its input tokens."""
        cached = min(usage.cached_input_tokens, usage.input_tokens)
        for_cached = self.input if self.cached_input is None else self.cached_input
        whole = (
            (usage.input_tokens - cached) * self.input
            + cached * for_cached
            + usage.output_tokens * self.output
        )
        return whole / _PRICED_TOKENS


#: What models cost: one price for all, or a table by the name of the model.
Prices: TypeAlias = Price | Mapping[str, Price]


@attrs.frozen
class Spent:
    """What was spent in a scope so far.

    Attributes:
      usage: tokens, as far as the models reported them.
      cost: by the scope's ``prices``; 0 without.
      seconds: since the scope was entered first.
    """

    model_calls: int = 0
    tool_calls: int = 0
    usage: v.Usage = v.Usage()
    cost: float = 0.0
    seconds: float = 0.0

    def of(self, kind: LimitKind) -> float:
        """How much of ``kind``."""
        match kind:
            case "model_calls":
                return self.model_calls
            case "tool_calls":
                return self.tool_calls
            case "input_tokens":
                return self.usage.input_tokens
            case "output_tokens":
                return self.usage.output_tokens
            case "total_tokens":
                return self.usage.total_tokens
            case "cost":
                return self.cost
            case "seconds":
                return self.seconds


@attrs.frozen(kw_only=True)
class Remaining:
    """What may still be spent in a scope: 0 or more; None where there is no limit."""

    model_calls: int | None = None
    tool_calls: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    total_tokens: int | None = None
    cost: float | None = None
    seconds: float | None = None


@attrs.frozen
class LimitReached:
    """Which limit ended a turn.

    Attributes:
      kind: what was limited.
      limit: how much of it there may be.
      spent: how much there was when that was noticed; tokens are known after the
        call that took them, so it may be more.
      scope: the name of the scope that has the limit; None: it has none.
    """

    kind: LimitKind
    limit: float
    spent: float
    scope: str | None = None

    def __str__(self) -> str:
        where = "" if self.scope is None else f" of scope {self.scope!r}"
        what = self.kind.replace("_", " ")
        return f"the limit{where} of {self.limit:g} {what} is reached ({self.spent:g} spent)"


@attrs.frozen(kw_only=True)
class Limits:
    """What may be spent; None: any amount. The settings of a scope, see `trio_runner.limits`."""

    model_calls: int | None = attrs.field(default=None, validator=_optional_count)
    tool_calls: int | None = attrs.field(default=None, validator=_optional_count)
    input_tokens: int | None = attrs.field(default=None, validator=_optional_count)
    output_tokens: int | None = attrs.field(default=None, validator=_optional_count)
    total_tokens: int | None = attrs.field(default=None, validator=_optional_count)
    cost: float | None = attrs.field(default=None, validator=_optional_amount)
    seconds: float | None = attrs.field(default=None, validator=_check_seconds)
    prices: Prices | None = None
    name: str | None = None

    def __attrs_post_init__(self) -> None:
        if self.cost is not None and self.prices is None:
            raise ValueError(
                f"cost is limited to {self.cost!r} and nothing says what the models cost; give "
                "prices=Price(...), or prices={'the model': Price(...)}"
            )
        if self.prices is not None:
            _check_prices(self.prices)

    def limit_of(self, kind: LimitKind) -> float | None:
        """How much of ``kind`` there may be; None: any amount."""
        limit: float | None = getattr(self, kind)
        return limit

    def reached(self, kind: LimitKind, spent: Spent) -> LimitReached | None:
        """Whether all of ``kind`` is spent; None when not, or when there is no limit."""
        limit, amount = self.limit_of(kind), spent.of(kind)
        if limit is None or amount < limit:
            return None
        return LimitReached(kind, limit, amount, self.name)

    def before_a_model_call(self, spent: Spent) -> LimitReached | None:
        """The first limit that keeps the model from being asked; None: it may be."""
        for kind in _FOR_A_MODEL_CALL:
            found = self.reached(kind, spent)
            if found is not None:
                return found
        return None

    def remaining(self, spent: Spent) -> Remaining:
        """What may still be spent after ``spent``."""
        return Remaining(
            model_calls=_left(self.model_calls, spent.model_calls),
            tool_calls=_left(self.tool_calls, spent.tool_calls),
            input_tokens=_left(self.input_tokens, spent.usage.input_tokens),
            output_tokens=_left(self.output_tokens, spent.usage.output_tokens),
            total_tokens=_left(self.total_tokens, spent.usage.total_tokens),
            cost=_left(self.cost, spent.cost),
            seconds=_left(self.seconds, spent.seconds),
        )


NumberT = TypeVar("NumberT", int, float)


def _left(limit: NumberT | None, spent: NumberT) -> NumberT | None:
    return None if limit is None else max(limit - spent, type(limit)(0))


def _check_prices(prices: Prices) -> None:
    if type(prices) is Price:
        return
    if isinstance(prices, Mapping):
        wrong = {name: price for name, price in prices.items() if type(price) is not Price}
        if not wrong:
            return
        found = f"prices has {wrong!r}"
    else:
        found = f"prices is {prices!r}"
    raise TypeError(f"{found}; expected a Price, or a mapping from names of models to Price values")


def price_of(prices: Prices, names: tuple[object, ...]) -> Price | None:
    """The price under the first of ``names`` that the table knows; None when it knows none."""
    match prices:
        case Price():
            return prices
        case _:
            known = (name for name in names if isinstance(name, str) and name in prices)
            return next((prices[name] for name in known), None)
