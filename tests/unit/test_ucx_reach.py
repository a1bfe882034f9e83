"""When Dask may use UCX: by whom its TCP, which lets everybody write to a process's memory, can be reached."""

from __future__ import annotations

import importlib.util
import itertools
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hpcml.kinds.dask.login import plan as dask_plan
from hpcml.kinds.dask.node.security import tls
from hpcml.node.hardware import dask_protocol, record, sysfs
from hpcml.plan.make_plan import RunLocation, plan
from hpcml.request.record import RunRequest
from hpcml.settings import Settings
from hpcml.sites import lookup, schema, settings_layers
from node_settings import settings

GPU = SimpleNamespace(count=4)
# (nodes, whole nodes, private network): what auto may use of UCX, and its protocol where all nodes have RDMA, and not
TABLE = {
    (1, False, False): ("", "tls", "tls"),
    (1, False, True): ("", "tls", "tls"),
    (1, True, False): ("loopback", "ucx", "ucx"),
    (1, True, True): ("loopback", "ucx", "ucx"),
    (2, False, False): ("rdma", "ucx", "tls"),
    (2, False, True): ("rdma", "ucx", "tls"),
    (2, True, False): ("rdma", "ucx", "tls"),
    (2, True, True): ("all", "ucx", "ucx"),
}


def gpu_run(nodes: int, whole: bool, private: bool, protocol: str = "auto", gpu: Any = GPU) -> Settings:
    return settings(
        job__nodes=nodes, job__gpus=gpu.count if gpu else 0, job__one_machine=False, job__whole_nodes=whole,
        network__private=private, network__protocol=protocol, workers__gpu=gpu,
    )  # fmt: skip


@pytest.fixture(autouse=True)
def _ucx_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: object())
    for name in ("UCX_TLS", "UCX_NET_DEVICES", "UCXPY_PROGRESS_MODE"):
        monkeypatch.delenv(name, raising=False)


def test_who_reaches_ucx_decides(subtests: pytest.Subtests) -> None:
    assert set(TABLE) == set(itertools.product((1, 2), (False, True), (False, True)))
    for case, (ucx, with_rdma, without) in TABLE.items():
        with subtests.test(case=case):
            inside = gpu_run(*case)
            assert inside.ucx == ucx
            assert dask_protocol.choose_protocol(inside)[0] == with_rdma
            assert dask_protocol.choose_protocol(inside, ["n2"])[0] == without
            for asked, used in (("ucx", "all"), ("tls", ""), ("tcp", "")):
                explicit = gpu_run(*case, protocol=asked)
                assert explicit.ucx == used
                assert dask_protocol.choose_protocol(explicit, ["n2"])[0] == asked


def test_runs_without_several_gpus_speak_tls(subtests: pytest.Subtests) -> None:
    for nodes, gpu in ((1, None), (4, None), (1, SimpleNamespace(count=1))):
        with subtests.test(nodes=nodes, gpu=gpu):
            inside = gpu_run(nodes, whole=True, private=True, gpu=gpu)
            assert inside.ucx == ""
            assert dask_protocol.choose_protocol(inside)[0] == "tls"


def test_one_gpu_a_node_needs_rdma(monkeypatch: pytest.MonkeyPatch) -> None:
    inside = gpu_run(2, whole=True, private=True, gpu=SimpleNamespace(count=1))
    monkeypatch.setattr(sysfs, "rdma_ports", lambda _: [])
    assert dask_protocol.choose_protocol(inside) == ("tls", "one GPU on each node and no InfiniBand")
    monkeypatch.setattr(sysfs, "rdma_ports", lambda _: [SimpleNamespace(device="mlx5_0")])
    assert dask_protocol.choose_protocol(inside) == ("ucx", "InfiniBand on mlx5_0")


def test_the_reason_names_the_key() -> None:
    assert dask_protocol.choose_protocol(gpu_run(1, whole=False, private=False))[1].endswith("see resources.exclusive")
    names = [f"n{number}" for number in range(1, 7)]
    because = dask_protocol.choose_protocol(gpu_run(2, whole=False, private=False), names)[1]
    assert because.startswith("UCX has no RDMA on n1, n2, n3, n4, …, and")
    assert because.endswith("see network.private")


@pytest.mark.parametrize(("nodes", "name", "value", "protocol"), [
    (2, "UCX_TLS", "all", "tls"), (2, "UCX_NET_DEVICES", "mlx5_0:1", "ucx"),
    (1, "UCX_NET_DEVICES", "eth0", "tls"), (1, "UCX_NET_DEVICES", "lo", "ucx"), (1, "UCX_TLS", "all", "ucx"),
])  # fmt: skip
def test_a_variable_that_may_open_ucx(
    nodes: int, name: str, value: str, protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    chosen, because = dask_protocol.choose_protocol(gpu_run(nodes, whole=True, private=False))
    assert chosen == protocol
    assert protocol == "ucx" or because == f"{name} may open UCX to other users; see network.protocol"


def test_ucx_without_tcp(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UCXPY_PROGRESS_MODE", "polling")
    assert dask_protocol.ucx_environment(single_node=False, tcp=False) == {"UCX_TLS": "^tcp,sysv"}


def hardware(transports: dict[str, tuple[str, ...]], modules: tuple[str, ...], address: tuple[str, ...]) -> str:
    interface = record.Interface("ib0", "infiniband", address)
    node = record.Node(
        record.Probing(record.SCHEMA),
        network=record.Network(interfaces=(interface,)),
        ucx=record.Ucx(modules=modules, transports=transports),
    )
    return json.dumps(record.to_json(node))


def test_which_nodes_have_rdma(tmp_path: Path) -> None:
    rc: dict[str, tuple[str, ...]] = {"rc_mlx5": ("mlx5_0:1",)}
    both, address = ("ib", "rdmacm"), ("10.0.0.1",)
    nodes = {
        "good": hardware(rc, both, address),
        "pip": hardware({"tcp": ("ib0",)}, ("cma",), address),
        "no-rdmacm": hardware(rc, ("ib",), address),
        "no-address": hardware(rc, both, ()),
        "broken": "{}",
    }
    for name, text in nodes.items():
        (tmp_path / f"{name}.json").write_text(text)
    context: Any = SimpleNamespace(
        node_names=[*nodes, "silent"],
        attempt=SimpleNamespace(probe_of=lambda node: tmp_path / f"{node}.json"),
        settings=settings(),
    )
    assert dask_protocol.nodes_without_rdma(context, 0.0) == ("pip", "no-rdmacm", "no-address", "broken", "silent")


def test_the_security_line_names_what_is_open() -> None:
    line = tls.explanation("ucx", {"lo"}, gpus=False, rdma={"mlx5_1:1", "mlx5_0:1"})
    assert line.endswith(f"; {tls.OPEN}: UCX's TCP on lo, UCX's RDMA on mlx5_0:1 and mlx5_1:1")


def planned(**values: Any) -> Any:
    """Return the plan of a request with four GPUs a node on a site with these settings, by their keys."""
    given = settings_layers.Layers()
    site = settings_layers.build(schema.Site, given)
    request = values.pop("request", {})
    for key, value in values.items():
        group, _, name = key.partition("__")
        site = site._replace(**{group: getattr(site, group)._replace(**{name: value}) if name else value})
    spec = RunRequest.of(Path("/home/u/job.py"), (), Path("/home/u"), **{"nodes": 1, "gpus_per_node": 4, **request})
    return plan(site, spec, RunLocation(Path("/home/u/.hpcml/runs/job"), "/usr/bin/python3", "0"))


PARTITION = schema.Partition(gpus_per_node=4, cpus_per_node=32)
REPORTED = {
    "partitions.gpu.cpus_per_node": schema.Fact("reported"),
    "partitions.gpu.whole_nodes": schema.Fact("guessed"),
}
LINE = {"resources.exclusive": schema.Fact("reported", source="job.py:1")}
SITES: list[tuple[str, dict[str, Any], bool]] = [
    ("nothing is known", {}, False),
    ("exclusive", {"resources__exclusive": True}, True),
    ("exclusive, but shared", {"resources__exclusive": True, "slurm__extra": ("--oversubscribe",)}, False),
    ("exclusive for a user", {"slurm__extra": ("--exclusive=user",)}, True),
    ("exclusive by the request", {"request": {"sbatch": (("--exclusive", ""),)}}, True),
    ("all CPUs", {"partitions": {"gpu": PARTITION}}, True),
    ("all CPUs as reported", {"partitions": {"gpu": PARTITION}, "facts": REPORTED}, False),
    ("some CPUs", {"partitions": {"gpu": PARTITION}, "request": {"gpus_per_node": 2}}, False),
    ("whole nodes", {"partitions": {"gpu": schema.Partition(gpus_per_node=4, whole_nodes=True)}}, True),
    ("whole nodes as guessed", {"partitions": {"gpu": schema.Partition(gpus_per_node=4, whole_nodes=True)},
                                "facts": REPORTED}, False),
    ("a machine", {"scheduler": "local"}, False),
    ("a machine of one's own", {"scheduler": "local", "resources__exclusive": True}, True),
    ("a machine as a line says", {"scheduler": "local", "resources__exclusive": True, "facts": LINE}, False),
    ("an allocation", {"scheduler": "allocation", "resources__exclusive": True}, True),
    ("an allocation as a line says", {"scheduler": "allocation", "resources__exclusive": True, "facts": LINE}, False),
]  # fmt: skip


def test_whole_nodes_are_certain_or_not(subtests: pytest.Subtests) -> None:
    for what, values, whole in SITES:
        with subtests.test(what):
            made = planned(**values)
            assert made.inside.job.whole_nodes == whole
            notes = [note for note in made.notices if "TLS, not UCX" in note]
            assert bool(notes) != whole
            assert whole or notes[0].endswith("add --set resources.exclusive=true")


ALONE = {
    "partitions.gpu.whole_nodes": "true", "partitions.gpu.cpus_per_node": "1", "qos.long.whole_nodes": "true",
    "resources.exclusive": "true",
}  # fmt: skip


def test_of_other_users_somebody_else_s_file_is_not_believed(tmp_path: Path, subtests: pytest.Subtests) -> None:
    """Else a cloned project opened UCX's ports on nodes where other users' jobs are."""
    for key, value in ALONE.items():
        name, _, last = key.rpartition(".")
        for by in ("project", "line", "user"):
            with subtests.test(key=key, by=by):
                (tmp_path / "hpcml.toml").write_text(f"[{name}]\n{last} = {value}\n" if by == "project" else "")
                said = [f"{key}={value}"] if by == "user" else []
                lines = [(f"{key}={value}", "job.py:1")] if by == "line" else []
                site = lookup.load("slurm", {}, tmp_path, said, lines).site
                assert bool(site.doubtful(key)) == (by != "user")
                assert site.doubts() == 0


def test_no_note_where_the_user_chose(subtests: pytest.Subtests) -> None:
    for protocol in ("tls", "ucx"):
        with subtests.test(protocol):
            assert not dask_plan.notices(gpu_run(1, whole=False, private=False, protocol=protocol))
