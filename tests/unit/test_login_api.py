"""The names of hpcml in Python, and keywords as the command line's options."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import hpcml
from hpcml import login_api
from hpcml.cli.main import build_parser
from hpcml.sites import layers


def test_names() -> None:
    assert dir(hpcml) == sorted(hpcml.__all__)
    for name in hpcml.__all__:
        assert name == "__version__" or getattr(hpcml, name).__doc__
    assert not hasattr(hpcml, "nosuch")


def test_importing_hpcml_imports_little() -> None:
    code = "import sys, hpcml; print(*(name for name in sys.modules if name.startswith('hpcml') or name == 'dask'))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["hpcml"]


@pytest.mark.parametrize(("options", "words"), [
    ({}, []),
    ({"nodes": 4, "time": "2h"}, ["--nodes=4", "--time=2h"]),
    ({"gpus_per_node": 0, "site": None, "own_clusters": False}, ["--gpus-per-node=0"]),
    ({"own_clusters": True}, ["--own-clusters"]),
    ({"image": Path("/a b/i.sif")}, ["--image=/a b/i.sif"]),
    ({"set": {"workers.per_node": 4, "paths.trust": ["a"], "x.y": True}},
     ["--set=workers.per_node=4", '--set=paths.trust=["a"]', "--set=x.y=true"]),
    ({"set": ["a.b=1", "c.d=2"]}, ["--set=a.b=1", "--set=c.d=2"]),
    ({"name": "--wait"}, ["--name=--wait"]),
    ({"constraint": "fast", "exclusive": True, "sbatch": ["--nice=5"]}, ["--constraint=fast", "--exclusive", "--sbatch=--nice=5"]),
])  # fmt: skip
def test_keywords_are_options(options: dict[str, Any], words: list[str]) -> None:
    assert login_api.words_of(build_parser("submit"), options) == words


@pytest.mark.parametrize("options", [{"wait": True}, {"dry_run": True}, {"help": True}, {"host": "x"}, {"nodse": 2}])
def test_keywords_that_are_none(options: dict[str, Any]) -> None:
    with pytest.raises(hpcml.HpcmlError, match="has no option") as caught:
        login_api.words_of(build_parser("submit"), options)
    assert caught.value.exit_status == 64
    assert caught.value.hint == ("Did you mean nodes?" if "nodse" in options else caught.value.hint)


def test_the_umask_is_the_program_s_again() -> None:
    before = os.umask(0o027)
    try:
        with layers.narrowed_umask():
            assert layers.user_umask() == 0o027
            assert os.umask(0o027) & 0o022 == 0o022
        assert os.umask(0o027) == 0o027
    finally:
        os.umask(before)


def test_another_host_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HPCML_HOST", "login")
    with pytest.raises(hpcml.HpcmlError, match="HPCML_HOST names another"):
        hpcml.submit("x.py")
