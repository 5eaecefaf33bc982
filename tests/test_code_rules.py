"""Habits of the code that a reader cannot be asked to check, held by reading the source.

As in ``test_layers.py`` each rule is a function from sources to complaints: it
finds nothing in the project and something in small bad programs. The file is
longer than most because half of it is the tables of bad and good programs.
"""

from __future__ import annotations

import ast
import functools
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

FINISHING = "trio_runner/_shell/finishing.py"
SHIELDS: Mapping[str, str] = {
    FINISHING: "the library's own finishing",
    "adapters/trio_runner_adapters/_finishing.py": "what an adapter must close",
    "trio_runner/testing/reference.py": "plays a user's tool, whose cleanup is its own",
    "trio_runner/testing/strategies/_tools.py": "plays a user's tool, whose cleanup is its own",
}
# Where BaseException may be caught without a `raise` in the handler itself, and why.
CATCHES_ALL: Mapping[str, str] = {
    "trio_runner/_shell/batch.py": "decides a call's status from the leaves, then raises outside",
    "trio_runner/testing/_ends.py": "what a swept run raises waits until `afterwards` is over",
}
# Calls that make something that can change.
MAKES_STATE = frozenset(
    "list dict set bytearray defaultdict deque Counter OrderedDict ChainMap count cycle "
    "WeakKeyDictionary WeakValueDictionary WeakSet Queue SimpleQueue Lock RLock Semaphore Event "
    "Condition CapacityLimiter RunVar SimpleNamespace Random".split()
)
CHANGES_STATE = frozenset(
    "append appendleft add clear discard extend insert pop popitem popleft remove reverse rotate "
    "setdefault sort update".split()
)
CACHES = frozenset({"cache", "lru_cache"})


@dataclass(frozen=True)
class Source:
    """One file: its path inside the project and its syntax tree."""

    path: str
    tree: ast.Module
    parents: Mapping[ast.AST, ast.AST] = field(repr=False)

    def at(self, node: ast.stmt | ast.expr | ast.excepthandler, what: str) -> str:
        return f"{self.path}:{node.lineno}: {what}"

    def scope_of(self, node: ast.AST) -> ast.AST:
        """The function around ``node``, or the module."""
        here = self.parents.get(node, self.tree)
        while not isinstance(
            here, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.Module
        ):
            here = self.parents[here]
        return here


def parse(code: str | bytes, path: str) -> Source:
    tree = ast.parse(code, path)
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    return Source(path, tree, parents)


@functools.cache
def project(folder: str) -> tuple[Source, ...]:
    """Every file below ``folder``."""
    sources = tuple(
        parse(path.read_bytes(), path.relative_to(ROOT).as_posix())
        for path in sorted((ROOT / folder).rglob("*.py"))
    )
    assert sources, f"no source below {folder}"
    return sources


def everything() -> tuple[Source, ...]:
    return (*project("trio_runner"), *project("adapters"))


def last_name(node: ast.expr | None) -> str:
    """``Name`` of ``Name``, ``a.Name``, ``a.Name[int]`` and ``Name(...)``; else an empty text."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case ast.Subscript(value=inner) | ast.Call(func=inner):
            return last_name(inner)
        case _:
            return ""


# --- shields --------------------------------------------------------------------


def shields(source: Source) -> Iterator[ast.expr | ast.stmt]:
    """Everything that could set a shield: the keyword, the attribute, and the word in quotes."""
    for node in ast.walk(source.tree):
        match node:
            case ast.Call(keywords=keywords):
                for keyword in keywords:
                    match keyword:
                        case ast.keyword(arg="shield", value=ast.Constant(value=False)):
                            pass
                        case ast.keyword(arg="shield"):
                            yield node
                        case _:
                            pass
            case ast.Assign(value=ast.Constant(value=False)):
                pass
            case ast.Assign(targets=[ast.Attribute(attr="shield")]):
                yield node
            case ast.AnnAssign(target=ast.Attribute(attr="shield")):
                yield node
            case ast.Constant(value="shield"):  # setattr(scope, "shield", True), **{"shield": True}
                yield node
            case _:
                pass


def has_deadline(call: ast.expr) -> bool:
    """Whether a call makes a scope that ends by itself."""
    match call:
        case ast.Call(func=func, args=args, keywords=keywords):
            given = {keyword.arg: keyword.value for keyword in keywords}
            if last_name(func) in {"move_on_at", "move_on_after", "fail_at", "fail_after"}:
                ends = [*args, *(given[name] for name in ("deadline", "seconds") if name in given)]
            elif last_name(func) == "CancelScope":
                ends = [given[name] for name in ("deadline", "relative_deadline") if name in given]
            else:
                ends = []
            return bool(ends) and "inf" not in {last_name(end) for end in ends}
        case _:
            return False


def bindings(scope: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """``name = call`` and ``with call as name`` inside a function."""
    for node in ast.walk(scope):
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                yield name, value
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                yield name, value
            case ast.withitem(context_expr=value, optional_vars=ast.Name(id=name)):
                yield name, value
            case _:
                pass


def misplaced_shields(sources: Iterable[Source]) -> list[str]:
    """Shields outside the listed files."""
    return [
        source.at(node, f"a shield; finishing is for {FINISHING}")
        for source in sources
        if source.path not in SHIELDS
        for node in shields(source)
    ]


def endless_shields(sources: Iterable[Source]) -> list[str]:
    """Shields whose scope has no deadline in the same function."""
    found: list[str] = []
    for source in sources:
        for node in shields(source):
            match node:
                case ast.Call():
                    bounded = has_deadline(node)
                case ast.Assign(targets=[ast.Attribute(value=ast.Name(id=name))]):
                    made = [call for to, call in bindings(source.scope_of(node)) if to == name]
                    bounded = bool(made) and all(map(has_deadline, made))
                case _:
                    bounded = False  # no way to tell
            if not bounded:
                found.append(source.at(node, "a shield without a deadline beside it"))
    return found


# --- exceptions -----------------------------------------------------------------


def raises(node: ast.AST) -> bool:
    """Whether a handler has a ``raise`` of its own, not in a function that it defines."""
    if isinstance(node, ast.Raise):
        return True
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
        return False
    return any(raises(child) for child in ast.iter_child_nodes(node))


def caught_for_good(sources: Iterable[Source]) -> list[str]:
    """Places that catch everything, a cancel included, and do not raise again."""
    broad = {"BaseException", "BaseExceptionGroup"}
    found: list[str] = []
    for source in sources:
        if source.path in CATCHES_ALL:
            continue
        for node in ast.walk(source.tree):
            match node:
                case ast.ExceptHandler(type=None):
                    names = broad
                case ast.ExceptHandler(type=ast.Tuple(elts=types)):
                    names = {last_name(one) for one in types}
                case ast.ExceptHandler(type=one):
                    names = {last_name(one)}
                case ast.Call(args=args) if last_name(node) == "suppress":
                    if broad & {last_name(one) for one in args}:
                        found.append(source.at(node, "suppress() swallows a cancel"))
                    continue
                case _:
                    continue
            if names & broad and not raises(node):
                found.append(source.at(node, "catches everything and does not raise"))
    return found


def generator_contexts(sources: Iterable[Source]) -> list[str]:
    """``@asynccontextmanager``: frames of contextlib, which Ctrl-C may hit."""
    found: list[str] = []
    for source in sources:
        for node in ast.walk(source.tree):
            match node:
                case ast.ImportFrom(module="contextlib", names=names):
                    if "asynccontextmanager" in {alias.name for alias in names}:
                        found.append(source.at(node, "imports asynccontextmanager"))
                case ast.Attribute(attr="asynccontextmanager"):
                    found.append(source.at(node, "uses asynccontextmanager"))
                case _:
                    pass
    return found


# --- isinstance -----------------------------------------------------------------


@dataclass(frozen=True)
class Classes:
    """Names of ours that isinstance may be asked about."""

    protocols: frozenset[str]  # their question is the point
    exceptions: frozenset[str]  # their hierarchies are open
    foreign_groups: frozenset[str]  # constants like (KeyboardInterrupt, SystemExit)


def classes_of(sources: Iterable[Source]) -> Classes:
    """Sort the class names of all files, by the names of their bases."""
    sources = list(sources)
    bases = {
        node.name: {last_name(base) for base in node.bases}
        for source in sources
        for node in ast.walk(source.tree)
        if isinstance(node, ast.ClassDef)
    }
    exceptions = {"Exception", "BaseException"}
    while (
        more := {
            name
            for name, above in bases.items()
            if above & exceptions or any(base.endswith("Error") for base in above)
        }
        - exceptions
    ):
        exceptions |= more
    protocols = {name for name, above in bases.items() if "Protocol" in above}
    groups: set[str] = set()
    for source in sources:
        for name, value in bindings(source.tree):
            members = set(map(last_name, asked_for(value)))
            if isinstance(value, ast.Tuple | ast.BinOp) and not members & bases.keys() - exceptions:
                groups.add(name)
    return Classes(frozenset(protocols), frozenset(exceptions), frozenset(groups))


def our_names(source: Source) -> set[str]:
    """Names in a file that stand for our modules, or for what comes from them or from the file."""
    names: set[str] = set()
    for node in ast.walk(source.tree):
        match node:
            case ast.Import(names=aliases):
                for alias in aliases:
                    if alias.name.startswith("trio_runner"):
                        names.add(alias.asname or alias.name.partition(".")[0])
            case ast.ImportFrom(module=module, names=aliases, level=level):
                if level or (module or "").startswith("trio_runner"):
                    names |= {alias.asname or alias.name for alias in aliases}
            case ast.ClassDef(name=name):
                names.add(name)
            case _:
                pass
    for statement in source.tree.body:
        if isinstance(statement, ast.Assign | ast.AnnAssign):
            names |= {name for name, _ in bindings(statement)}
    return names


def root_name(node: ast.expr) -> str:
    """``a`` of ``a``, ``a.b`` and ``a.b.c``."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return last_name(node)


def asked_for(node: ast.expr) -> Iterator[ast.expr]:
    """The classes that an isinstance asks for, one by one."""
    match node:
        case ast.Tuple(elts=elements):
            for element in elements:
                yield from asked_for(element)
        case ast.BinOp(left=left, right=right):
            yield from asked_for(left)
            yield from asked_for(right)
        case _:
            yield node


def isinstance_on_our_classes(sources: Iterable[Source]) -> list[str]:
    """isinstance on concrete classes of ours, or on a name of ours that stands for several."""
    sources = list(sources)
    known = classes_of(sources)
    allowed = known.protocols | known.exceptions | known.foreign_groups
    found: list[str] = []
    for source in sources:
        ours = our_names(source)
        for node in ast.walk(source.tree):
            match node:
                case ast.Call(func=ast.Name(id="isinstance" | "issubclass"), args=[_, classes]):
                    for one in asked_for(classes):
                        if root_name(one) in ours and last_name(one) not in allowed:
                            what = f"isinstance on {ast.unparse(one)}: use match, or a protocol"
                            found.append(source.at(node, what))
                case _:
                    pass
    return found


# --- state of a module ----------------------------------------------------------


def can_change(value: ast.expr | None) -> bool:
    """Whether an expression makes a list, dict, set or another object that changes."""
    match value:
        case ast.List() | ast.Dict() | ast.Set() | ast.ListComp() | ast.DictComp() | ast.SetComp():
            return True
        case ast.Call():
            return last_name(value) in MAKES_STATE
        case _:
            return False


def module_names(source: Source) -> Iterator[tuple[str, ast.Assign | ast.AnnAssign]]:
    """Names bound at the top level, also under ``if``, ``try`` and ``with``, to what can change."""
    for node in ast.walk(source.tree):
        match node:
            case ast.Assign(targets=targets, value=value) if can_change(value):
                names = [target.id for target in targets if isinstance(target, ast.Name)]
            case ast.AnnAssign(target=ast.Name(id=name), value=value) if can_change(value):
                names = [name]
            case _:
                continue
        inside = {type(above) for above in ancestors(source, node)}
        if not inside & {ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef}:
            yield from ((name, node) for name in names)


def ancestors(source: Source, node: ast.AST) -> Iterator[ast.AST]:
    while (above := source.parents.get(node)) is not None:
        yield above
        node = above


def not_final(sources: Iterable[Source]) -> list[str]:
    """Lists, dicts and the like at module level that nothing declares to be constants."""
    return [
        source.at(node, f"{name} can change; make it a tuple, a frozenset, or Final and constant")
        for source in sources
        for name, node in module_names(source)
        if name != "__all__"
        and not (isinstance(node, ast.AnnAssign) and last_name(node.annotation) == "Final")
    ]


def changed_constants(sources: Iterable[Source]) -> list[str]:
    """Code that changes what a module holds: ``global``, caches, writes into a constant."""
    found: list[str] = []
    for source in sources:
        constants = {name for name, _ in module_names(source)}
        for node in ast.walk(source.tree):
            match node:
                case ast.Global():
                    found.append(source.at(node, "global: pass the value instead"))
                case ast.FunctionDef(decorator_list=decorators):
                    if CACHES & set(map(last_name, decorators)):
                        found.append(source.at(node, "a cache is state of the module"))
                case ast.Subscript(value=ast.Name(id=name), ctx=ast.Store() | ast.Del()):
                    if name in constants:
                        found.append(source.at(node, f"writes into {name}"))
                case ast.AugAssign(target=ast.Name(id=name)) if name in constants:
                    found.append(source.at(node, f"changes {name}"))
                case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=method)):
                    if name in constants and method in CHANGES_STATE:
                        found.append(source.at(node, f"{name}.{method}() changes a constant"))
                case _:
                    pass
    return found


# --- the project keeps them -----------------------------------------------------

Rule = Callable[[Iterable[Source]], list[str]]


def test_shields_are_written_in_one_place() -> None:
    assert misplaced_shields(everything()) == []


def test_every_shield_has_a_deadline() -> None:
    assert endless_shields(everything()) == []


def test_nothing_catches_everything_for_good() -> None:
    assert caught_for_good(everything()) == []


def test_no_async_context_manager_is_a_generator() -> None:
    assert generator_contexts(project("trio_runner")) == []


def test_no_isinstance_on_our_own_concrete_classes() -> None:
    assert isinstance_on_our_classes(everything()) == []


def test_module_level_values_are_constants() -> None:
    assert not_final(everything()) == []


def test_nothing_changes_what_a_module_holds() -> None:
    assert changed_constants(everything()) == []


def test_listed_exceptions_to_the_rules_still_exist() -> None:
    listed = {*SHIELDS, *CATCHES_ALL}

    assert {path for path in listed if not (ROOT / path).exists()} == set()


# --- the rules find what they are for -------------------------------------------

BAD: list[tuple[Rule, str]] = [
    (misplaced_shields, "scope = trio.CancelScope(shield=True, deadline=1)"),
    (misplaced_shields, "with trio.move_on_after(1, shield=asked):\n    pass"),
    (misplaced_shields, "scope.shield = True"),
    (misplaced_shields, "scope.shield: bool = True"),
    (misplaced_shields, "setattr(scope, 'shield', True)"),
    (misplaced_shields, "trio.CancelScope(**{'shield': True})"),
    (endless_shields, "trio.CancelScope(shield=True)"),
    (endless_shields, "trio.CancelScope(shield=True, deadline=math.inf)"),
    (endless_shields, "trio.move_on_at(inf, shield=True)"),
    (endless_shields, "my_scope(shield=True, deadline=3)"),
    (endless_shields, "def f(scope):\n    scope.shield = True"),
    (endless_shields, "def f():\n    scope = CancelScope()\n    scope.shield = True"),
    (endless_shields, "self.scope.shield = True"),
    (endless_shields, "setattr(scope, 'shield', True)"),
    (caught_for_good, "try:\n    f()\nexcept:\n    pass"),
    (caught_for_good, "try:\n    f()\nexcept BaseException as error:\n    log(error)"),
    (caught_for_good, "try:\n    f()\nexcept (ValueError, builtins.BaseException):\n    g()"),
    (caught_for_good, "try:\n    f()\nexcept* BaseException:\n    g()"),
    (caught_for_good, "try:\n    f()\nexcept BaseExceptionGroup as group:\n    log(group)"),
    (caught_for_good, "try:\n    f()\nexcept BaseException:\n    def g():\n        raise"),
    (caught_for_good, "with contextlib.suppress(BaseException):\n    f()"),
    (generator_contexts, "from contextlib import asynccontextmanager, suppress"),
    (generator_contexts, "@contextlib.asynccontextmanager\nasync def f():\n    yield"),
    (isinstance_on_our_classes, "import trio_runner as tr\nisinstance(x, tr.Message)"),
    (isinstance_on_our_classes, "import trio_runner._core.values as v\nisinstance(x, v.BLOCKS)"),
    (isinstance_on_our_classes, "import trio_runner.abc\nisinstance(x, trio_runner.abc.Tool)"),
    (isinstance_on_our_classes, "from trio_runner import Tool as T\nisinstance(x, (str, T))"),
    (isinstance_on_our_classes, "from trio_runner import Tool\nisinstance(x, str | Tool)"),
    (isinstance_on_our_classes, "class Own: ...\nTWO: Final = (str, Own)\nisinstance(x, TWO)"),
    (isinstance_on_our_classes, "class Own:\n    pass\nissubclass(x, Own)"),
    (not_final, "seen = []"),
    (not_final, "seen: dict[str, int] = {}"),
    (not_final, "seen = collections.defaultdict(list)"),
    (not_final, "seen = {name for name in names}"),
    (not_final, "a = b = set()"),
    (not_final, "if TYPE_CHECKING:\n    pass\nelse:\n    seen = []"),
    (not_final, "lock = threading.Lock()"),
    (changed_constants, "def f():\n    global seen\n    seen = 1"),
    (changed_constants, "@functools.lru_cache(maxsize=3)\ndef f():\n    pass"),
    (changed_constants, "@cache\ndef f():\n    pass"),
    (changed_constants, "SEEN: Final = {}\ndef f(x):\n    SEEN[x] = 1"),
    (changed_constants, "SEEN: Final = {}\ndef f(x):\n    del SEEN[x]"),
    (changed_constants, "SEEN: Final = []\ndef f(x):\n    SEEN.append(x)"),
    (changed_constants, "SEEN: Final = []\nSEEN += [1]"),
]

GOOD: list[tuple[Rule, str]] = [
    (misplaced_shields, "trio.CancelScope(shield=False)"),
    (misplaced_shields, "scope.shield = False"),
    (misplaced_shields, "if scope.shield:\n    pass"),
    (endless_shields, "trio.CancelScope(shield=True, deadline=when)"),
    (endless_shields, "trio.CancelScope(shield=True, relative_deadline=grace)"),
    (endless_shields, "with trio.move_on_at(when, shield=True):\n    pass"),
    (endless_shields, "def f():\n    with move_on_after(3) as scope:\n        scope.shield = True"),
    (endless_shields, "def f():\n    s = CancelScope(deadline=when)\n    s.shield = True"),
    (caught_for_good, "try:\n    f()\nexcept BaseException:\n    g()\n    raise"),
    (caught_for_good, "try:\n    f()\nexcept BaseException as e:\n    raise Own() from e"),
    (caught_for_good, "try:\n    f()\nexcept Exception:\n    pass"),
    (generator_contexts, "from contextlib import contextmanager"),
    (isinstance_on_our_classes, "from mcp.types import Tool\nisinstance(x, Tool)"),
    (isinstance_on_our_classes, "isinstance(x, str | dict)"),
    (isinstance_on_our_classes, "def f(x):\n    kind = find()\n    return isinstance(x, kind)"),
    (
        isinstance_on_our_classes,
        "import trio_runner as tr\nTWO = (A, B)\nisinstance(x, tr.TWO)",
    ),
    (isinstance_on_our_classes, "class Own(Protocol):\n    pass\nisinstance(x, Own)"),
    (isinstance_on_our_classes, "class Own(Protocol[T]):\n    pass\nisinstance(x, Own)"),
    (isinstance_on_our_classes, "class A(OSError): ...\nclass B(A): ...\nisinstance(x, B)"),
    (not_final, "SEEN = ()"),
    (not_final, "__all__ = ['a']"),
    (not_final, "WORDS: Final = {'a': 1}"),
    (not_final, "WORDS: Final[Mapping[str, int]] = {'a': 1}"),
    (not_final, "WORDS = MappingProxyType({'a': 1})"),
    (not_final, "def f():\n    seen = []"),
    (not_final, "class C:\n    seen = attrs.field(factory=list)"),
    (changed_constants, "WORDS: Final = {}\ndef f(x):\n    return WORDS[x], WORDS.get(x)"),
    (changed_constants, "def f():\n    seen = []\n    seen.append(1)"),
]


@pytest.mark.parametrize(("rule", "code"), BAD)
def test_a_rule_finds_what_it_is_for(rule: Rule, code: str) -> None:
    assert rule([parse(textwrap.dedent(code), "trio_runner/_shell/bad.py")]) != []


@pytest.mark.parametrize(("rule", "code"), GOOD)
def test_a_rule_lets_good_code_pass(rule: Rule, code: str) -> None:
    assert rule([parse(textwrap.dedent(code), "trio_runner/_shell/good.py")]) == []


def test_the_places_for_shields_may_shield() -> None:
    code = "with trio.CancelScope(shield=True, deadline=when):\n    pass"

    assert misplaced_shields([parse(code, path) for path in SHIELDS]) == []


def test_a_class_of_another_module_is_known_by_its_name() -> None:
    defines = parse("class Own(Protocol): ...\nclass Value: ...", "trio_runner/abc.py")
    asks = parse("import trio_runner as tr\nisinstance(x, (tr.Own, tr.Value))", "trio_runner/x.py")

    assert [line.split()[-6] for line in isinstance_on_our_classes([defines, asks])] == [
        "tr.Value:"
    ]
