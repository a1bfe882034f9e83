"""Functions that travel keep the name of their file, whatever the release of cloudpickle does with it."""

from __future__ import annotations

import subprocess
import sys
import types
from pathlib import Path

import pytest

from hpcml.repairs import file_names

PROGRAM = """
import pickle, sys
import cloudpickle
from hpcml.repairs import file_names
file_names.keep()
once = cloudpickle.Pickler.dispatch_table[type(file_names.keep.__code__)]
file_names.keep()
assert cloudpickle.Pickler.dispatch_table[type(file_names.keep.__code__)] is once
def outer(name="<dynamic-code>"):
    def inner(): return name, "<dynamic-code>"
    return inner
class Class:
    def method(self): return 1
back = pickle.loads(cloudpickle.dumps(outer))
print(back.__code__.co_filename, back().__code__.co_filename, *back()())
print(pickle.loads(cloudpickle.dumps(Class)).method.__code__.co_filename)
"""


def test_a_function_keeps_its_file_in_another_process(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(program), str(program), "<dynamic-code>", "<dynamic-code>", str(program)]


@pytest.mark.parametrize("module", [{}, {"Pickler": type("Pickler", (), {})}])
def test_a_cloudpickle_that_is_made_otherwise_is_left_as_it_is(
    module: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    other = types.ModuleType("cloudpickle")
    vars(other).update(module)
    monkeypatch.setitem(sys.modules, "cloudpickle", other)
    file_names.keep()
    assert vars(other).get("Pickler") is module.get("Pickler")
