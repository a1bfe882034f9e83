"""Tests of the lab that run beside each other: each has its own result, and the next file's tests come after them."""

from __future__ import annotations

import pytest

pytest_plugins = ("pytester",)

CONFTEST = """
import pathlib, types, pytest, beside

class Cluster:
    def __init__(self):
        self.cancelled = 0
        self.lab = types.SimpleNamespace(places=types.SimpleNamespace(log=pathlib.Path("logs")))
    def cancel_own(self): self.cancelled += 1

@pytest.fixture(scope="session")
def cluster(): return Cluster()

@pytest.fixture(scope="session")
def image(): pytest.skip("there is no image")

def pytest_collection_modifyitems(items): beside.sort(items)

@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    if beside.marked(pyfuncitem):
        beside.call(pyfuncitem)
        return True
"""
TESTS = """
import threading, pytest
meet = threading.Barrier(3, timeout=60)

def test_alone(cluster):
    assert cluster.cancelled == 3

@pytest.mark.beside
@pytest.mark.parametrize("number", [1, 2])
def test_meets(cluster, number):
    meet.wait()
    assert number == 1, "the second"

@pytest.mark.beside
def test_meets_too(cluster): meet.wait()

@pytest.mark.beside
def test_without(cluster, image): raise AssertionError
"""


DIES = """
import pathlib, pytest
tried = []

@pytest.mark.beside
@pytest.mark.parametrize("dies", [True, False])
def test_fails_once(cluster, dies):
    tried.append(dies)
    if dies:
        pathlib.Path("logs").mkdir(exist_ok=True)
        pathlib.Path("logs/slurmd-n1.out").write_text("slurmd ended by signal 6 (start 1)\\n")
    assert tried.count(dies) > 1, "the first time"
"""


def test_one_under_which_a_slurmd_died_runs_once_more(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(CONFTEST.replace("beside.sort(items)", "beside.AT_ONCE = 1"))
    pytester.makepyfile(DIES)
    done = pytester.runpytest("-W", "ignore", "-p", "no:cacheprovider")
    done.assert_outcomes(passed=1, failed=1)


def test_each_has_its_own_result(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(TESTS)
    done = pytester.runpytest("-rA", "-W", "ignore", "-p", "no:cacheprovider")
    done.assert_outcomes(passed=3, failed=1, skipped=1)
    done.stdout.fnmatch_lines_random(
        [
            "PASSED *::test_meets?1?",
            "FAILED *::test_meets?2? *",
            "PASSED *::test_meets_too",
            "PASSED *::test_alone",
            "SKIPPED *there is no image",
        ]
    )
