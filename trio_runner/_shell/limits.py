"""`limits`: scopes that bound what the turns inside them may spend.

What may live here: the scope, what holds it for a task, and what the loop asks of
all scopes around it. How a turn ends by a limit is ``steps.py``.

A scope is found through a context variable, so child tasks, worker threads and
the turns of sub-agents have the scopes of the task that started them. All that
counts is synchronous: asking and taking are one step, so that no two tasks both
take the last call. Threads only add (`charge_usage`), under a lock.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Iterable, Sequence
from contextvars import ContextVar
from types import TracebackType
from typing import Final, Self

import attrs
import trio

import trio_runner._core.limits as core
import trio_runner._core.values as v
from trio_runner._core.errors import UnknownPriceError, UsageError
from trio_runner._core.open_step import STARTED, OpenStep

_log = logging.getLogger("trio_runner")

#: The scopes around the current task, outermost first.
_around: ContextVar[tuple[LimitScope, ...]] = ContextVar("trio_runner_limits", default=())


class LimitScope:
    """Bounds what is spent inside its ``with`` block; made by `limits`.

    Also by tasks, threads and sub-agents that were started in the block, as long as
    they run. It may be entered several times, in several tasks, one after the other
    or at once: they share what there is.
    """

    def __init__(self, limits: core.Limits) -> None:
        self._limits = limits
        #: But for the seconds, which the clock tells.
        self._spent = core.Spent()
        #: Held while ``_spent`` is read and written anew: tools in threads charge, too.
        self._lock = threading.Lock()
        #: The clock of the run in which it was entered first; None before.
        self._clock: trio.abc.Clock | None = None
        #: When it was entered first, on that clock.
        self._entered = 0.0
        #: Whether it was told that a model does not report what it took.
        self._warned = False

    @property
    def name(self) -> str | None:
        """Names it in `LimitReached`."""
        return self._limits.name

    @property
    def limits(self) -> core.Limits:
        """What may be spent."""
        return self._limits

    @property
    def spent(self) -> core.Spent:
        """What was spent so far."""
        if self._clock is None:
            return self._spent
        # Not trio's own `current_time`, which a thread of a tool does not have.
        return attrs.evolve(self._spent, seconds=self._clock.current_time() - self._entered)

    @property
    def remaining(self) -> core.Remaining:
        """What may still be spent."""
        return self._limits.remaining(self.spent)

    @property
    def deadline(self) -> float:
        """When its seconds are up, on trio's clock; inf when it has none, or was not entered."""
        seconds = self._limits.seconds
        if seconds is None or self._clock is None:
            return math.inf
        if not trio.lowlevel.in_trio_run() or self._clock is trio.lowlevel.current_clock():
            return self._entered + seconds
        # Each run of trio has a clock of its own.
        return trio.current_time() + seconds - self.spent.seconds

    @trio.lowlevel.enable_ki_protection
    def __enter__(self) -> Self:
        """Begin to count in this task, and in what it starts. No checkpoint."""
        if self._clock is None:
            if trio.lowlevel.in_trio_run():
                self._clock = trio.lowlevel.current_clock()
                self._entered = self._clock.current_time()
            elif self._limits.seconds is not None:
                raise UsageError(
                    "a scope with seconds was entered outside of trio, which has the clock; enter "
                    "it inside trio.run()"
                )
        _around.set((*_around.get(), self))
        return self

    @trio.lowlevel.enable_ki_protection
    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Count no more in this task; what was started inside still counts. No checkpoint."""
        # Not by a token: it may be left in another order than entered, and in another task.
        around = list(_around.get())
        if self in around:
            del around[len(around) - 1 - around[::-1].index(self)]
            _around.set(tuple(around))

    def take_model_calls(self, count: int = 1) -> None:
        """The model is about to be asked. For the loop, which has looked at `before_model_call`."""
        with self._lock:
            self._spent = attrs.evolve(self._spent, model_calls=self._spent.model_calls + count)

    def take_tool_calls(self, count: int) -> None:
        """So many calls may begin; fewer than 0 give back what did not. For the loop."""
        with self._lock:
            self._spent = attrs.evolve(self._spent, tool_calls=self._spent.tool_calls + count)

    def add(self, usage: v.Usage | None, names: tuple[object, ...]) -> None:
        """A model took ``usage``; it has one of ``names``, the likeliest first. For the loop."""
        if usage is None:
            self._warn(names)
            return
        price = self.price(names)
        cost = 0.0 if price is None else price.cost(usage)
        with self._lock:
            spent = self._spent
            self._spent = attrs.evolve(spent, usage=spent.usage + usage, cost=spent.cost + cost)

    def price(self, names: tuple[object, ...]) -> core.Price | None:
        """What a model costs that has one of ``names``; None when nothing is to be priced.

        Raises:
          UnknownPriceError: the table has none of them.
        """
        prices = self._limits.prices
        if prices is None:
            return None
        price = core.price_of(prices, names)
        if price is None:
            raise UnknownPriceError(_no_price(names, prices, self.name))
        return price

    def _warn(self, names: tuple[object, ...]) -> None:
        limits = self._limits
        counts = (limits.input_tokens, limits.output_tokens, limits.total_tokens, limits.cost)
        if not self._warned and any(limit is not None for limit in counts):
            self._warned = True
            _log.warning(
                "model %r reports no usage, so the tokens and the cost that a scope limits (%r) "
                "are not counted for it",
                next((name for name in names if isinstance(name, str)), None),
                self.name,
            )


def limits(
    *,
    model_calls: int | None = None,
    tool_calls: int | None = None,
    input_tokens: int | None = None,
    output_tokens: int | None = None,
    total_tokens: int | None = None,
    cost: float | None = None,
    prices: core.Prices | None = None,
    seconds: float | None = None,
    name: str | None = None,
) -> LimitScope:
    """Bound what the turns inside a block may spend.

    For example::

        with trio_runner.limits(model_calls=20, cost=0.50, prices=PRICES) as scope:
            reply = await agent.generate("...")
        scope.spent.cost

    What is given is looked at before it is spent: before each model call, and before
    each batch of tools. A turn that meets a limit ends ``limit``; its last message is
    returned, ``runner.limit`` and ``agent.last_turn.limit`` say which limit it was, and
    ``agent.resume()`` goes on in a scope with more. Without a message to return,
    `LimitReachedError` is raised. Scopes may be nested; each counts for itself. Without
    any limit the scope just counts.

    Args:
      model_calls: how often models may be asked.
      tool_calls: how many tools may be started. A batch gets what is left, in the order of
        the request; its other calls are answered ``limit_reached``, and the model is not
        asked again.
      input_tokens, output_tokens, total_tokens: as the models report them, so a turn stops
        behind the call that went over.
      cost: as the tokens cost; needs ``prices``.
      prices: a `Price` for all models, or a mapping from their names. A model's name is
        ``meta["model"]`` of its reply where the mapping has that, else the attribute
        ``name`` of the model object.
      seconds: from when the scope is entered first, on trio's clock. When they are up, what
        runs in a turn is cancelled and its open calls are answered.
      name: names the scope in `LimitReached`.

    Raises:
      TypeError, ValueError: a limit that cannot be.
    """
    return LimitScope(
        core.Limits(
            model_calls=model_calls,
            tool_calls=tool_calls,
            input_tokens=input_tokens,
            output_tokens=output_tokens,
            total_tokens=total_tokens,
            cost=cost,
            prices=prices,
            seconds=seconds,
            name=name,
        )
    )


@trio.lowlevel.enable_ki_protection
def charge_usage(usage: v.Usage, *, model: str | None = None, calls: int = 1) -> None:
    """Count what a model took outside of a turn, in a tool or a hook, in all scopes around.

    No checkpoint; may be called from the thread of a tool. A turn counts its own model calls.

    Args:
      usage: the tokens.
      model: the model's name, for scopes whose prices are by name.
      calls: how many model calls that were; 0 for one that is counted already, such as a
        call of a turn that was cut and whose tokens are known all the same.

    Raises:
      UnknownPriceError: a scope's prices have no model of that name; nothing was counted.
      TypeError, ValueError: a number of calls that cannot be; nothing was counted.
    """
    core.check_count("calls", calls)
    scopes = scopes_around()
    for scope in scopes:
        scope.price((model,))
    for scope in scopes:
        scope.take_model_calls(calls)
        scope.add(usage, (model,))


# --- what the loop asks -----------------------------------------------------------


def scopes_around() -> tuple[LimitScope, ...]:
    """The scopes around the current task, outermost first, each once; nearly always ()."""
    around = _around.get()
    return around if len(around) < 2 else tuple(dict.fromkeys(around))


def before_model_call(
    scopes: Sequence[LimitScope], names: tuple[object, ...]
) -> core.LimitReached | None:
    """The limit that keeps a model from being asked; that of the innermost scope.

    Args:
      names: the model's, as for `LimitScope.price`.

    Raises:
      UnknownPriceError: a scope's prices have none of them.
    """
    for scope in scopes:
        scope.price(names)
    found = None
    for scope in scopes:
        found = scope.limits.before_a_model_call(scope.spent) or found
    return found


class Ration:
    """The tool calls of one batch that the scopes around it have left.

    Args:
      step: whose calls they are.
      positions: of those that are to run, in the order of the request.

    Attributes:
      over: the positions of those that may not.
      limit: what keeps them from it; None when all may run.
    """

    def __init__(
        self, scopes: tuple[LimitScope, ...], step: OpenStep, positions: list[int]
    ) -> None:
        count, scarce = len(positions), None
        for scope in scopes:
            left = scope.remaining.tool_calls
            if left is not None and left < count:
                count, scarce = left, scope
        for scope in scopes:
            scope.take_tool_calls(count)
        self.limit = None if scarce is None else scarce.limits.reached("tool_calls", scarce.spent)
        self.over = positions[count:]
        self._taken = positions[:count]
        self._scopes = scopes
        self._step = step

    def give_back(self) -> None:
        """The batch is over: calls whose tool never ran took nothing."""
        idle = sum(map(self._is_idle, self._taken))
        for scope in self._scopes if idle else ():
            scope.take_tool_calls(-idle)

    def _is_idle(self, position: int) -> bool:
        result, started = self._step.results[position], self._step.started[position] == STARTED
        if result is None:
            return not started
        # The start of a threaded call that has its result is not noted.
        refused = result.status is v.CallStatus.INVALID_ARGUMENTS
        return refused or (not started and result.status in _NEVER_RAN)


#: What becomes of a call whose tool never ran here.
_NEVER_RAN: Final = frozenset(
    {
        v.CallStatus.NOT_STARTED,
        v.CallStatus.DENIED,
        v.CallStatus.UNAVAILABLE,
        v.CallStatus.UNKNOWN_AFTER_CRASH,
    }
)


def time_limit(scopes: Iterable[LimitScope]) -> core.LimitReached:
    """The limit of the scope whose seconds were up first; those of one of them are."""
    first = min(scopes, key=_deadline)
    # Not by comparing the seconds: rounding may make them a little less than the limit.
    seconds = first.limits.seconds or 0.0
    return core.LimitReached("seconds", seconds, max(seconds, first.spent.seconds), first.name)


def first_deadline(scopes: Iterable[LimitScope]) -> float:
    """When the seconds of the first of them are up; inf when there are none."""
    return min(map(_deadline, scopes), default=math.inf)


def _deadline(scope: LimitScope) -> float:
    return scope.deadline


def usage_names(agent: object, reply: v.Message | None = None) -> tuple[object, ...]:
    """The names under which the price of the agent's model may stand, the likeliest first."""
    name: object = getattr(getattr(agent, "model", None), "name", None)
    return (name,) if reply is None else (reply.meta.get("model"), name)


def _no_price(names: tuple[object, ...], prices: core.Prices, scope: str | None) -> str:
    match prices:
        case core.Price():
            known = ""
        case _:
            known = ", ".join(map(repr, list(prices)[:10]))
    where = "" if scope is None else f" of scope {scope!r}"
    given = [name for name in names if isinstance(name, str)]
    if not given:
        return (
            f"the prices{where} are by the names of models ({known}), and this model has no "
            "attribute 'name'; give it one, or give one Price for all models"
        )
    return (
        f"the prices{where} have no model {given[0]!r}; they have {known}. Add it, or give one "
        "Price for all models"
    )
