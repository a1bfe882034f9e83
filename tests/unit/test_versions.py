"""What a role's versions are, and what is said when two roles differ."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from hpcml.kinds.dask import KIND
from hpcml.kinds.dask.node.security import tls
from hpcml.kinds.ranks import KIND as RANKS
from hpcml.node import versions_and_clocks
from hpcml.node.context import Context
from hpcml.paths import RunPaths

OWN = {"python": "3.12.4", "dask": "2026.7.1", "distributed": "2026.7.1", "numpy": "2.4.6"}


@pytest.fixture
def context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Context:
    monkeypatch.setattr(versions_and_clocks, "here", lambda: OWN)
    run = RunPaths(tmp_path)
    return Context(run, run.attempt(0), 0, None, "n1", ("n1", "n2", "n3"))  # type: ignore[arg-type]


def tell(compared: versions_and_clocks.Comparison, who: str, found: dict[str, str]) -> None:
    role, _, node = who.partition("@")
    compared.take(role, node, found, time.time(), 0.0)


def tell_all(context: Context, **others: dict[str, str]) -> versions_and_clocks.Comparison:
    compared = versions_and_clocks.Comparison(context, KIND.roles, behind=tls.EARLY, ahead=tls.LATE)
    for who in ("scheduler@n1", "worker@n1", "worker@n2", "worker@n3"):
        tell(compared, who, OWN | others.get(who.replace("@", "_"), {}))
    return compared


def test_names_of_folders_are_read_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wheels, Debian's packages, conda's and those that end in CUDA's version; the first on the path counts."""
    first, second = tmp_path / "first", tmp_path / "second"
    for folder, names in (
        (first, ("dask-2026.7.1.dist-info", "cupy_cuda12x-13.6.0.dist-info", "scikit_learn-1.9.1.dist-info",
                 "rmm_cu13-26.10.0.dist-info", "nvidia_cuda_runtime_cu12-12.9.79.dist-info", "other-1.dist-info", "dask")),
        (second, ("dask-2020.1.0.dist-info", "msgpack-1.0.3-py3.11.egg-info", "libucx_cu12-1.19.0.dist-info")),
        (tmp_path / "conda-meta", ("ucx-1.20.0-h1_0.json", "cuda-cudart-13.1.80-h2_0.json", "history")),
    ):  # fmt: skip
        for name in names:
            (folder / name).mkdir(parents=True)
    monkeypatch.setattr(sys, "path", [str(first), str(tmp_path / "nowhere"), str(second)])
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    found = versions_and_clocks.here()
    assert found.pop("python").startswith("3.")
    assert found == {"cuda": "12.9.79", "cupy": "13.6.0", "dask": "2026.7.1", "msgpack": "1.0.3", "rmm": "26.10.0",
                     "scikit-learn": "1.9.1", "ucx": "1.19.0"}  # fmt: skip


def test_all_alike(context: Context) -> None:
    compared = versions_and_clocks.Comparison(context, KIND.roles, behind=tls.EARLY, ahead=tls.LATE)
    assert (compared.complete, compared.ends) == (False, "")
    tell(compared, "worker@n2", OWN)
    assert not compared.complete
    compared = tell_all(context)
    assert (compared.complete, compared.ends, compared.notes) == (True, "", [])
    assert compared.summary == "5 processes, python 3.12.4, dask 2026.7.1"


@pytest.mark.parametrize(("change", "ends"), [
    ({"distributed": "2026.7.0"}, "distributed is 2026.7.1 in the script on n1, 2026.7.0 in the workers on n2"),
    ({"python": "3.11.9"}, "python is 3.12.4 in the script on n1, 3.11.9 in the workers on n2"),
    ({"numpy": "1.26.4"}, "numpy is 2.4.6 in the script on n1, 1.26.4 in the workers on n2"),
    ({"python": "3.11.9", "dask": "1.0", "lz4": "4"}, "in the workers on n2; dask and lz4 also differ"),
    ({"python": "3.12.9", "numpy": "2.4.5"}, ""),
    ({"cudf": "26.10.0"}, "cudf is missing in the script on n1, 26.10.0 in the workers on n2"),
])  # fmt: skip
def test_what_ends_a_run(context: Context, change: dict[str, str], ends: str) -> None:
    compared = tell_all(context, worker_n2=change)
    assert compared.ends.endswith(ends) if ends else compared.ends == ""
    assert bool(compared.notes) == (not ends)


def test_a_difference_is_known_before_all_have_told(context: Context) -> None:
    compared = versions_and_clocks.Comparison(context, KIND.roles, behind=tls.EARLY, ahead=tls.LATE)
    tell(compared, "scheduler@n1", {**OWN, "dask": "2020.1.0"})
    assert "2020.1.0 in the scheduler on n1" in compared.ends
    assert not compared.complete


def test_what_ranks_tell_over_their_connection(context: Context) -> None:
    compared = versions_and_clocks.Comparison(context, RANKS.roles[:1], shown=("python", "torch"))
    began = time.time() - 0.5
    for node, theirs, ahead in (("n1", OWN, 0.0), ("n2", OWN | {"torch": "2.11.0"}, 0.0), ("n3", OWN, 60.0)):
        compared.take("rank", node, theirs, time.time() + ahead, began)
    assert compared.complete
    assert compared.ends.endswith("torch is missing in the script on n1, 2.11.0 in the ranks on n2")
    assert compared.summary == "4 processes, python 3.12.4"
    assert compared.clocks.bounds["n2"][1] < 30  # not the time since the batch script began
    assert "the clock of n3 is 60 s or more ahead of n1's" in compared.clocks.note
    assert compared.clocks.fatal == ""  # ranks have no certificate


def test_many_nodes_and_two_versions(context: Context) -> None:
    compared = tell_all(context, worker_n1={"dask": "1"}, worker_n2={"dask": "1"}, worker_n3={"dask": "2"})
    assert compared.ends.endswith("1 in the workers on n1 and the workers on n2, 2 in the workers on n3")


def test_a_process_of_the_script_knows_which_version_keeps_it_from_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(versions_and_clocks, "here", lambda: {"python": "3.12.4", "distributed": "1.2.3"})
    assert versions_and_clocks.unlike(OWN) == "distributed is 1.2.3 in this process but 2026.7.1 in the run"
    monkeypatch.setattr(
        versions_and_clocks, "here", lambda: {"python": "3.12.9", "numpy": "1"}
    )  # without Dask, it opens no client
    assert versions_and_clocks.unlike(OWN) == ""
