"""Which module may import which: the layers of the library, held by reading its source.

Each rule is a function from sources to complaints. It is used twice: on the
project, where it must find nothing, and on small bad programs, where it must
find something. Rules on the code inside the modules are in ``test_code_rules.py``.
"""

from __future__ import annotations

import ast
import functools
import graphlib
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

# The part of the name after `trio_runner`; "" is `trio_runner/__init__.py` itself.
BELOW_ROOT = frozenset({"_core", "abc", "_shell", "_journal", "events", "records", "sessions"})
MAY_IMPORT: Mapping[str, frozenset[str]] = {
    "_core": frozenset({"_core"}),
    "events": frozenset({"_core"}),
    "records": frozenset({"_core"}),
    "sessions": frozenset({"_core", "_journal"}),
    "abc": frozenset({"_core", "abc"}),
    "_shell": frozenset({"_core", "abc", "_shell"}),
    "_journal": frozenset({"_core", "abc", "_journal"}),
    "": BELOW_ROOT,
    "testing": BELOW_ROOT | {"", "testing"},
    "_cli": BELOW_ROOT | {"", "testing", "_cli"},
}
THIRD_PARTY: Mapping[str, frozenset[str]] = {
    "_core": frozenset({"attrs"}),
    "events": frozenset(),
    "records": frozenset(),
    "sessions": frozenset(),
    "abc": frozenset({"attrs", "trio"}),
    "_shell": frozenset({"attrs", "trio"}),
    "_journal": frozenset({"attrs", "trio"}),
    "": frozenset(),
    "testing": frozenset({"attrs", "trio"}),
    "_cli": frozenset({"attrs", "trio", "click", "rich", "platformdirs"}),
}
# Heavy packages: one module or package each, which nothing imports by an import statement.
HEAVY: Mapping[str, frozenset[str]] = {
    "trio_runner._shell.function_tools": frozenset({"pydantic", "griffe"}),
    "trio_runner._shell.output_types": frozenset({"pydantic", "typing_extensions"}),
    "trio_runner.testing.strategies": frozenset({"hypothesis"}),
    "trio_runner.testing.pytest_plugin": frozenset({"pytest"}),
    "trio_runner.testing._pytest_sweep": frozenset({"pytest"}),
    "trio_runner.testing._pytest_options": frozenset({"pytest"}),
    "trio_runner.testing._pytest_fixtures": frozenset({"pytest"}),
    "trio_runner.testing.strategies._damage": frozenset({"hypothesis"}),
    "trio_runner.testing.strategies._hooks": frozenset({"hypothesis"}),
    "trio_runner.testing.strategies._journals": frozenset({"hypothesis"}),
    "trio_runner.testing.strategies._replies": frozenset({"hypothesis"}),
    "trio_runner.testing.strategies._tools": frozenset({"hypothesis"}),
    "trio_runner.testing.strategies._values": frozenset({"hypothesis"}),
    "trio_runner._journal.codec": frozenset({"cattrs", "msgspec"}),
    "trio_runner._journal._verify": frozenset(),  # these three load the codec
    "trio_runner._journal._file": frozenset(),
    "trio_runner._journal._admin": frozenset(),
    "trio_runner.testing.session_machine": frozenset({"hypothesis"}),
    "trio_runner.testing._session_model": frozenset({"hypothesis"}),
    "trio_runner.testing._session_play": frozenset({"hypothesis"}),
    "trio_runner.testing.strategies._turns": frozenset({"hypothesis"}),
}
# Where `importlib.import_module` may stand, and why.
DYNAMIC_IMPORTS: Mapping[str, str] = {
    "trio_runner._shell.tools": "loads pydantic with the first plain function",
    "trio_runner._shell.structured": "loads pydantic with the first type as an output",
    "trio_runner._shell.output_schema": "names the missing extra; a schema needs jsonschema",
    "trio_runner._journal.sqlite": "loads sqlite3 and the codec with the first SqliteJournal",
    "trio_runner.testing._inline_sqlite": "opens such a file without a thread",
    "trio_runner._cli": "names the missing extra instead of a traceback",
    "trio_runner._cli.check_target": "loads the factory that the user names",
    "trio_runner.testing._kill_child": "loads what is to be killed, by its name",
    "trio_runner_adapters.asyncio_bridge._host": "loads uvloop where it is installed and wanted",
}
# Tests that need an extra have one of these names, so that `.ci/run` can leave them out.
NEEDS_AN_EXTRA = ("test_mcp_", "test_demo_", "test_cli_", "test_others_")
EXTRAS = frozenset(
    {"mcp", "mcp_types", "click", "rich", "platformdirs", "trio_runner_adapters"}
    | {
        "anyio",
        "fastapi",
        "fastmcp",
        "h2",
        "httpcore",
        "httpcore2",
        "tricycle",
        "trio_websocket",
        "websockets",
    }
)
# Adapters that need no extra.
NEED_NONE = ("trio_runner_adapters.asyncio_bridge", "trio_runner_adapters.asyncio_host")
# What the pure core would use to look at the world outside.
IMPURE = frozenset(
    "asyncio concurrent getpass glob http io logging multiprocessing os platform queue random "
    "sched secrets select selectors shutil signal socket sqlite3 ssl subprocess tempfile threading "
    "time urllib warnings".split()
)
IMPURE_CALLS = frozenset("open print now utcnow today uuid1 uuid4".split())
PRIVATE_TRIO = "trio_runner.testing._determinism"


@dataclass(frozen=True)
class Source:
    """One module: its dotted name and its syntax tree; ``package`` if it is an ``__init__``."""

    module: str
    tree: ast.Module
    package: bool = False

    def at(self, node: ast.stmt | ast.expr, what: str) -> str:
        return f"{self.module}:{node.lineno}: {what}"


@functools.cache
def project(folder: str) -> tuple[Source, ...]:
    """Every module below ``folder``, named as it is imported."""
    top = ROOT / folder
    sources: list[Source] = []
    for path in sorted(top.rglob("*.py")):
        parts = path.relative_to(top.parent).with_suffix("").parts
        package = parts[-1] == "__init__"
        name = ".".join(parts[:-1] if package else parts)
        sources.append(Source(name, ast.parse(path.read_bytes(), str(path)), package))
    assert sources, f"no source below {top}"
    return tuple(sources)


def library() -> tuple[Source, ...]:
    return project("trio_runner")


def adapters() -> tuple[Source, ...]:
    return project("adapters/trio_runner_adapters")


def snippet(code: str, module: str) -> Source:
    return Source(module, ast.parse(textwrap.dedent(code)))


# --- reading imports ------------------------------------------------------------

Import = ast.Import | ast.ImportFrom


def imported(source: Source, within: ast.AST | None = None) -> Iterator[tuple[Import, str]]:
    """Each import statement with the full name of what it brings, relative ones resolved."""
    for node in ast.walk(within or source.tree):
        match node:
            case ast.Import(names=names):
                yield from ((node, alias.name) for alias in names)
            case ast.ImportFrom(module=module, names=names, level=level):
                base = [module] if module else []
                if level:
                    parents = source.module.split(".")
                    base = parents[: len(parents) - level + source.package] + base
                yield from ((node, ".".join([*base, alias.name])) for alias in names)
            case _:
                pass


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__")


def layer_of(name: str) -> str | None:
    """The layer of something in the library; None outside; "" for a name of the root."""
    top, _, rest = name.partition(".")
    layer = rest.partition(".")[0]
    if top != "trio_runner":
        return None
    return layer if layer in MAY_IMPORT else ""


def calls_of(source: Source, *names: str) -> Iterator[ast.Call]:
    """Calls whose function is called, or ends in, one of ``names``."""
    for node in ast.walk(source.tree):
        match node:
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)) if name in names:
                yield node
            case _:
                pass


# --- the rules ------------------------------------------------------------------


def without_layer(sources: Iterable[Source]) -> list[str]:
    """Modules that belong to no layer."""
    return [
        f"{source.module}: no layer; give it one in MAY_IMPORT"
        for source in sources
        if source.module != "trio_runner" and layer_of(source.module) in {"", None}
    ]


def against_the_layers(sources: Iterable[Source]) -> list[str]:
    """Imports inside the library that point up or sideways."""
    return [
        source.at(node, f"{layer_of(source.module) or 'the root'} may not import {name}")
        for source in sources
        for node, name in imported(source)
        if (target := layer_of(name)) is not None
        and target not in MAY_IMPORT[layer_of(source.module) or ""]
    ]


def foreign_packages(sources: Iterable[Source]) -> list[str]:
    """Imports of third-party packages that the layer does not list."""
    found: list[str] = []
    for source in sources:
        allowed = THIRD_PARTY[layer_of(source.module) or ""] | HEAVY.get(source.module, frozenset())
        for node, name in imported(source):
            top = name.partition(".")[0]
            ours = top in {"trio_runner", "trio_runner_adapters"}  # other rules look at these
            if not ours and top not in sys.stdlib_module_names and top not in allowed:
                found.append(source.at(node, f"{top} is not among this layer's packages"))
    return found


def heavy_modules_imported(sources: Iterable[Source]) -> list[str]:
    """Import statements that would load pydantic, griffe or hypothesis along the way."""
    return [
        source.at(node, f"{name} loads {', '.join(sorted(HEAVY[heavy]))}")
        for source in sources
        for node, name in imported(source)
        for heavy in HEAVY
        if source.module not in HEAVY and f"{name}.".startswith(f"{heavy}.")
    ]


def impure(sources: Iterable[Source]) -> list[str]:
    """Clock, randomness, files and threads in the core."""
    found: list[str] = []
    for source in sources:
        if layer_of(source.module) != "_core":
            continue
        found += [
            source.at(node, f"the core is pure, it may not import {name}")
            for node, name in imported(source)
            if name.partition(".")[0] in IMPURE
        ]
        found += [
            source.at(call, f"the core is pure, no {ast.unparse(call.func)}()")
            for call in calls_of(source, *IMPURE_CALLS)
        ]
    return found


def adapters_imported(sources: Iterable[Source]) -> list[str]:
    """Imports of the adapters by the library; the command line may."""
    return [
        source.at(node, "only _cli may import the adapters")
        for source in sources
        for node, name in imported(source)
        if name.partition(".")[0] == "trio_runner_adapters" and layer_of(source.module) != "_cli"
    ]


def reached(source: Source, bound: set[str]) -> Iterator[tuple[ast.Attribute, str]]:
    """Private attributes of the names in ``bound``, as in ``tr._core``."""
    for node in ast.walk(source.tree):
        match node:
            case ast.Attribute(value=ast.Name(id=name), attr=attr):
                if name in bound and is_private(attr):
                    yield node, f"{name}.{attr}"
            case _:
                pass


def private_names_used(sources: Iterable[Source]) -> list[str]:
    """Private names of the library in the adapters: imported, or reached through a module."""
    found: list[str] = []
    for source in sources:
        ours = [(node, name) for node, name in imported(source) if layer_of(name) is not None]
        for node, name in ours:
            if any(is_private(part) for part in name.split(".")):
                found.append(source.at(node, f"{name} is private"))
        bound = {alias.asname or alias.name for node, _ in ours for alias in node.names}
        found += [source.at(node, f"{name} is private") for node, name in reached(source, bound)]
    return found


def private_trio(sources: Iterable[Source]) -> list[str]:
    """Private names of trio anywhere but in their one place."""
    found: list[str] = []
    for source in sources:
        if source.module == PRIVATE_TRIO:
            continue
        private = [
            (node, name)
            for node, name in imported(source)
            if name.startswith(("trio._", "trio.testing._"))
        ]
        for node, name in [*private, *reached(source, {"trio"})]:
            found.append(source.at(node, f"{name} is private to trio; use {PRIVATE_TRIO}"))
    return found


def inside_functions(sources: Iterable[Source]) -> list[str]:
    """Import statements inside a function."""
    return sorted(
        {
            source.at(node, f"imports {name} inside {function.name}()")
            for source in sources
            for function in ast.walk(source.tree)
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
            for node, name in imported(source, function)
        }
    )


def dynamic(sources: Iterable[Source]) -> list[str]:
    """Imports by a call, outside the listed places."""
    return [
        source.at(call, f"{ast.unparse(call.func)}() here is not among DYNAMIC_IMPORTS")
        for source in sources
        if source.module not in DYNAMIC_IMPORTS
        for call in calls_of(source, "import_module", "__import__")
    ]


def cycles(sources: Iterable[Source]) -> list[str]:
    """Modules that need each other while they load; ``if TYPE_CHECKING`` does not count."""
    sources = list(sources)
    names = {source.module for source in sources}
    graph: dict[str, set[str]] = {}
    for source in sources:
        needs = graph.setdefault(source.module, set())
        for statement in source.tree.body:
            match statement:
                case ast.If(
                    test=ast.Name(id="TYPE_CHECKING") | ast.Attribute(attr="TYPE_CHECKING")
                ):
                    continue
                case _:
                    for _, name in imported(source, statement):
                        module = name if name in names else name.rpartition(".")[0]
                        needs |= {module} & names - {source.module}
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return [" needs ".join(reversed(error.args[1]))]
    return []


def misnamed_tests(sources: Iterable[Source]) -> list[str]:
    """Test modules that import an extra without saying so by their name."""
    return [
        source.at(node, f"imports {name}; name the file {' or '.join(NEEDS_AN_EXTRA)}*")
        for source in sources
        if (file := source.module.rpartition(".")[2]).startswith("test_")
        and not file.startswith(NEEDS_AN_EXTRA)
        for node, name in imported(source)
        if name.partition(".")[0] in EXTRAS
        and not f"{name}.".startswith(tuple(f"{one}." for one in NEED_NONE))
    ]


# --- the project keeps them -----------------------------------------------------

Rule = Callable[[Iterable[Source]], list[str]]


def test_every_module_of_the_library_has_a_layer() -> None:
    assert without_layer(library()) == []


def test_imports_point_one_way() -> None:
    assert against_the_layers(library()) == []


def test_each_layer_keeps_to_its_third_party_packages() -> None:
    assert foreign_packages(library()) == []


def test_pydantic_griffe_and_hypothesis_are_never_loaded_along_the_way() -> None:
    assert heavy_modules_imported((*library(), *adapters())) == []


def test_the_core_is_pure() -> None:
    assert impure(library()) == []


def test_only_the_command_line_imports_the_adapters() -> None:
    assert adapters_imported(library()) == []


def test_adapters_use_public_names_only() -> None:
    assert private_names_used(adapters()) == []


def test_private_names_of_trio_stand_in_one_place() -> None:
    assert private_trio((*library(), *adapters())) == []


def test_nothing_is_imported_inside_a_function() -> None:
    assert inside_functions((*library(), *adapters())) == []


def test_imports_by_a_call_stand_in_the_listed_places() -> None:
    assert dynamic((*library(), *adapters())) == []


def test_no_modules_need_each_other_while_they_load() -> None:
    assert cycles((*library(), *adapters())) == []


def test_tests_that_need_an_extra_are_named_so() -> None:
    assert misnamed_tests(project("tests")) == []


def test_the_gate_leaves_out_tests_by_those_names() -> None:
    gate = (ROOT / ".ci" / "run").read_text("utf-8")

    assert [name for name in NEEDS_AN_EXTRA if f"--ignore-glob='*/{name}*'" not in gate] == []


def test_the_adapters_folder_is_no_package() -> None:
    # PyPI has a package called `adapters`: with the file, ours would shadow it.
    assert not (ROOT / "adapters" / "__init__.py").exists()


# --- the rules find what they are for -------------------------------------------

CORE, SHELL, TESTING = "trio_runner._core.x", "trio_runner._shell.x", "trio_runner.testing.x"
CLI, ADAPTER = "trio_runner._cli.x", "trio_runner_adapters.x"


@pytest.mark.parametrize(
    ("rule", "module", "code"),
    [
        (without_layer, "trio_runner.extras", ""),
        (against_the_layers, CORE, "import trio_runner._shell.runner as runner"),
        (against_the_layers, CORE, "import trio_runner"),
        (against_the_layers, CORE, "from trio_runner import Message"),
        (against_the_layers, CORE, "from .. import abc"),
        (against_the_layers, CORE, "from .._shell.runner import ToolRunner"),
        (against_the_layers, "trio_runner.abc", "from trio_runner._shell import runner"),
        (against_the_layers, SHELL, "from trio_runner import _journal"),
        (against_the_layers, "trio_runner._journal.x", "import trio_runner._shell.finishing"),
        (against_the_layers, SHELL, "def f():\n    import trio_runner.testing"),
        (against_the_layers, "trio_runner", "import trio_runner.testing"),
        (against_the_layers, TESTING, "import trio_runner._cli"),
        (foreign_packages, CORE, "import trio"),
        (foreign_packages, CORE, "from attr import define"),
        (foreign_packages, "trio_runner._shell.runner", "import pydantic"),
        (foreign_packages, TESTING, "from hypothesis import given"),
        (foreign_packages, "trio_runner._cli.demo", "import mcp.types"),
        (heavy_modules_imported, "trio_runner", "import trio_runner._shell.function_tools as f"),
        (heavy_modules_imported, "trio_runner", "from trio_runner._shell import function_tools"),
        (heavy_modules_imported, "trio_runner.testing", "import trio_runner.testing.strategies"),
        (heavy_modules_imported, SHELL, "from trio_runner._shell.function_tools import f"),
        (impure, CORE, "import time"),
        (impure, CORE, "from random import choice"),
        (impure, CORE, "def f(): return open('x')"),
        (impure, CORE, "started = datetime.datetime.now()"),
        (adapters_imported, SHELL, "import trio_runner_adapters.mcp"),
        (adapters_imported, TESTING, "from trio_runner_adapters import mcp"),
        (private_names_used, ADAPTER, "import trio_runner._core.values as v"),
        (private_names_used, ADAPTER, "from trio_runner import _core"),
        (private_names_used, ADAPTER, "from trio_runner.abc import _hidden"),
        (private_names_used, ADAPTER, "import trio_runner as tr\ntr._core"),
        (private_names_used, ADAPTER, "from trio_runner import abc\nabc._x()"),
        (private_trio, SHELL, "import trio._core._run as run"),
        (private_trio, SHELL, "import trio\ntrio._core"),
        (inside_functions, SHELL, "def f():\n    import json"),
        (inside_functions, SHELL, "class C:\n  async def f(self):\n    import json"),
        (inside_functions, SHELL, "def f():\n  if x:\n    from json import loads"),
        (dynamic, SHELL, "import importlib\nimportlib.import_module('mcp')"),
        (dynamic, SHELL, "def f():\n    return __import__('mcp')"),
        (misnamed_tests, "tests.test_runner", "import mcp"),
        (misnamed_tests, "tests.test_runner", "def test_x():\n    import trio_runner_adapters.mcp"),
    ],
)
def test_a_rule_finds_what_it_is_for(rule: Rule, module: str, code: str) -> None:
    assert len(rule([snippet(code, module)])) == 1


@pytest.mark.parametrize(
    ("rule", "module", "code"),
    [
        (without_layer, "trio_runner", ""),
        (without_layer, "trio_runner._shell.deep.x", ""),
        (against_the_layers, CORE, "import trio_runner._core.values as v"),
        (against_the_layers, CORE, "from . import values"),
        (against_the_layers, SHELL, "from trio_runner.abc import Tool"),
        (against_the_layers, CLI, "from trio_runner.testing import call"),
        (against_the_layers, TESTING, "import trio_runner as tr"),
        (foreign_packages, CORE, "import json, attrs, collections.abc"),
        (foreign_packages, "trio_runner._shell.function_tools", "import pydantic, griffe"),
        (heavy_modules_imported, SHELL, "import trio_runner._shell.tools"),
        (impure, SHELL, "import time"),
        (impure, CORE, "import datetime, uuid, pathlib"),
        (adapters_imported, CLI, "from trio_runner_adapters.mcp import X"),
        (private_names_used, ADAPTER, "import trio_runner as tr\ntr.abc.Tool"),
        (private_names_used, ADAPTER, "from trio_runner import __version__"),
        (private_names_used, ADAPTER, "import trio_runner_adapters._finishing"),
        (private_trio, PRIVATE_TRIO, "import trio._core._run as run"),
        (private_trio, TESTING, "import trio\ntrio.__file__"),
        (inside_functions, SHELL, "import json\ndef f(): return json"),
        (misnamed_tests, "tests.test_mcp_toolset", "import mcp"),
        (misnamed_tests, "tests.test_runner", "import trio"),
        (misnamed_tests, "tests.test_x", "import trio_runner_adapters.asyncio_bridge._call as c"),
        (misnamed_tests, "tests.servers.dies", "import mcp"),
        (dynamic, "trio_runner._shell.tools", "import importlib\nimportlib.import_module('x')"),
    ],
)
def test_a_rule_lets_good_code_pass(rule: Rule, module: str, code: str) -> None:
    assert rule([snippet(code, module)]) == []


def test_relative_imports_of_a_package_start_at_itself() -> None:
    package = Source("trio_runner._core", ast.parse("from .values import Message"), package=True)

    assert [name for _, name in imported(package)] == ["trio_runner._core.values.Message"]


def test_a_cycle_is_found_and_one_for_the_type_checker_is_none() -> None:
    one = snippet("from trio_runner._shell import two", "trio_runner._shell.one")
    two = snippet("from trio_runner._shell.one import f", "trio_runner._shell.two")
    typed = snippet(
        "if TYPE_CHECKING:\n    from trio_runner._shell.one import f", "trio_runner._shell.two"
    )

    assert len(cycles([one, two])) == 1
    assert cycles([one, typed]) == []


def test_a_folder_without_sources_is_an_error_not_a_pass() -> None:
    with pytest.raises(AssertionError, match="no source"):
        project("no_such_folder")
