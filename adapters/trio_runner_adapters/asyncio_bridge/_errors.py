"""What a bridge raises, and how an error of the asyncio side becomes one that trio may see."""

from __future__ import annotations

import asyncio

import trio_runner as tr


class BridgeError(tr.TrioRunnerError):
    """Something about a bridge itself went wrong, not about what its client was asked.

    Attributes:
      bridge: the name of the bridge.
    """

    def __init__(self, bridge: str, message: str) -> None:
        super().__init__(f"asyncio bridge {bridge!r} {message}")
        self.bridge: str = bridge


class BridgeClosedError(BridgeError):
    """The bridge is not open, or ended while this call was in flight.

    Attributes:
      began: whether the call was on its way: then it is not known what became of it.
    """

    def __init__(self, bridge: str, message: str, *, began: bool = False) -> None:
        unknown = "; it is not known whether the call took effect" if began else ""
        super().__init__(bridge, message + unknown)
        self.began: bool = began


class ForeignCancelledError(BridgeError):
    """The asyncio side cancelled the call by itself: nobody on the trio side had asked for it."""


class CallbackRefusedError(BridgeError):
    """Raised on the asyncio side, in who calls a callback that cannot run any more."""


def said(error: BaseException | None) -> str:
    """Return one bounded line that says what ``error`` is; never empty."""
    if error is None:
        return "no error"
    try:
        text = str(error).strip()
    except Exception:  # noqa: BLE001 - border: a foreign error whose text cannot be had
        text = ""
    name = type(error).__name__
    return f"{name}: {text[:500]}" if text else name


def may_cross(bridge: str, what: str, error: BaseException) -> BaseException:
    """Return what trio sees of an error of the asyncio side.

    Ordinary errors are themselves, asyncio's `TimeoutError` included. A cancel that nobody
    asked for, an exit and a `GeneratorExit`, each of which would mean something else in
    trio, become errors of the bridge. A group loses its cancels when errors are left.
    """
    match error:
        case asyncio.CancelledError():
            return ForeignCancelledError(
                bridge, f"lost {what}: the asyncio side cancelled it, by nobody's request here"
            )
        case KeyboardInterrupt() | SystemExit():
            return BridgeClosedError(bridge, f"was ended by {said(error)} in {what}", began=True)
        case GeneratorExit():
            return BridgeError(bridge, f"got {said(error)} out of {what}, which is no result")
        case BaseExceptionGroup():
            return _group(bridge, what, error)
        case _:
            return error


def _group(bridge: str, what: str, group: BaseExceptionGroup[BaseException]) -> BaseException:
    own = (asyncio.CancelledError, KeyboardInterrupt, SystemExit, GeneratorExit)
    foreign, rest = group.split(own)
    if foreign is None:
        return group
    if rest is not None:
        rest.__cause__ = group.__cause__
        return rest
    exits, _ = foreign.split((KeyboardInterrupt, SystemExit))
    return may_cross(bridge, what, _first(foreign if exits is None else exits))


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first leaf."""
    match inner := group.exceptions[0]:
        case BaseExceptionGroup():
            return _first(inner)
        case _:
            return inner
