"""`show_as_public`: public names are shown under their public path.

Without it ``help()``, tracebacks and reprs would name the private module that a
class or function is written in, which nobody should import from.
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from typing import Any


def show_as_public(module: str, names: Mapping[str, Any]) -> None:
    """Let the classes and functions in ``names`` that are ours say they are of ``module``."""
    for name, value in names.items():
        ours = getattr(value, "__module__", "").startswith("trio_runner._")
        if ours and isinstance(value, type | types.FunctionType) and value.__name__ == name:
            value.__module__ = module
