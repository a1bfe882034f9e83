"""What tests/run_tiers.py runs: every test file once, and in `make test` what notices nearly all planted faults."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests import run_tiers
from tests.run_tiers import FIRST, ROOT, TIERS, Tier

RUN_BY_DEFAULT = [tier for tier in TIERS if tier.name not in run_tiers.ONLY_WHEN_NAMED]
ENOUGH = 0.956  # of the planted faults: 455 of 476
# Test files that no planted fault names: the list may only get shorter. A new file gets a fault (CONTRIBUTING.md, Habits).
# With the faults of test_link.py and test_stacks_on_nodes.py a run waits for longer than mutations.py does; two are new.
UNNAMED = {
    "tests/cli/test_sites_as_they_are.py", "tests/lab/test_link.py", "tests/lab/test_python_on_nodes.py",
    "tests/lab/test_stacks_on_nodes.py",
}  # fmt: skip

# Texts of 45 characters and more in the functions of tests; the number may only fall. A message of hpcml's is on the page
# tests/golden/messages.txt: a test asserts its values (tests/said.py). A program stands above the test, with a name.
LONG, MOST_LONG = 45, 850


def _files() -> set[str]:
    return {str(path.relative_to(ROOT)) for path in (ROOT / "tests").rglob("test_*.py")}


def _tests_in(path: str) -> list[str]:
    return re.findall(r"^(?:async )?def (test_\w+)", (ROOT / path).read_text(encoding="utf-8"), re.MULTILINE)


def test_each_file_is_in_one_tier() -> None:
    files = [file for tier in RUN_BY_DEFAULT for file in run_tiers.files_of(tier)]
    assert sorted(files) == sorted(_files())


@pytest.mark.parametrize("tier", RUN_BY_DEFAULT, ids=lambda tier: tier.name)
def test_each_test_is_in_one_part(tier: Tier) -> None:
    """A file that no table names, such as a new one, is in the rest, or in a tier that `make test` runs whole."""
    first, rest = run_tiers.tests_of(tier, "test"), run_tiers.tests_of(tier, "rest")
    if tier.name not in FIRST:
        assert (first.paths, rest.paths) == (list(tier.paths), [])
        return
    whole = {path for path in first.paths if "::" not in path}
    single = [path for path in first.paths if "::" in path]
    assert whole | set(rest.paths) == set(run_tiers.files_of(tier))
    assert not whole & set(rest.paths)
    assert rest.without == single
    assert {path.partition("::")[0] for path in single} <= set(rest.paths)
    assert first.words == first.paths
    assert rest.words == [*rest.paths, *(f"--deselect={name}" for name in single)]


def test_each_name_in_the_table_is_a_test() -> None:
    """``--deselect`` takes the beginnings of names: no other test's name begins so."""
    assert FIRST.keys() <= {tier.name for tier in RUN_BY_DEFAULT}
    for path in (path for paths in FIRST.values() for path in paths):
        file, _, name = path.partition("::")
        assert (ROOT / file).is_file(), path
        if name:
            function, bracket, _ = name.partition("[")
            tests = _tests_in(file)
            assert function in tests, path
            assert bracket or [test for test in tests if test.startswith(function)] == [function], path


def test_the_second_lab_s_files_are_there() -> None:
    assert {f"tests/lab/{name}.py" for name in run_tiers.SECOND_LAB} <= _files()


@pytest.mark.parametrize("part", ["test", "rest", "all"])
def test_each_lab_has_its_share(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (tier,) = (tier for tier in TIERS if tier.name == "lab")
    monkeypatch.setattr(run_tiers, "no_second_lab", lambda: "")
    monkeypatch.setattr(run_tiers, "lab", lambda *_words: "")
    shares = [[word for word in words if not word.startswith("-")] for _, _, words in run_tiers.lab_shares(tier, part)]
    expected = run_tiers.files_of(tier) if part == "all" else run_tiers.tests_of(tier, part).paths
    assert len(shares) == 2
    assert sorted(shares[0] + shares[1]) == sorted(expected)


def _named() -> set[str]:
    rows = json.loads((ROOT / "docs/benchmarks/mutations.json").read_text(encoding="utf-8"))["faults"]
    return {test.partition("::")[0] for row in rows for test in row["noticed"].values()}


def test_each_file_is_named_by_a_planted_fault() -> None:
    """A file whose tests notice none of them keeps no promise that anybody knows of."""
    assert _files() - _named() == UNNAMED


def _long_texts(path: str) -> int:
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    tests = [one for one in ast.walk(tree) if isinstance(one, ast.FunctionDef) and one.name.startswith("test_")]
    parts = [(ast.get_docstring(test, clean=False), part) for test in tests for part in ast.walk(test)]
    texts = [
        (said, part.value) for said, part in parts if isinstance(part, ast.Constant) and isinstance(part.value, str)
    ]
    return sum(len(text) >= LONG and text != said for said, text in texts)


STARTER = """
import signal, subprocess, sys
from tests.run_tiers import interrupt
signal.signal(signal.SIGTERM, interrupt)
subprocess.run([sys.executable, "-c", sys.argv[1]])
"""
STARTED = """
import time
try:
    print("begins", flush=True)
    time.sleep(600)
except KeyboardInterrupt:
    print("ended")
"""


def test_what_runs_ends_with_a_suite_that_is_terminated() -> None:
    words = [sys.executable, "-c", STARTER, STARTED]
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as suite:
        assert suite.stdout is not None
        assert suite.stdout.readline() == "begins\n"
        suite.terminate()
        assert suite.communicate(timeout=60)[0] == "ended\n"
        assert suite.returncode != 0


def test_tests_quote_few_long_texts() -> None:
    counts = {path: _long_texts(path) for path in _files()}
    most = sorted(counts, key=counts.__getitem__)[-5:]
    assert sum(counts.values()) <= MOST_LONG, {path: counts[path] for path in most}


def test_what_a_text_has_is_compared_with_a_text() -> None:
    """A pattern that no text is compared with is always true."""
    alone = []
    for path in (ROOT / "tests").rglob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            value = node.value if isinstance(node, ast.Expr) else node.test if isinstance(node, ast.Assert) else None
            if isinstance(value, ast.Call) and ast.unparse(value.func) in ("says", "in_order"):
                alone.append(f"{path.relative_to(ROOT)}:{value.lineno}")
    assert alone == []


def test_make_test_notices_nearly_all_planted_faults() -> None:
    rows = json.loads((ROOT / "docs/benchmarks/mutations.json").read_text(encoding="utf-8"))["faults"]
    paths = [path for tier in RUN_BY_DEFAULT for path in run_tiers.tests_of(tier, "test").paths]

    def runs(test: str) -> bool:
        file, function = test.partition("::")[0], test.partition("[")[0]
        return any(path in (test, function, file) or Path(path) in Path(file).parents for path in paths)

    missed = [row["breaks"] for row in rows if not any(map(runs, row["noticed"].values()))]
    assert len(missed) <= (1 - ENOUGH) * len(rows), missed
