"""What ``import trio_runner`` loads, seen from a fresh interpreter."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

# Each is several times as dear to load as trio, or belongs to an extra.
HEAVY = frozenset(
    "mcp mcp_types pydantic pydantic_core griffe hypothesis click rich cattrs msgspec".split()
)


def loaded_by(code: str) -> set[str]:
    """The top-level packages in ``sys.modules`` after ``code`` ran in its own interpreter."""
    tell = "import json, sys; print(json.dumps([name.split('.')[0] for name in sys.modules]))"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\n{tell}"], stdout=subprocess.PIPE, check=True, text=True
    )
    return set(json.loads(done.stdout))


@pytest.mark.parametrize("module", ["trio_runner", "trio_runner.abc", "trio_runner.testing"])
def test_importing_the_library_loads_nothing_heavy(module: str) -> None:
    loaded = loaded_by(f"import {module}")

    assert loaded & (HEAVY | {"trio_runner_adapters"}) == set()
    assert "trio" in loaded  # so that an import that did nothing would not pass


def test_the_look_at_the_modules_sees_a_heavy_one() -> None:
    assert "pydantic" in loaded_by("import pydantic")


def test_the_first_plain_function_loads_pydantic() -> None:
    code = "import trio_runner\n@trio_runner.tool\ndef greet(name: str) -> str: return name"

    assert {"pydantic", "griffe"} <= loaded_by(code)


def test_the_first_sqlite_journal_loads_the_codec() -> None:
    code = "import trio_runner\ntrio_runner.SqliteJournal('never-made.db')"

    assert {"cattrs", "msgspec"} <= loaded_by(code)


def test_the_names_that_others_build_on_are_at_the_top() -> None:
    names = (
        "CallStatus EndReason HistoryRollbackState MemoryJournal Message Model ModelRequest "
        "Journal Observer PlannedToolCall RequestParams SqliteJournal StopReason Tool ToolAgent "
        "ToolCall ToolContext ToolResult ToolRunner ToolRunnerHooks Toolset plan_tool_calls "
        "reconcile_interrupted_history run tool"
    )
    code = (
        "import trio_runner as tr\n"
        f"missing = [name for name in {names.split()} if not hasattr(tr, name)]\n"
        "assert not missing, missing"
    )

    assert "trio_runner" in loaded_by(code)
