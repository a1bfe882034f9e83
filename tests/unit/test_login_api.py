"""The names of hpcml in Python, and keywords as the command line's options."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import hpcml
from hpcml.request import options, reading
from hpcml.request.record import Code
from hpcml.sites import layers


def test_names() -> None:
    assert dir(hpcml) == sorted(hpcml.__all__)
    for name in hpcml.__all__:
        assert name == "__version__" or getattr(hpcml, name).__doc__
    assert not hasattr(hpcml, "nosuch")


@pytest.mark.parametrize(("name", "module", "message"), [
    ("map", "submitit", "hpcml.map needs submitit (submitit).\nInstall the package: pip install 'hpcml[sweep]'."),
    ("ElasticCluster", "dask_jobqueue",
     "hpcml.ElasticCluster needs dask-jobqueue (dask_jobqueue).\nInstall the package: pip install 'hpcml[interactive]'."),
])  # fmt: skip
def test_a_name_whose_package_is_missing_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, name: str, module: str, message: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    stand_in = getattr(hpcml, name)
    assert isinstance(stand_in, type)
    assert stand_in.__doc__
    with pytest.raises(hpcml.HpcmlError) as caught:
        stand_in(abs, [1], site="local")
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
    ({}, {}),
    ({"nodes": 4, "time": "2h"}, {"nodes": "4", "time": "2h"}),
    ({"gpus_per_node": 0, "site": None, "own_clusters": False}, {"gpus_per_node": "0"}),
    ({"own_clusters": True}, {"own_clusters": True}),
    ({"image": Path("/a b/i.sif")}, {"image": "/a b/i.sif"}),
    ({"set": {"workers.per_node": 4, "paths.trust": ["a"], "x.y": True}},
     {"set": ["workers.per_node=4", 'paths.trust=["a"]', "x.y=true"]}),
    ({"set": ["a.b=1", "c.d=2"]}, {"set": ["a.b=1", "c.d=2"]}),
    ({"name": "--wait"}, {"name": "--wait"}),
    ({"constraint": "fast", "exclusive": True, "sbatch": ["--nice=5"]},
     {"sbatch": ["--constraint=fast", "--exclusive", "--nice=5"]}),
])  # fmt: skip
def test_keywords_are_options(keywords: dict[str, Any], given: dict[str, Any]) -> None:
    assert reading.given_by_keywords(keywords, options.of("python"), "hpcml.submit()") == given


def test_the_request_of_keywords() -> None:
    code = Code(Path("/x/job.py"))
    keywords = {
        "nodes": 4, "gpus_per_node": "a100:2", "site": "leonardo", "set": {"a.b": 1}, "env": {"A": "x"},
        "max_restarts": 0,
    }  # fmt: skip
    spec = reading.request_of(reading.given_by_keywords(keywords, options.of("python"), "hpcml.submit()"), code)
    assert (spec.size.nodes, spec.size.gpu_type, spec.size.gpus_per_node, spec.attempts.max_restarts) == (
        4,
        "a100",
        2,
        0,
    )
    assert (spec.place.site, spec.place.settings, spec.environment) == ("leonardo", ("a.b=1",), (("A", "x"),))
    assert {"site", "settings"}.isdisjoint(spec.given())


@pytest.mark.parametrize("name", ["wait", "dry_run", "help", "host", "nodse", "protocol"])
def test_keywords_that_are_none(name: str) -> None:
    with pytest.raises(hpcml.HpcmlError, match="has no option") as caught:
        reading.given_by_keywords({name: "x"}, options.of("python"), "hpcml.submit()")
    assert caught.value.exit_status == 64
    hints = {"nodse": "Did you mean nodes?", "protocol": "Use --set network.protocol=ucx."}
    assert caught.value.hint == hints.get(name, caught.value.hint)


def test_a_flag_has_no_other_value() -> None:
    with pytest.raises(hpcml.HpcmlError, match="'exclusive' must be True or False"):
        reading.given_by_keywords({"exclusive": "user"}, options.of("python"), "hpcml.submit()")


@pytest.mark.parametrize("umask", [0o027, 0o002])
def test_the_umask_is_the_program_s_again(umask: int) -> None:
    before = os.umask(umask)
    try:
        with layers.narrowed_umask():
            assert layers.user_umask() == umask
            assert os.umask(umask) & 0o022 == 0o022
        assert os.umask(umask) == umask
    finally:
        os.umask(before)


def test_another_host_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HPCML_HOST", "login")
    with pytest.raises(hpcml.HpcmlError, match="HPCML_HOST names another"):
        hpcml.submit("x.py")
