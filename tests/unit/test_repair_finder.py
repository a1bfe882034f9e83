"""Where RAPIDS' finder of Dask's modules is installed, two threads that import do not wait for each other for ever."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from hpcml import repairs
from hpcml.repairs import finder

# A package that is being imported by a thread, which then needs Python's lock of all imports, while the main thread
# imports a module of the package.
SLOW = """
import sys
sys.begun.set()
sys.looked.wait(60)
import colorsys
"""
CODE = """
import sys, threading
import rapids_dask_dependency  # its .pth file does so as Python starts, but not in an environment on top of another
from hpcml.repairs import finder
finder.install()
import importlib.machinery
sys.begun, sys.looked = threading.Event(), threading.Event()
import dask
dask.__path__.append(sys.argv[1])
class Tells:
    def find_spec(self, name, path=None, target=None):
        if name == "dask.slow.part":
            sys.looked.set()
sys.meta_path.insert(0, Tells())
thread = threading.Thread(target=__import__, args=("dask.slow",), daemon=True)
thread.start()
sys.begun.wait(60)
import dask.slow.part
thread.join(60)
print("came through:", sys.modules["dask.slow.part"].HERE)
"""


def test_a_part_is_looked_for_where_its_package_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a stand-in for RAPIDS' module, so everywhere; that of an untried release stays as it is."""
    loader, package = ModuleType(finder._LOADER), ModuleType("package_in_the_making")
    loader.importlib = importlib  # type: ignore[attr-defined]
    package.__path__ = [str(tmp_path)]
    (tmp_path / "part.py").write_text("")
    for module in (loader, package):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(repairs, "_installed", lambda: {"rapids-dask-dependency": "26.12.0"})
    finder.install()
    assert vars(loader)["importlib"] is importlib
    monkeypatch.setattr(repairs, "_installed", lambda: {"rapids-dask-dependency": "26.10.00"})
    finder.install()
    put = vars(loader)["importlib"]
    assert put is not importlib
    finder.install()
    assert vars(loader)["importlib"] is put
    assert put.machinery is importlib.machinery
    part, whole = (put.util.find_spec(name) for name in ("package_in_the_making.part", "colorsys"))
    assert (part.origin, whole.name) == (str(tmp_path / "part.py"), "colorsys")
    assert put.util.find_spec("package_in_the_making.none") is None


@pytest.mark.skipif(
    importlib.util.find_spec("rapids_dask_dependency") is None, reason="rapids-dask-dependency is not installed"
)
def test_a_package_in_the_making_holds_up_nobody(tmp_path: Path) -> None:
    package = tmp_path / "slow"
    package.mkdir()
    (package / "__init__.py").write_text(SLOW)
    (package / "part.py").write_text("HERE = __name__")
    done = subprocess.run([sys.executable, "-c", CODE, str(tmp_path)], capture_output=True, text=True, timeout=120,
                          check=False, cwd=Path(__file__).parents[2])  # fmt: skip
    assert done.stdout == "came through: dask.slow.part\n", done.stderr
