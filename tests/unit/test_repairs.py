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
from types import ModuleType

import pytest

from hpcml import repairs
from hpcml.config_trust import Origin
from hpcml.errors import ConfigError
from hpcml.repairs import dead_worker_memory
from hpcml.repairs.table import REPAIRS, Repair
from hpcml.sites.schema import Repairs, Site
from hpcml.sites.settings_layers import Layers, build, from_assignments
from tests.said import says

ROOT = Path(__file__).resolve().parents[2]


def releases_in_use() -> dict[str, str]:
    """Return the releases of packages that hpcml is tested and built with."""
    pins = tomllib.loads((ROOT / "containers/versions.toml").read_text())
    tested = (ROOT / "tests/versions-3.11.txt").read_text()
    releases = {**dict(re.findall(r"^([\w.-]+)==(\S+)$", tested, re.MULTILINE)), **pins}
    return {**releases, "ucx": releases["libucx-cu13"]}


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
    release = releases_in_use()[repair.library]
    assert repairs.decisions({repair.library: release})[repair.module].state == repairs.APPLIED, (
        f"is hpcml/repairs/{repair.module}.py needed with {repair.library} {release}? If not, remove it; else try it "
        "and say so in table.py"
    )
    assert not repair.fixed_in, (
        f"{repair.library} {repair.fixed_in} has mended it: remove hpcml/repairs/{repair.module}.py"
    )


def test_each_repair_has_a_switch_and_a_row_on_the_page() -> None:
    assert Repairs._fields == tuple(repair.module for repair in REPAIRS)
    page = (ROOT / "docs/upstream/README.md").read_text()
    for repair in REPAIRS:
        assert f"| `{repair.module}` | {repair.library} {repair.tried} |" in page


@pytest.mark.parametrize(
    ("version", "tried", "state"),
    [
        ("26.10.0", "==26.10.0", "applied"),
        ("26.10.00", "==26.10", "applied"),
        ("26.10.0+site", "==26.10.0", "applied"),
        ("26.10.1", "==26.10.0", "untried"),
        ("26.10.0a12", "==26.10.0", "untried"),
        ("26.10.0.dev3", "==26.10.0", "untried"),
        ("", "==26.10.0", "untried"),
        ("2026.7.0", ">=2026.5.0,<=2026.7.1", "applied"),
        ("2026.10.0", ">=2026.5.0,<=2026.7.1", "untried"),
        ("2026.4.9", ">=2026.5.0,<=2026.7.1", "untried"),
        ("26.10.0", "~=26.10.0", "untried"),  # a clause that is not known
    ],
)
def test_a_repair_is_off_for_releases_that_it_was_not_tried_with(version: str, tried: str, state: str) -> None:
    assert repairs._state(REPAIRS[0]._replace(tried=tried), version) == state


def test_each_repair_is_switched_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    versions = releases_in_use()
    monkeypatch.setattr(repairs, "_installed", lambda: versions)
    names = [repair.module for repair in REPAIRS]
    assert repairs.variables(dict.fromkeys(names, True)) == ()
    assert all(map(repairs.is_on, names))
    for name in names:
        ((variable, value),) = repairs.variables({other: other != name for other in names})
        monkeypatch.setenv(variable, value)
        assert [other for other in names if not repairs.is_on(other)] == [name]
        assert repairs.decisions(versions)[name].state == repairs.OFF
    assert repairs.variables(dict.fromkeys(names, False)) == (repairs.NO_REPAIRS,)
    monkeypatch.setenv(*repairs.NO_REPAIRS)
    assert not any(map(repairs.is_on, names))


def test_a_release_that_the_process_has_loaded_counts_before_the_installed_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repairs, "_installed", lambda: {"ucx": "1.21.0"})
    assert repairs.is_on("dead_worker_memory")
    assert not repairs.is_on("dead_worker_memory", "1.18.0")
    ucxx = ModuleType("ucxx")
    ucxx.get_ucx_version = lambda: (1, 18, 0)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "ucxx", ucxx)
    assert dead_worker_memory.ucx_version() == "1.18.0"
    monkeypatch.delitem(sys.modules, "ucxx")
    assert dead_worker_memory.ucx_version() == ""


def test_only_installed_libraries_are_named() -> None:
    found = repairs.decisions({"distributed": "2026.9.0", "cloudpickle": "3.1.3"})
    sentences = [decision.sentence(name) for name, decision in found.items()]
    assert sentences == [
        "file_names is applied to cloudpickle 3.1.3",
        says("==2026.7.1, not with 2026.9.0"),
        says("==2026.7.1, not with 2026.9.0"),
    ]
    assert repairs.notes(found) == [f"repair {sentence}." for sentence in sentences[1:]]
    assert repairs.Decision("off", "distributed").sentence("closing") == "closing is off: repairs.closing = false"


def test_one_word_sets_all_switches_and_a_later_layer_one_of_them() -> None:
    layers = Layers()
    layers.add({"repairs": False}, "config.toml", Origin.USER)
    layers.add(from_assignments(["repairs.spilling=true"]), "--set", Origin.TYPED)
    assert build(Site, layers).repairs == Repairs(*(name == "spilling" for name in Repairs._fields))
    layers.add(from_assignments(["repairs=true", "repairs.closing=false"]), "--set", Origin.TYPED)
    assert build(Site, layers).repairs == Repairs(closing=False)
    layers.add({"repairs": "no"}, "config.toml", Origin.USER)
    with pytest.raises(ConfigError):
        build(Site, layers)


def test_cloudpickle_still_drops_the_names_of_files() -> None:
    keep, code = "from hpcml.repairs import file_names; file_names.keep(); ", FUNCTIONS_THAT_TRAVEL
    assert "/my/file.py" not in output(code), "cloudpickle keeps them by itself: remove hpcml/repairs/file_names.py"
    assert output(f"{keep}{keep}{code}") == "/my/file.py /my/file.py /my/file.py <dynamic-code>"
    name, value = repairs.NO_REPAIRS
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
