"""The table of repairs: complete, and needless repairs are noticed.

A repair whose package is installed here has a test that fails when the installed release mends the fault itself, below
and in test_repair_closing.py. Each repair is looked at again when the release that hpcml is tested with changes.
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from hpcml import repairs
from hpcml.repairs.table import REPAIRS, Repair

ROOT = Path(__file__).resolve().parents[2]


def releases_in_use() -> dict[str, str]:
    """Return the releases of packages that hpcml is tested and built with."""
    pins = tomllib.loads((ROOT / "containers/versions.toml").read_text())
    tested = (ROOT / "tests/versions-3.11.txt").read_text()
    return {**dict(re.findall(r"^([\w.-]+)==(\S+)$", tested, re.MULTILINE)), **pins}


FUNCTIONS_THAT_TRAVEL = """
import pickle, cloudpickle
names = {}
source = '''
def outer(name="<dynamic-code>"):
    def inner(): return name
    return inner
class Class:
    def method(self): return 1
'''
exec(compile(source, "/my/file.py", "exec"), names)
outer, kind = (pickle.loads(cloudpickle.dumps(names[name])) for name in ("outer", "Class"))
print(outer.__code__.co_filename, outer().__code__.co_filename, kind.method.__code__.co_filename, outer()())
"""


def output(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120, cwd=ROOT
    )
    return done.stdout.strip()


@pytest.mark.parametrize("repair", REPAIRS, ids=lambda repair: repair.module)
def test_a_new_release_has_its_repairs_looked_at(repair: Repair) -> None:
    release = releases_in_use()[repair.package]
    assert release == repair.needed_with, (
        f"is hpcml/repairs/{repair.module}.py needed with {repair.package} {release}? If not, remove it; else say so in table.py"
    )
    assert not repair.fixed_in, (
        f"{repair.package} {repair.fixed_in} has mended it: remove hpcml/repairs/{repair.module}.py"
    )


def test_cloudpickle_still_drops_the_names_of_files() -> None:
    keep, code = "from hpcml.repairs import file_names; file_names.keep(); ", FUNCTIONS_THAT_TRAVEL
    assert "/my/file.py" not in output(code), "cloudpickle keeps them by itself: remove hpcml/repairs/file_names.py"
    assert output(f"{keep}{keep}{code}") == "/my/file.py /my/file.py /my/file.py <dynamic-code>"
    name, value = repairs.OFF
    assert "/my/file.py" not in output(f"import os; os.environ[{name!r}] = {value!r}; {keep}{code}")


@pytest.mark.skipif(
    importlib.util.find_spec("rapids_dask_dependency") is None, reason="rapids-dask-dependency is not installed"
)
def test_rapids_finder_still_imports_while_it_looks() -> None:
    """It finds a part of Dask by importing the package that holds it."""
    code = (
        "import sys, dask, rapids_dask_dependency.dask_loader as loader; "
        "loader.DaskFinder().find_spec('dask.bytes.core', None); print('dask.bytes' in sys.modules)"
    )
    assert output(code) == "True", "RAPIDS' finder imports nothing any more: remove hpcml/repairs/finder.py"
