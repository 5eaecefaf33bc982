"""Names under which a server's tools are exposed: pure, stable, what every provider takes.

The wire always gets the original name. An exposed name depends only on the
names of the same server, never on the order in which servers or tools come.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable
from typing import Final

LIMIT: Final = 64
_ILLEGAL: Final = re.compile(r"[^A-Za-z0-9_-]")
_SUFFIX: Final = 9  # an underscore and eight hexadecimal digits


def clean(name: str) -> str:
    """Return ``name`` with each character that providers refuse replaced by ``_``."""
    return _ILLEGAL.sub("_", name)


def exposed_names(originals: Iterable[str], prefix: str | None = None) -> dict[str, str]:
    """Map each original name to its exposed one: ``prefix__name``, cleaned, unique, 1 to 64 long.

    A name that is legal as it stands keeps its form. One that was cleaned and
    then equals another, or that is too long, ends in a hash of its original.
    """
    distinct = sorted(set(originals))
    head = "" if prefix is None else f"{prefix}__"
    plain = {original: head + clean(original) for original in distinct}
    count = Counter(plain.values())
    # Names that nobody changed are taken first, so that no hash can push them aside.
    exposed = {
        original: name
        for original, name in plain.items()
        if len(name) <= LIMIT and (count[name] == 1 or clean(original) == original)
    }
    taken = set(exposed.values())
    for original in distinct:
        if original not in exposed:
            name = _hashed(plain[original], original, taken)
            exposed[original] = name
            taken.add(name)
    return exposed


def _hashed(plain: str, original: str, taken: set[str]) -> str:
    for attempt in range(len(taken) + 1):
        seed = original if attempt == 0 else f"{original}\0{attempt}"
        digest = hashlib.sha256(seed.encode("utf-8", "surrogatepass")).hexdigest()[: _SUFFIX - 1]
        name = f"{plain[: LIMIT - _SUFFIX]}_{digest}"
        if name not in taken:
            return name
    raise AssertionError("more attempts than names cannot all be taken")  # pragma: no cover
