"""hpcml in Python: what is missing, and keywords as the command line's options."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import hpcml
from hpcml.options import reading, table
from hpcml.request.record import Code
from hpcml.sites import settings_layers


def test_a_name_whose_package_is_missing_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "submitit", None)
    with pytest.raises(hpcml.HpcmlError) as caught:
        hpcml.map(abs, [1], site="local")
    message = "hpcml.map needs submitit (submitit).\nInstall the package: pip install 'hpcml[sweep]'."
    assert str(caught.value) == message


@pytest.mark.parametrize(("missing", "raised"), [("hpcml.api", AttributeError), ("numpy", ModuleNotFoundError)])
def test_a_module_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch, missing: str, raised: type) -> None:
    """Inside a run hpcml has no part that submits; another package that lacks is the user's to install."""

    def fail(_: str) -> None:
        raise ModuleNotFoundError(f"No module named {missing!r}", name=missing)

    monkeypatch.setattr("importlib.import_module", fail)
    with pytest.raises(raised):
        hpcml.__getattr__("submit")


def test_importing_hpcml_imports_little() -> None:
    code = "import sys, hpcml; print(*(name for name in sys.modules if name.startswith('hpcml') or name == 'dask'))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["hpcml"]


@pytest.mark.parametrize(("keywords", "given"), [
    ({"nodes": 4, "time": "2h"}, {"nodes": "4", "time": "2h"}),
    ({"gpus_per_node": 0, "site": None, "own_clusters": False}, {"gpus_per_node": "0"}),
    ({"own_clusters": True, "image": Path("/a b/i.sif")}, {"own_clusters": True, "image": "/a b/i.sif"}),
    ({"set": {"workers.per_node": 4, "paths.trust": ["a"], "x.y": True}},
     {"set": ["workers.per_node=4", 'paths.trust=["a"]', "x.y=true"]}),
    ({"set": ["a.b=1", "c.d=2"]}, {"set": ["a.b=1", "c.d=2"]}),
    ({"name": "--wait"}, {"name": "--wait"}),
    ({"constraint": "fast", "exclusive": True, "sbatch": ["--nice=5"]},
     {"sbatch": ["--constraint=fast", "--exclusive", "--nice=5"]}),
])  # fmt: skip
def test_keywords_are_options(keywords: dict[str, Any], given: dict[str, Any]) -> None:
    assert reading.given_by_keywords(keywords, table.of("python"), "hpcml.submit()") == given


def test_the_request_of_keywords() -> None:
    code = Code(Path("/x/job.py"))
    keywords = {
        "nodes": 4, "gpus_per_node": "a100:2", "site": "leonardo", "set": {"a.b": 1}, "env": {"A": "x"},
        "max_restarts": 0,
    }  # fmt: skip
    spec = reading.request_of(reading.given_by_keywords(keywords, table.of("python"), "hpcml.submit()"), code)
    size = spec.size
    assert (size.nodes, size.gpu_type, size.gpus_per_node, spec.attempts.max_restarts) == (4, "a100", 2, 0)
    assert (spec.place.site, spec.place.settings, spec.environment) == ("leonardo", ("a.b=1",), (("A", "x"),))
    assert {"site", "settings"}.isdisjoint(spec.given())


@pytest.mark.parametrize("name", ["wait", "host", "nodse", "protocol"])
def test_keywords_that_are_none(name: str) -> None:
    with pytest.raises(hpcml.HpcmlError, match="has no option") as caught:
        reading.given_by_keywords({name: "x"}, table.of("python"), "hpcml.submit()")
    assert caught.value.exit_status == 64
    hints = {"nodse": "Did you mean nodes?", "protocol": "Use --set network.protocol=ucx."}
    assert caught.value.hint == hints.get(name, caught.value.hint)


def test_a_flag_has_no_other_value() -> None:
    with pytest.raises(hpcml.HpcmlError, match="'exclusive' must be True or False"):
        reading.given_by_keywords({"exclusive": "user"}, table.of("python"), "hpcml.submit()")


@pytest.mark.parametrize("umask", [0o027, 0o002])
def test_the_umask_is_the_program_s_again(umask: int) -> None:
    before = os.umask(umask)
    try:
        with settings_layers.narrowed_umask():
            assert settings_layers.user_umask() == umask
            assert os.umask(umask) & 0o022 == 0o022
        assert os.umask(umask) == umask
    finally:
        os.umask(before)


def test_another_host_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HPCML_HOST", "login")
    with pytest.raises(hpcml.HpcmlError, match="HPCML_HOST names another"):
        hpcml.submit("x.py")


def test_an_absent_script_is_perhaps_an_option_s_value_only_as_a_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name, has_order in (("absent.py", False), ("absent.ipynb", False), ("8", True)):
        with pytest.raises(hpcml.HpcmlError) as caught:
            hpcml.submit(name, site="local")
        assert (caught.value.exit_status, caught.value.place) == (66, str(tmp_path / name))
        assert (caught.value.hint != "Check the spelling.", "before SCRIPT" in caught.value.hint) == (has_order,) * 2


@pytest.mark.parametrize("name", [f"{'x' * 300}.py", "ring", "ring/a.py"])
def test_a_script_s_name_that_the_system_refuses(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "ring").symlink_to("ring")
    with pytest.raises(hpcml.HpcmlError) as caught:
        hpcml.submit(name, site="local")
    assert (caught.value.exit_status, caught.value.place) == (74, str(tmp_path / name))
