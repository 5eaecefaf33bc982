"""Frozen values that cost little: to make, and to import.

What may live here: what attrs does too, where it shows in a measurement.

`quick` makes values at the price of plain ones. A frozen class refuses
assignment, so attrs fills its instances through ``object.__setattr__``: about
five times the price of an assignment, for each field. Here an open twin of the
class is filled by plain assignments, and its instance becomes one of the frozen
class as the last step of its ``__init__``. Nobody sees it before.

`ByFields` has the methods that attrs writes and compiles for each class, once
for all: for events, records and media blocks that is a tenth of our import.
"""

from __future__ import annotations

from typing import Any, TypeVar, cast

import attrs

ClassT = TypeVar("ClassT", bound=type[Any])


class ByFields:
    """Equality, hash and repr of a frozen attrs class by its fields.

    The class says ``@attrs.frozen(eq=False, repr=False)``. For values that are
    seldom compared: it is slower than what attrs writes.
    """

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return _values(self) == _values(other)

    def __hash__(self) -> int:
        return hash((type(self), _values(self)))

    def __repr__(self) -> str:
        shown = [f"{name}={getattr(self, name)!r}" for name in _names(type(self))]
        return f"{type(self).__name__}({', '.join(shown)})"


def _names(cls: type[Any]) -> list[str]:
    return [field.name for field in attrs.fields(cls)]


def _values(value: object) -> tuple[object, ...]:
    return tuple([getattr(value, name) for name in _names(type(value))])


def quick(cls: ClassT) -> ClassT:
    """A stand-in for the frozen attrs class ``cls`` that makes the same values quicker.

    Only for calling, ``quick(cls)(...)``, and worth it only where a batch does
    so for each of its calls: what comes out is of type ``cls``.
    """

    def close(self: Any) -> None:
        self.__class__ = cls

    body = {
        # Both, or Python looks the methods up at each assignment.
        "__setattr__": object.__setattr__,
        "__delattr__": object.__delattr__,
        "__attrs_post_init__": close,
    }
    twin = attrs.make_class(
        cls.__name__,
        {},
        (cls,),
        body,
        slots=True,
        init=True,
        eq=False,
        repr=False,
        on_setattr=attrs.setters.NO_OP,
    )
    return cast("ClassT", twin)
