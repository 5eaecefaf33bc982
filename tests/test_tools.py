"""`tool` and `as_tool`."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from trio_runner._shell.tools import as_tool, tool
from trio_runner.abc import Tool


def greet(name: str) -> str:
    """Greet."""
    return f"hello {name}"


def test_a_decorator_without_options_makes_a_tool() -> None:
    assert tool(greet).name == "greet"


def test_a_decorator_with_options_makes_a_tool_with_them() -> None:
    made = tool(name="hello", timeout=5)(greet)

    assert (made.name, made.timeout, made.description) == ("hello", 5, "Greet.")


def test_an_unknown_option_is_refused() -> None:
    wrong: Any = {"tiemout": 5}

    with pytest.raises(TypeError, match="tiemout"):
        tool(greet, **wrong)


def test_a_tool_passes_through() -> None:
    made = tool(greet)

    assert as_tool(made) is made


def test_a_plain_function_becomes_a_tool() -> None:
    assert as_tool(greet).name == "greet"


@pytest.mark.parametrize("wrong", ["greet", 3, None, [greet]], ids=repr)
def test_anything_else_is_refused_with_what_is_accepted(wrong: Any) -> None:
    with pytest.raises(TypeError, match="expected functions, Tool objects, agents and toolsets"):
        as_tool(wrong)


async def answer(arguments: object, context: object) -> int:
    return 1


@pytest.mark.parametrize("wrong", ["greet", Tool("t", "", {}, answer)], ids=["text", "tool"])
def test_tool_refuses_what_is_no_function(wrong: Any) -> None:
    with pytest.raises(TypeError, match="expected a function"):
        tool(wrong)


def test_without_pydantic_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "trio_runner._shell.function_tools", None)

    with pytest.raises(ImportError, match=r"needs pydantic and griffe.*pip install"):
        as_tool(greet)


def test_pydantic_is_loaded_with_the_first_plain_function_only() -> None:
    program = """
import sys
from trio_runner._shell.tools import as_tool
assert not {"pydantic", "griffe"} & set(sys.modules)
def f(): ...
as_tool(f)
assert {"pydantic", "griffe"} < set(sys.modules)
"""

    subprocess.run([sys.executable, "-c", program], check=True)
