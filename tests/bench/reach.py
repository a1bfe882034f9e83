"""Find out which tests reach the line of a planted fault: in pytest itself, in child processes and on the lab's nodes.

A copy of the checkout gets a probe in front of each statement that a fault changes. A probe leaves an empty file in a
folder that every process of one pytest sees, because pytest has a mount of its own there; a plugin says which test runs.
"""

from __future__ import annotations

import ast
import json
import os
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path("/mnt")  # where each pytest has its own folder; processes of the lab's nodes and users see it too
NOW, HITS = FOLDER / "now", FOLDER / "hits"
PROBE = '''"""Leave a file for each planted fault whose line this process reaches."""
import os
from time import monotonic
_seen, _test, _read = set(), "", -1.0

def hit(number):
    global _test, _read
    if monotonic() - _read > 0.2:
        _read = monotonic()
        try:
            with open("/mnt/now") as file:
                test = file.read()
        except OSError:
            test = ""
        if test != _test:
            _test = test
            _seen.clear()
    if number in _seen or not _test:
        return
    _seen.add(number)
    try:
        os.close(os.open(f"/mnt/hits/{_test}/{number}", os.O_CREAT | os.O_WRONLY, 0o666))
    except OSError:
        pass
'''
PROBE_MODULE = "hpcml/node/_reach.py"
# It does nothing in a process that has no module hpcml.node, as where a script's own module hides hpcml.
HIT = "getattr(__import__('sys').modules.get('hpcml.node._reach'), 'hit', int)"
ALONE = ("hpcml/remote/receiver.py", "hpcml/cli/pack_start.py")  # they run where hpcml is not
IMPORTED = "import"  # the statement runs when its module is imported: no probe tells more


def instrument(root: Path, faults: Sequence[Any]) -> dict[int, str]:
    """Put probes into a copy; return the faults without one of their own, by number, and why."""
    without: dict[int, str] = {}
    (root / PROBE_MODULE).write_text(PROBE)
    package = root / "hpcml/__init__.py"
    text = package.read_text()
    package.write_text(f"{text}\nimport hpcml.node._reach\n")
    of_module = defaultdict(list)
    for number, fault in enumerate(faults):
        of_module[fault.module].append((number, fault))
    for module, some in of_module.items():
        path = root / module
        if path.suffix != ".py" or module in ALONE:
            without.update((number, "alone" if module in ALONE else "no Python") for number, _ in some)
            continue
        text = path.read_text()
        lines = text.splitlines(keepends=True)
        added: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for number, fault in some:
            places = _places(text, text.index(fault.was))
            if not places:
                without[number] = IMPORTED
            for line, column in places:
                added[line].append((column, number))
        for line in sorted(added, reverse=True):
            lines[line - 1 : line - 1] = [f"{' ' * column}{HIT}({number})\n" for column, number in added[line]]
        path.write_text("".join(lines))
    return without


def _places(text: str, offset: int) -> list[tuple[int, int]]:
    """Return where a probe tells that the statement at an offset runs: line (from 1) and column."""
    line = text.count("\n", 0, offset) + 1
    column = offset - (text.rfind("\n", 0, offset) + 1)
    tree = ast.parse(text)
    place = _inside(tree, text.splitlines(), line, column)
    if place is not None:
        return [place]
    names = {name for node in tree.body if _spans(node, line) for name in _assigned(node)}
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return [_first(one) for one in functions if any(getattr(part, "id", "") in names for part in ast.walk(one))]


def _spans(node: ast.stmt, line: int) -> bool:
    return node.lineno <= line <= (node.end_lineno or node.lineno)


def _assigned(node: ast.stmt) -> Iterator[str]:
    for part in ast.walk(node):
        if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store):
            yield part.id
    if isinstance(node, ast.ClassDef):
        yield node.name


def _first(function: ast.FunctionDef | ast.AsyncFunctionDef) -> tuple[int, int]:
    """Return the place before a function's first statement, behind its docstring."""
    first = function.body[0]
    is_text = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and len(function.body) > 1
    chosen = function.body[1] if is_text else first
    return _line_of(chosen), chosen.col_offset


def _line_of(node: ast.stmt) -> int:
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return min([node.lineno, *(one.lineno for one in decorators)])


def _inside(tree: ast.Module, lines: list[str], line: int, column: int) -> tuple[int, int] | None:
    """Return the place before the innermost statement of a function that holds a character; None outside of functions."""
    best: tuple[int, int] | None = None
    function: ast.FunctionDef | ast.AsyncFunctionDef | None = None
    todo: list[tuple[ast.AST, bool]] = [(tree, False)]
    while todo:
        node, within = todo.pop()
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.stmt) and not _holds(child, line, column):
                continue
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                function, best = child, None
            if within and isinstance(child, ast.stmt) and _begins_a_line(child, lines):
                best = (_line_of(child), child.col_offset)
            todo.append((child, function is not None))
    if best is None and function is not None:
        return _first(function)
    return best


def _holds(node: ast.stmt, line: int, column: int) -> bool:
    begin, end = (_line_of(node), 0), (node.end_lineno or 0, node.end_col_offset or 0)
    return begin <= (line, column) < end


def _begins_a_line(node: ast.stmt, lines: list[str]) -> bool:
    text = lines[_line_of(node) - 1]
    return not text[: node.col_offset].strip() and not text.lstrip().startswith("elif")


# --- the plugin: pytest -p reach -----------------------------------------------------------------------------------------


class Recorder:
    """Says which test runs, or which fixture that several tests share is being made; knows how each test ended."""

    def __init__(self) -> None:
        self.keys: dict[str, int] = {}
        self.tests: dict[str, dict[str, Any]] = {}
        self.current = ""

    def enter(self, name: str) -> str:
        """Name what runs now; return what ran before."""
        number = self.keys.setdefault(name, len(self.keys))
        before, self.current = self.current, str(number)
        folder = HITS / str(number)
        if not folder.is_dir():
            folder.mkdir()
            folder.chmod(0o777)
        self.write()
        return before

    def write(self) -> None:
        new = NOW.with_name("now.new")
        new.write_text(self.current)
        new.chmod(0o644)
        new.rename(NOW)
        if (probe := sys.modules.get("hpcml.node._reach")) is not None:
            probe._read = -1.0  # type: ignore[attr-defined]  # this process's own looks at once

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self.enter(item.nodeid)
        definitions = getattr(item, "_fixtureinfo", None)
        fixtures = [one[-1] for one in definitions.name2fixturedefs.values()] if definitions else []
        shared = [_name(one) for one in fixtures if one.scope != "function"]
        self.tests[item.nodeid] = {"shared": shared, "seconds": 0.0, "ended": "passed"}
        yield
        self.current = ""
        self.write()

    @pytest.hookimpl(hookwrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Iterator[None]:
        if fixturedef.scope == "function":
            yield
            return
        before = self.enter(_name(fixturedef))
        yield
        self.current = before
        self.write()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        known = self.tests[report.nodeid]
        known["seconds"] += report.duration
        if report.outcome != "passed":
            known["ended"] = report.outcome

    def pytest_sessionfinish(self) -> None:
        hits = {
            name: sorted(int(found) for found in os.listdir(HITS / str(number))) for name, number in self.keys.items()
        }
        for name, facts in self.tests.items():
            facts["hits"] = sorted(
                {*hits.get(name, []), *(hit for key in facts.pop("shared") for hit in hits.get(key, []))}
            )
        (FOLDER / "reached.json").write_text(json.dumps(self.tests))


def _name(definition: Any) -> str:
    return f"fixture {definition.argname} of {definition.baseid}"


def pytest_configure(config: pytest.Config) -> None:
    HITS.mkdir(exist_ok=True)
    HITS.chmod(0o777)
    FOLDER.chmod(0o777)
    config.pluginmanager.register(Recorder())
