"""`quick`: frozen values, made at the price of plain ones.

What may live here: how values that are made for every call come into being.

A frozen class refuses assignment, so attrs fills its instances through
``object.__setattr__``: about five times the price of an assignment, for each
field. Here an open twin of the class is filled by plain assignments, and its
instance becomes one of the frozen class as the last step of its ``__init__``.
Nobody sees it before.
"""

from __future__ import annotations

from typing import Any, TypeVar, cast

import attrs

ClassT = TypeVar("ClassT", bound=type[Any])


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
