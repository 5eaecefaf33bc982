"""The marks that decide where Ctrl-C may strike: the rules in the header of ``_shell/ki.py``.

The first half reads the source: each rule is a function from sources to
complaints, which finds nothing in the project and something in small bad
programs. The second half runs a turn and asks trio at every border whether
KeyboardInterrupt could come just there. That no function of the library is a
generator context manager is held by ``test_code_rules.py``.
"""

from __future__ import annotations

import ast
import functools
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest
import trio
import trio.testing

import trio_runner as tr
import trio_runner._shell.ki as ki
import trio_runner.events as ev
import trio_runner.records as r
from trio_runner.testing import ScriptedModel, call

ROOT = Path(__file__).parent.parent
KI = "trio_runner/_shell/ki.py"
#: The same for adapters, which know no private module of the library.
ADAPTERS_KI = "adapters/trio_runner_adapters/_unprotected.py"
MARK = "enable_ki_protection"
UNMARK = "disable_ki_protection"
TRAMPOLINES = frozenset({
    "call_unprotected", "call_pair_unprotected", "call_sync_unprotected", "await_unprotected",
})  # fmt: skip
HOOKS = frozenset({
    "before_llm_call", "after_llm_call", "before_tool_call", "after_tool_call",
    "after_turn_complete",
})  # fmt: skip
# Methods that users write, and the names that hold functions of theirs.
USER_METHODS = frozenset({"call_tool", "reply", "list_tools", "call", "summarise", *HOOKS})
USER_NAMES = frozenset({"fn", "hook", "policy", "approver", "rule"})
# What trampolines may be given: user code, and what user code returned.
FOR_TRAMPOLINES = USER_METHODS | USER_NAMES | {"returned", "said", "_fn", "_async_fn"}

# Not covered: programs on top of the library.
APPLICATIONS: Mapping[str, str] = {
    "trio_runner/_cli/": "runs under trio_runner.run(), where Ctrl-C comes at checkpoints only",
    "trio_runner/testing/": "plays the application around the library, in tests",
}
# Calls of user code without a trampoline, by file and the function they are in, and why.
DIRECT_CALLS: Mapping[tuple[str, str], str] = {
    ("trio_runner/_shell/agent.py", "reply"): "is itself called through a trampoline only",
    ("trio_runner/_shell/agent.py", "run_tools"): "list_tools: has trampolines of its own",
    ("trio_runner/_shell/agent.py", "__check_names"): "list_tools: has trampolines of its own",
    ("trio_runner/_shell/summarizer.py", "summarise"): "is itself called through a trampoline only",
    ("trio_runner/_shell/waiting_tools.py", "list_tools"): "called through a trampoline only",
    ("trio_runner/_shell/hooks.py", "__call__"): "a chain is a hook: called through a trampoline",
    ("trio_runner/_shell/function_tools.py", "call_by_name"): "stands for fn, called as fn is",
    ("trio_runner/_shell/function_tools.py", "_in_thread"): "Ctrl-C never strikes in a thread",
}
# What must be marked, class by class.
SURFACE: Mapping[str, Sequence[str]] = {
    "ToolRunner": (
        "__aenter__", "__aexit__", "__anext__", "until_done",
        "append_messages", "replace_history", "deny", "cancel_call",
    ),
    "ToolAgent": (
        "__aenter__", "__aexit__", "generate", "resume", "run_tools", "call_tool",
        "add_tool", "remove_tool", "add_agent_tool", "clone",
    ),
    "_Asker": ("__call__",),
    "AgentAnswers": ("structured", "resume_structured"),
    "AgentHistory": (
        "take_over",
        "deny_pending", "load_history", "clear", "choose_cut", "compact",
        "replace_with_summary", "trim",
    ),
    "CallContext": ("report_progress", "emit", "attach"),
    "Steps": ("_emit_delta",),
    "McpToolset": ("__aenter__", "__aexit__"),
}  # fmt: skip

# The classes among them that an application uses.
PUBLIC = ("ToolRunner", "ToolAgent", "AgentAnswers", "AgentHistory", "McpToolset")

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Source:
    """One file: its path inside the project and its syntax tree."""

    path: str
    tree: ast.Module
    parents: Mapping[ast.AST, ast.AST] = field(repr=False)

    def at(self, node: ast.expr | ast.stmt, what: str) -> str:
        return f"{self.path}:{node.lineno}: {what}"

    def functions_around(self, node: ast.AST) -> Iterator[Function]:
        """The functions around ``node``, innermost first."""
        here: ast.AST | None = self.parents.get(node)
        while here is not None:
            if isinstance(here, ast.FunctionDef | ast.AsyncFunctionDef):
                yield here
            here = self.parents.get(here)

    def functions(self) -> Iterator[Function]:
        for node in ast.walk(self.tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield node


def parse(code: str | bytes, path: str) -> Source:
    tree = ast.parse(code, path)
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    return Source(path, tree, parents)


@functools.cache
def project() -> tuple[Source, ...]:
    sources = tuple(
        parse(path.read_bytes(), path.relative_to(ROOT).as_posix())
        for folder in ("trio_runner", "adapters")
        for path in sorted((ROOT / folder).rglob("*.py"))
    )
    assert sources
    return sources


def last_name(node: ast.expr | None) -> str:
    """``c`` of ``c``, ``a.b.c`` and of a call of them."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case ast.Call(func=inner):
            return last_name(inner)
        case _:
            return ""


def has_mark(function: Function, mark: str = MARK) -> bool:
    return mark in map(last_name, function.decorator_list)


# --- child tasks ----------------------------------------------------------------


def is_start(node: ast.AST) -> bool:
    """Whether an expression is ``nursery.start_soon`` or ``nursery.start``."""
    match node:
        case ast.Attribute(attr="start_soon"):
            return True
        case ast.Attribute(value=nursery, attr="start"):
            return "nursery" in last_name(nursery)
        case _:
            return False


def starts(source: Source) -> Iterator[tuple[ast.expr, ast.expr | None]]:
    """Each start of a child task with the function it is given; None where that is unknown."""
    for node in ast.walk(source.tree):
        if not (isinstance(node, ast.Attribute) and is_start(node)):
            continue
        match source.parents[node]:
            case ast.Call(func=func, args=[root, *_]) if func is node:
                yield node, root
            case ast.Call(args=args) if node in args[:-1]:  # context.run(nursery.start_soon, fn)
                yield node, args[args.index(node) + 1]
            case _:
                yield node, None


def values_of(name: str, scope: Function) -> Iterator[ast.expr]:
    """What ``name`` is bound to within a function."""
    for node in ast.walk(scope):
        match node:
            case ast.Assign(targets=[ast.Name(id=bound)], value=value) if bound == name:
                yield value
            case _:
                pass


def functions_behind(root: ast.expr, source: Source) -> list[Function | None]:
    """The functions that an expression may stand for; None for one that cannot be found."""
    match root:
        case ast.IfExp(body=one, orelse=other):
            return [*functions_behind(one, source), *functions_behind(other, source)]
        case ast.Call(args=[inner, *_]) if last_name(root) == "partial":
            return functions_behind(inner, source)
        case ast.Name(id=name):
            for scope in source.functions_around(root):
                values = list(values_of(name, scope))
                if values:
                    return [each for value in values for each in functions_behind(value, source)]
        case ast.Attribute(attr=name):
            pass
        case _:
            return [None]
    found = [function for function in source.functions() if function.name == name]
    return [*found] or [None]


def covered(sources: Iterable[Source]) -> Iterator[Source]:
    for source in sources:
        if not source.path.startswith(tuple(APPLICATIONS)):
            yield source


def unmarked_roots(sources: Iterable[Source]) -> list[str]:
    """Functions that are the root of a child task and not protected.

    Not asked: the roots of system tasks and what ``run_sync_soon`` is given.
    trio protects both itself, as the tests further down see.
    """
    found: list[str] = []
    for source in covered(sources):
        for node, root in starts(source):
            if root is None:
                found.append(source.at(node, "a child task of an unknown function"))
                continue
            for function in functions_behind(root, source):
                if function is None:
                    found.append(source.at(node, f"cannot find {ast.unparse(root)}"))
                elif not has_mark(function):
                    found.append(source.at(function, f"the root {function.name} is not marked"))
    return found


# --- the surface ----------------------------------------------------------------


def unmarked_surface(sources: Iterable[Source], surface: Mapping[str, Sequence[str]]) -> list[str]:
    """Methods of `SURFACE` that are not marked, or are not there at all."""
    found: list[str] = []
    classes = {
        node.name: (source, node)
        for source in sources
        for node in source.tree.body
        if isinstance(node, ast.ClassDef)
    }
    for name, methods in surface.items():
        if name not in classes:
            found.append(f"there is no class {name}")
            continue
        source, node = classes[name]
        there = {each.name: each for each in node.body if isinstance(each, Function)}
        for method in methods:
            if method not in there:
                found.append(source.at(node, f"{name} has no method {method}"))
            elif not has_mark(there[method]):
                found.append(source.at(there[method], f"{name}.{method} is not marked"))
    return found


def unlisted_methods(sources: Iterable[Source], surface: Mapping[str, Sequence[str]]) -> list[str]:
    """Public async methods of these classes that are neither marked nor user code."""
    return [
        source.at(method, f"{node.name}.{method.name} is public, async and not marked")
        for source in sources
        for node in source.tree.body
        if isinstance(node, ast.ClassDef) and node.name in surface
        for method in node.body
        if isinstance(method, ast.AsyncFunctionDef)
        and not method.name.startswith("_")
        and not has_mark(method)
        and not has_mark(method, "overload")  # has no body
        and method.name not in USER_METHODS
    ]


# --- trampolines ----------------------------------------------------------------


def long_trampolines(sources: Iterable[Source]) -> list[str]:
    """Unprotected functions elsewhere than in ``ki.py``, or with more than one statement."""
    found: list[str] = []
    for source in sources:
        if source.path not in (KI, ADAPTERS_KI):
            found += [
                source.at(node, f"{UNMARK} belongs into {KI}")
                for node in ast.walk(source.tree)
                if isinstance(node, ast.Name | ast.Attribute) and last_name(node) == UNMARK
            ]
            continue
        for function in source.functions():
            if not has_mark(function, UNMARK):
                if function.name in TRAMPOLINES:
                    found.append(source.at(function, f"{function.name} lets no Ctrl-C in"))
                continue
            body = function.body
            if ast.get_docstring(function) is not None:
                body = body[1:]
            if function.name not in TRAMPOLINES:
                found.append(source.at(function, f"{function.name} is no known trampoline"))
            match body:
                case [ast.Return(value=ast.Call() | ast.Await())]:
                    pass
                case _:
                    found.append(source.at(function, f"{function.name} does more than one call"))
    return found


def wrong_freight(sources: Iterable[Source]) -> list[str]:
    """What goes through a trampoline and is no user code: a journal, an observer, our own."""
    found: list[str] = []
    for source in sources:
        for node in ast.walk(source.tree):
            match node:
                case ast.Call(args=args) if last_name(node) in TRAMPOLINES:
                    if not args or last_name(args[0]) not in FOR_TRAMPOLINES:
                        what = ast.unparse(args[0]) if args else "nothing"
                        found.append(source.at(node, f"{what} goes through a trampoline"))
                case _:
                    pass
    return found


def direct_calls(sources: Iterable[Source]) -> list[str]:
    """Calls of user code from the shell that go through no trampoline."""
    found: list[str] = []
    for source in sources:
        if not source.path.startswith("trio_runner/_shell/") or source.path == KI:
            continue
        for node in ast.walk(source.tree):
            match node:
                case ast.Call(func=ast.Attribute(attr=name)) if name in USER_METHODS:
                    pass
                case ast.Call(func=ast.Name(id=name)) if name in USER_NAMES:
                    pass
                case _:
                    continue
            around = next((each.name for each in source.functions_around(node)), "")
            if (source.path, around) not in DIRECT_CALLS:
                found.append(source.at(node, f"{name} is called without a trampoline"))
    return found


# --- the project keeps them -----------------------------------------------------

Rule = Callable[[Iterable[Source]], list[str]]


def surface_of_a_runner(sources: Iterable[Source]) -> list[str]:
    surface = {"ToolRunner": ("__anext__", "deny")}
    return [*unmarked_surface(sources, surface), *unlisted_methods(sources, surface)]


@pytest.mark.parametrize("rule", [unmarked_roots, long_trampolines, wrong_freight, direct_calls])
def test_the_project_keeps(rule: Rule) -> None:
    assert rule(project()) == []


def test_the_surface_is_marked() -> None:
    assert unmarked_surface(project(), SURFACE) == []
    assert unlisted_methods(project(), {name: SURFACE[name] for name in PUBLIC}) == []


def test_the_rules_see_the_roots_and_trampolines_of_the_project() -> None:
    # A rule that reads nothing would find nothing.
    shell = [source for source in project() if "/_shell/" in source.path]
    roots = {
        function.name
        for source in shell
        for _, root in starts(source)
        if root is not None
        for function in functions_behind(root, source)
        if function is not None
    }
    assert {"_run", "_child", "_shielded"} <= roots
    ours = next(source for source in shell if source.path == KI)
    assert {each.name for each in ours.functions() if has_mark(each, UNMARK)} == TRAMPOLINES
    freight = {
        last_name(node.args[0])
        for source in shell
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Call) and last_name(node) in TRAMPOLINES
    }
    assert freight >= {"call_tool", "reply", "list_tools", "call", "fn", "hook"}


def test_each_stated_exception_is_still_needed() -> None:
    by_path = {source.path: source for source in project()}
    for path, name in DIRECT_CALLS:
        calls = [
            node
            for function in by_path[path].functions()
            if function.name == name
            for node in ast.walk(function)
            if isinstance(node, ast.Call) and last_name(node) in USER_METHODS | USER_NAMES
        ]
        assert calls, (path, name)


# --- the rules find what they are for -------------------------------------------

BAD: list[tuple[Rule, str]] = [
    (unmarked_roots, "async def f(): ...\ndef g(nursery):\n    nursery.start_soon(f, 1)"),
    (unmarked_roots, "class C:\n  async def f(self): ...\n  def g(self, n): n.start_soon(self.f)"),
    (
        unmarked_roots,
        (
            "@enable_ki_protection\nasync def f(): ...\nasync def h(): ...\n"
            "def g(n):\n    child = f if x else h\n    n.start_soon(child)"
        ),
    ),
    (unmarked_roots, "async def f(): ...\ndef g(n):\n    n.start_soon(functools.partial(f, 1))"),
    (
        unmarked_roots,
        "async def f(): ...\ndef g(n):\n    link = partial(f, 1)\n    run(n.start_soon, link)",
    ),
    (unmarked_roots, "def g(n, async_fn):\n    n.start_soon(async_fn)"),
    (unmarked_roots, "def g(n):\n    n.start_soon(lambda: f())"),
    (unmarked_roots, "def g(n):\n    spawn = n.start_soon\n    spawn(f)"),
    (unmarked_roots, "async def f(): ...\nasync def g(n):\n    await n.the_nursery.start(f)"),
    (unmarked_roots, "@disable_ki_protection\nasync def f(): ...\ndef g(n):\n    n.start_soon(f)"),
    (surface_of_a_runner, "class Other: ..."),
    (surface_of_a_runner, "class ToolRunner:\n    @enable_ki_protection\n    def deny(self): ..."),
    (
        surface_of_a_runner,
        (
            "class ToolRunner:\n    async def __anext__(self): ...\n"
            "    @trio.lowlevel.enable_ki_protection\n    def deny(self): ..."
        ),
    ),
    (
        surface_of_a_runner,
        (
            "class ToolRunner:\n    @enable_ki_protection\n    async def __anext__(self): ...\n"
            "    @enable_ki_protection\n    def deny(self): ...\n    async def drive(self): ..."
        ),
    ),
    (long_trampolines, "@trio.lowlevel.disable_ki_protection\ndef f(fn):\n    return fn()"),
    (long_trampolines, "free = trio.lowlevel.disable_ki_protection(f)"),
    (wrong_freight, "async def f():\n    await call_unprotected(ticket.wait)"),
    (wrong_freight, "async def f():\n    await ki.await_unprotected(self._session.aclose())"),
    (wrong_freight, "def f():\n    ki.call_sync_unprotected(session.append, records)"),
    (wrong_freight, "def f():\n    call_sync_unprotected(observer.on_event, event)"),
    (wrong_freight, "async def f():\n    await call_unprotected(self._journal.open, name)"),
    (wrong_freight, "async def f():\n    await call_unprotected(self._run_tools)"),
    (wrong_freight, "async def f(given):\n    await call_unprotected(*given)"),
    (direct_calls, "async def f(self):\n    await self._agent.call_tool(planned, context)"),
    (direct_calls, "async def f(self):\n    return await self._agent.reply(request, emit)"),
    (direct_calls, "async def f(toolset):\n    await toolset.list_tools()"),
    (direct_calls, "async def f(tool):\n    await tool.call(arguments, context)"),
    (direct_calls, "async def f(self):\n    await self._hooks.after_tool_call(runner, reply)"),
    (direct_calls, "async def f(self):\n    await hook(runner, reply)"),
    (direct_calls, "def f(fn):\n    return fn(1)"),
]

GOOD: list[tuple[Rule, str]] = [
    (
        unmarked_roots,
        "@enable_ki_protection\nasync def f(): ...\ndef g(n):\n    n.start_soon(f, 1)",
    ),
    (
        unmarked_roots,
        (
            "class C:\n  @trio.lowlevel.enable_ki_protection\n  async def f(self): ...\n"
            "  def g(self, n):\n    link = partial(self.f, 1)\n    run(n.start_soon, link, name=1)"
        ),
    ),
    (unmarked_roots, "async def f(): ...\nspawn_system_task(f)\ntoken.run_sync_soon(f)"),
    (unmarked_roots, "threading.Thread(target=f).start()"),
    (
        surface_of_a_runner,
        (
            "class ToolRunner:\n    @enable_ki_protection\n    async def __anext__(self): ...\n"
            "    @enable_ki_protection\n    def deny(self): ...\n    async def _drive(self): ..."
        ),
    ),
    (wrong_freight, "async def f(self):\n    await call_unprotected(self._agent.reply, request)"),
    (wrong_freight, "def f(fn, values):\n    return ki.call_sync_unprotected(fn, **values)"),
    (direct_calls, "async def f(self):\n    await call_unprotected(self._agent.call_tool, one)"),
    (direct_calls, "async def f(self):\n    hook = self._hooks.after_tool_call\n    await g(hook)"),
]


@pytest.mark.parametrize(("rule", "code"), BAD)
def test_a_rule_finds_what_it_is_for(rule: Rule, code: str) -> None:
    assert rule([parse(textwrap.dedent(code), "trio_runner/_shell/bad.py")]) != []


@pytest.mark.parametrize(("rule", "code"), GOOD)
def test_a_rule_lets_good_code_pass(rule: Rule, code: str) -> None:
    assert rule([parse(textwrap.dedent(code), "trio_runner/_shell/good.py")]) == []


@pytest.mark.parametrize(
    "code",
    [
        "@disable_ki_protection\ndef call_unprotected(fn):\n    log()\n    return fn()",
        "@disable_ki_protection\ndef another(fn):\n    return fn()",
        "@disable_ki_protection\ndef call_unprotected(fn):\n    '''Only words.'''",
        "def call_unprotected(fn):\n    return fn()",
    ],
)
def test_a_trampoline_is_known_unprotected_and_one_call(code: str) -> None:
    good = """
        @disable_ki_protection
        async def await_unprotected(awaitable):
            'Await it.'
            return await awaitable
    """

    assert long_trampolines([parse(code, KI)]) != []
    assert long_trampolines([parse(textwrap.dedent(good), KI)]) == []


# --- what trio says at each border ----------------------------------------------


class Seen:
    """Whether KeyboardInterrupt was held back, by the name of the place."""

    def __init__(self) -> None:
        self.protected: dict[str, set[bool]] = {}

    def here(self, place: str) -> None:
        self.protected.setdefault(place, set()).add(trio.lowlevel.currently_ki_protected())


class Journal:
    """A memory journal that looks at every call."""

    def __init__(self, seen: Seen) -> None:
        self.inner = tr.MemoryJournal(delay=0.5)
        self.seen = seen

    async def open(self, session_id: str) -> Session:
        self.seen.here("journal.open")
        return Session(await self.inner.open(session_id), self.seen)


class Session:
    def __init__(self, inner: tr.JournalSession, seen: Seen) -> None:
        self.inner, self.seen = inner, seen

    @property
    def records(self) -> Sequence[r.Record]:
        return self.inner.records

    def append(self, records: Sequence[r.Record]) -> Ticket:
        self.seen.here("session.append")
        return Ticket(self.inner.append(records), self.seen)

    async def aclose(self) -> None:
        self.seen.here("session.aclose")
        await self.inner.aclose()


class Ticket:
    def __init__(self, inner: tr.CommitTicket, seen: Seen) -> None:
        self.inner, self.seen = inner, seen

    @property
    def done(self) -> bool:
        return self.inner.done

    @property
    def error(self) -> Exception | None:
        return self.inner.error

    async def wait(self) -> None:
        self.seen.here("ticket.wait")
        await self.inner.wait()


class Looks:
    """An observer that looks at every event."""

    def __init__(self, seen: Seen) -> None:
        self.seen = seen

    def on_event(self, event: ev.Event) -> None:
        self.seen.here(f"observer {type(event).__name__}")


class Box:
    """A toolset that looks at its opening, its listing and its close."""

    def __init__(self, seen: Seen) -> None:
        self.name = "box"
        self.seen = seen

    async def list_tools(self) -> Sequence[tr.Tool]:
        self.seen.here("toolset.list_tools")
        return ()

    async def __aenter__(self) -> Self:
        self.seen.here("toolset.__aenter__")
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.seen.here("toolset.__aexit__")


def everything_looks(seen: Seen) -> tr.ToolAgent:
    """An agent all of whose parts note whether Ctrl-C could strike in them."""

    async def tool(context: tr.ToolContext) -> str:
        seen.here("tool")
        context.report_progress(1)
        return "ok"

    def threaded(context: tr.ToolContext) -> str:
        context.emit("from a thread")
        return "ok"

    def inline() -> str:
        seen.here("inline tool")
        return "ok"

    def returns_an_awaitable() -> object:
        return tool_of_its_own()

    async def tool_of_its_own() -> str:
        seen.here("what a tool returned")
        return "ok"

    async def raw(arguments: tr.JSONObject, context: tr.ToolContext) -> str:
        seen.here("Tool.call")
        return "ok"

    def hook(name: str) -> Any:
        async def look(runner: tr.ToolRunner, _: object) -> None:
            seen.here(name)

        return look

    def answer(_: object) -> str:
        seen.here("model.reply")
        return "done"

    hooks = {name: hook(name) for name in HOOKS}
    calls = [call(name) for name in ("tool", "threaded", "inline", "lazy", "raw")]
    return tr.ToolAgent(
        "a",
        model=ScriptedModel([calls, answer]),
        tools=[
            tool,
            threaded,
            tr.tool(inline, inline=True),
            tr.tool(returns_an_awaitable, name="lazy", inline=True),
            tr.Tool("raw", "", {}, raw),
            Box(seen),
        ],
        hooks=tr.ToolRunnerHooks(**hooks),
        observers=[Looks(seen)],
        journal=Journal(seen),
        session="s",
    )


def test_ctrl_c_strikes_in_user_code_and_nowhere_else() -> None:
    seen = Seen()

    async def main() -> None:
        async with everything_looks(seen) as agent:
            assert (await agent.generate("go")).text == "done"
            # The tools all ran to their end.
            statuses = [each.status for m in agent.history for each in m.tool_results]
            assert statuses == [tr.CallStatus.OK] * 5

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0.01))

    free = {place for place, held in seen.protected.items() if held == {False}}
    held = {place for place, held in seen.protected.items() if held == {True}}
    assert free == {
        "tool", "inline tool", "what a tool returned", "Tool.call", "model.reply",
        "toolset.list_tools", *HOOKS,
    }  # fmt: skip
    # A toolset is opened and closed in a system task, where an error of Ctrl-C would end trio.
    assert held >= {
        "journal.open", "session.append", "session.aclose", "ticket.wait",
        "toolset.__aenter__", "toolset.__aexit__", "observer CallProgress", "observer CallEmitted",
        "observer CallFinished", "observer Committed", "observer TurnEnded",
    }  # fmt: skip
    assert free | held == set(seen.protected)


async def test_trampolines_let_ctrl_c_in_and_give_back_what_they_call() -> None:
    def held(value: object) -> tuple[bool, object]:
        return trio.lowlevel.currently_ki_protected(), value

    async def held_async(value: object) -> tuple[bool, object]:
        return held(value)

    @trio.lowlevel.enable_ki_protection
    async def protected() -> list[tuple[bool, object]]:
        return [
            held(0),
            ki.call_sync_unprotected(held, 1),
            await ki.call_unprotected(held_async, value=2),
            await ki.await_unprotected(held_async(3)),
        ]

    assert await protected() == [(True, 0), (False, 1), (False, 2), (False, 3)]


def test_run_is_trio_run_with_ctrl_c_at_checkpoints_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given: list[dict[str, Any]] = []

    def run(async_fn: Callable[..., Any], *args: Any, **options: Any) -> Any:
        given.append(options)
        return real(async_fn, *args, **options)

    async def double(value: int) -> int:
        return 2 * value

    real = trio.run
    monkeypatch.setattr(trio, "run", run)
    restrict = "restrict_keyboard_interrupt_to_checkpoints"

    assert tr.run(double, 4) == 8
    assert tr.run(double, 5, strict_exception_groups=True, **{restrict: False}) == 10
    assert given == [{restrict: True}, {restrict: False, "strict_exception_groups": True}]
