"""What is said of a node that cannot serve a run, and of nodes that differ: sentences, their order and what they spare."""

from __future__ import annotations

import contextlib
import copy
import itertools
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hpcml.node.hardware import preflight, probe, python_environment, record
from hpcml.node.hardware.differences import differences as differences_of
from hpcml.node.hardware.problems_for_run import Trouble, find_troubles
from tests.fixtures.nodes import tree
from tests.said import says

Facts = dict[str, Any]
Change = Callable[[Facts], object]

# What a good environment for CUDA 12 has; the probe of the machine that runs the tests says something else.
CUDA12 = {"rmm-cu12": "26.10.0", "libucx-cu12": "1.21.0", "distributed-ucxx-cu12": "0.52.0", "dask-cuda": "26.10.0"}
UNLIMITED = {"soft": None, "hard": None}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Facts:
    """Return the probe of a node on which nothing is wrong; who wants another changes a copy."""
    tmp_path = tmp_path_factory.mktemp("node")
    tree.build("leonardo", tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        facts = record.to_json(probe.probe(tmp_path, drivers=tree.raw("leonardo.nvml"), ucx=tree.raw("conda.ucx")))
    facts |= {**python_environment.packages(CUDA12, {}), "importable": ["dask_cuda", "distributed_ucxx"]}
    facts |= {"limits": {"locked_memory": UNLIMITED, "open_files": {"soft": 65536, "hard": 65536}}}
    return {**facts, "cpus": cpus(32, "0-31")}


def cpus(count: int = 0, numbers: str = "") -> Facts:
    return {"count": count, "list": numbers, "online": 32, "threads": 1}


def changed(facts: Facts, change: Change) -> Facts:
    facts = copy.deepcopy(facts)
    change(facts)
    return facts


def set_in(*path: str | int, to: object) -> Change:
    def change(facts: Any) -> None:
        for step in path[:-1]:
            facts = facts[step]
        facts[path[-1]] = to

    return change


def environment(*wheels: str) -> Change:
    return lambda facts: facts.update(python_environment.packages(dict.fromkeys(wheels, "26.10.0"), {}))


def both(*changes: Change) -> Change:
    return lambda facts: [change(facts) for change in changes]


def found(facts: Facts, *, gpus: int = 4, cuda: str = "12", protocol: str = "ucx") -> list[Trouble]:
    settings: Any = settings_of(gpus, cuda, protocol)
    return find_troubles(record.from_json(facts), preflight.demand_of(settings))


def settings_of(gpus: int, cuda: str, protocol: str) -> SimpleNamespace:
    """Return the settings of a run with GPU workers, or with CPU workers."""
    gpu = SimpleNamespace(count=gpus, cuda=cuda) if gpus else None
    return SimpleNamespace(
        gpus=gpus, workers=SimpleNamespace(gpu=gpu), network=SimpleNamespace(protocol=protocol, interconnect="")
    )


def test_nothing_is_wrong(node: Facts) -> None:
    for cuda, protocol, gpus in itertools.product(("", "12"), ("auto", "tls", "ucx"), (0, 1, 4)):
        assert found(node, gpus=gpus, cuda=cuda, protocol=protocol) == [], (cuda, protocol, gpus)


def differences(probes: dict[str, Facts]) -> list[str]:
    return differences_of({name: record.from_json(facts) for name, facts in probes.items()})


def with_ucx(raw: Facts) -> Change:
    ucx, fault = probe.described_ucx(raw)
    node = record.to_json(record.Node(record.Probing(1, errors={"ucx": fault}), ucx=ucx))
    return lambda facts: facts.update(ucx=node["ucx"], ucx_error=fault)


def newer(driver: str, cuda: str, *wheels: str) -> Change:
    return both(set_in("driver", to=driver), set_in("cuda_driver", to=cuda), environment(*wheels))


ABSENT = both(
    set_in("gpus", to=[]), set_in("visible_count", to=0), set_in("gpu_error", to="NVML Shared Library Not Found")
)
SLOW_NVML = both(ABSENT, set_in("late", to=["driver"]))
CASES: list[tuple[str, Change, str, str, bool]] = [
    ("driver of CUDA 12, packages of 13", environment("rmm-cu13", "cudf-cu13"),
     "driver 535.274.02 supports CUDA 12.2, but this environment's RAPIDS is built for CUDA 13, which needs driver 580 or newer",
     "Install hpcml's extra cuda12, or use an image for CUDA 12.", True),
    ("too old for either", newer("470.82.01", "11.4", "rmm-cu12"),
     "driver 470.82.01 supports CUDA 11.4, but this environment's RAPIDS is built for CUDA 12, which needs driver 535 or newer",
     "Ask the site for a newer driver, or use an image or environment for an older CUDA.", True),
    ("the profile is out of date", newer("580.95.05", "13.0", "rmm-cu13"),
     "the profile names CUDA 12, but this environment's RAPIDS is built for CUDA 13, which driver 580.95.05 can run",
     "Use an environment or image for CUDA 12, or correct gpu.cuda.", False),
    ("fewer GPUs", both(set_in("visible_count", to=3), set_in("visible_devices", to="0,1,2")),
     "the job sees 3 GPUs, but the run requests 4 (CUDA_VISIBLE_DEVICES is '0,1,2', the driver shows 4 GPUs)", "slurm.gpu_request", True),
    ("no GPU shown", both(set_in("visible_count", to=0), set_in("visible_devices", to="NoDevFiles")),
     "the job sees 0 GPUs, but the run requests 4", "run nvidia-smi on this node", True),
    ("no driver's library in the container", ABSENT,
     "no GPU is visible (NVML Shared Library Not Found)", "--nv", True),
    ("no driver on the node", both(ABSENT, set_in("modules", "nvidia", to=None)), "no GPU is visible", "nodes with GPUs", True),
    ("NVML is slow", SLOW_NVML, "no GPU is visible", "slowly or hangs", False),
    ("one GPU is lost", set_in("gpu_error", to="gpu3: GPU is lost"), "NVML reports a fault (gpu3: GPU is lost)", "Exclude this node", False),
    ("mixed packages", environment("rmm-cu12", "cupy-cuda13x", "nvidia-nccl-cu13"),
     "the environment mixes packages for different CUDA versions (CUDA 12: rmm-cu12; CUDA 13: cupy-cuda13x)", "again", True),
    ("no distributed-ucxx", set_in("importable", to=["dask_cuda"]),
     "protocol ucx needs distributed-ucxx, which is not installed", "extra cuda12, or use --set network.protocol=tls", True),
    ("no dask-cuda", set_in("importable", to=["distributed_ucxx"]),
     "GPU workers need dask-cuda, which is not installed", "extra cuda12", True),
    ("UCX fails", both(set_in("ucx_error", to="too old"), set_in("ucx", "transports", to={})), "UCX does not work here (too old)", "UCX_*", True),
    ("UCX is slow", both(set_in("ucx_error", to="no answer"), set_in("ucx", "transports", to={}), set_in("late", to=["ucx"])),
     "UCX does not work here (no answer)", "UCX", False),
    ("pip's UCX", with_ucx(tree.raw("pip.ucx")),
     "would use TCP between nodes, not this node's RDMA network: this UCX was built without InfiniBand", "UCX from pip does not support InfiniBand", False),
    ("UCX kept to TCP", set_in("ucx", "transports", to={"tcp": ["ib0"]}),
     "UCX 1.19.0 (/opt/conda/lib/libucp.so.0.0.0) would use TCP between nodes, not this node's RDMA network: UCX found no usable InfiniBand device",
     "UCX_TLS", False),
    ("a contained container", both(set_in("ucx", "transports", to={"tcp": ["ib0"]}), set_in("modules", "verbs", to=[])),
     "/dev/infiniband does not exist", "Bind /dev/infiniband", False),
    ("a port is down", both(set_in("infiniband", 1, "state", to="DOWN"), set_in("infiniband", 1, "physical_state", to="Polling")),
     "InfiniBand port mlx5_1:1 is DOWN (Polling)", "exclude this node", False),
    ("locked memory", set_in("limits", "locked_memory", to={"soft": 65536, "hard": 65536}),
     "locked memory is limited to 64 KiB, but RDMA needs unlimited locked memory", "Ask the site", False),
    ("locked memory that may be raised", set_in("limits", "locked_memory", to={"soft": 65536, "hard": None}),
     "locked memory is limited to 64 KiB", "ulimit -l unlimited", False),
    ("MIG", both(set_in("gpus", 0, "mig", to=True), set_in("gpus", 2, "mig", to=True)), "MIG divides GPUs 0 and 2,", "whole GPUs", False),
    ("old GPU", set_in("gpus", 1, "capability", to=[6, 0]),
     "GPU 1 (NVIDIA A100-SXM-64GB) has compute capability 6.0, but RAPIDS for CUDA 12 needs 7.0", "newer GPUs", True),
    ("CPUs of the other half", set_in("cpus", to=cpus(16, "0-15")),
     "this process may use the CPUs 0-15, but not the CPUs closest to GPUs 2 and 3 (16-31)", "all CPUs", False),
]  # fmt: skip


@pytest.mark.parametrize(
    ("change", "sentence", "hint", "fatal"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_what_is_wrong(node: Facts, change: Change, sentence: str, hint: str, fatal: bool) -> None:
    bad = changed(node, change)
    (trouble,) = [trouble for trouble in found(bad) if sentence in trouble.sentence]
    assert hint in trouble.hint
    assert trouble.fatal is fatal
    assert not trouble.sentence.endswith(".")
    assert trouble.hint.endswith(".")
    cpu_run = found(bad, gpus=0, protocol="tls")
    assert cpu_run == []  # workers without GPUs over TLS need none of it


@pytest.mark.parametrize("change", [
    environment("rmm-cu12", "nvidia-nccl-cu13"),  # either NCCL serves both
    newer("580.95.05", "13.0", "rmm-cu12"),  # a newer driver runs older CUDA
    set_in("cpus", to=cpus(18, "0-8,16-24")),  # some cores of every GPU
    set_in("importable_error", to="OSError: stale file handle"),
    both(set_in("gpus", 3, "capability", to=[3, 5]), set_in("gpus", 3, "visible", to=False)),
    both(set_in("infiniband", to=[]), set_in("limits", "locked_memory", to={"soft": 1, "hard": 1}),
         set_in("ucx", "transports", to={"tcp": ["eth0"]})),
    lambda facts: [port.update(link_layer="Ethernet", state="DOWN") for port in facts["infiniband"]],
    set_in("driver", to=""),
])  # fmt: skip
def test_what_is_no_trouble(node: Facts, change: Change) -> None:
    assert found(changed(node, change), gpus=3) == []


def test_a_driver_with_the_compatibility_package_is_believed(node: Facts) -> None:
    assert found(changed(node, newer("535.274.02", "13.0", "rmm-cu13")), cuda="13") == []


def nodes(node: Facts, count: int, **changes: Change) -> dict[str, Facts]:
    return {f"n{number}": changed(node, changes.get(f"n{number}", lambda _: None)) for number in range(1, count + 1)}


def test_what_does_not_end_a_run_is_told_too(node: Facts, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    inspection: Any = object.__new__(preflight.Inspection)
    settings = settings_of(4, "12", "ucx")
    attempt = SimpleNamespace(probe_of=lambda _: tmp_path / "n1.json")
    inspection.context = SimpleNamespace(settings=settings, attempt=attempt, node="n1")
    for facts, fatal in (
        (changed(node, set_in("infiniband", 1, "state", to="DOWN")), False),
        (changed(node, both(set_in("ucx_error", to="too old"), set_in("ucx", "transports", to={}))), True),
    ):
        inspection.question = SimpleNamespace(answer=lambda _, answer=facts: answer)
        with pytest.raises(preflight.UnfitError) if fatal else contextlib.nullcontext():
            inspection.end()
        assert all(one.sentence in capsys.readouterr().err for one in found(facts)[:1])


FEWER = both(lambda facts: facts["gpus"].pop(), set_in("visible_count", to=3))
OTHER_DRIVER = set_in("driver", to="535.104")


@pytest.mark.parametrize(("change", "sentence"), [
    (OTHER_DRIVER, says("n3: driver 535.104", "where the other nodes have 535.274.02")),
    (FEWER, "n3: 3 GPUs where the other nodes have 4"),
    (set_in("limits", "locked_memory", "soft", to=65536), "n3: locked memory 64 KiB where the other nodes have unlimited"),
    (set_in("gpus", 0, "name", to="NVIDIA A100-SXM4-40GB"),
     "n3: NVIDIA A100-SXM-64GB and NVIDIA A100-SXM4-40GB where the other nodes have NVIDIA A100-SXM-64GB"),
    (lambda facts: facts["packages"].pop("dask-cuda"), "n3: no dask-cuda where the other nodes have 26.10.0"),
    (lambda facts: facts["ucx"]["transports"].pop("rc_mlx5"), "n3: no UCX transport rc_mlx5 where the other nodes have it"),
    (set_in("infiniband", 0, "state", to="DOWN"), says("n3: 3 active InfiniBand", "ports where the other nodes have 4")),
    (set_in("infiniband", to=[]), "n3: no active InfiniBand port where the other nodes have 4 active InfiniBand ports"),
    (set_in("cpus", "count", to=1), "n3: 1 CPU where the other nodes have 32"),
    (both(ABSENT, set_in("driver", to=""), set_in("cuda_driver", to="")), "n3: no GPU where the other nodes have 4 GPUs"),
])  # fmt: skip
def test_how_one_node_differs(node: Facts, change: Change, sentence: str) -> None:
    assert differences(nodes(node, 4, n3=change)) == [sentence]


def test_how_many_have_what_is_usual(node: Facts) -> None:
    assert differences(nodes(node, 5, n3=OTHER_DRIVER, n4=set_in("driver", to="550.1"))) == [
        says("n3: driver 535.104 where 3", "other nodes have 535.274.02"),
        says("n4: driver 550.1 where 3", "other nodes have 535.274.02"),
    ]
    assert differences(nodes(node, 2, n2=OTHER_DRIVER)) == ["n2: driver 535.104 where n1 has 535.274.02"]


def test_the_gravest_difference_comes_first(node: Facts) -> None:
    sentences = differences(nodes(node, 3, n1=set_in("cpus", "count", to=8), n2=both(OTHER_DRIVER, FEWER)))
    heads = [sentence.partition(" where")[0] for sentence in sentences]
    assert heads == ["n2: 3 GPUs", "n2: driver 535.104", "n1: 8 CPUs"]


def test_what_does_not_matter_is_not_told(node: Facts) -> None:
    other = both(set_in("hostname", to="x"), set_in("seconds", to=9.0), set_in("gpus", 0, "uuid", to="GPU-x"),
                 set_in("kernel", to="5.14"), set_in("memory", "total", to=1), set_in("ucx", "library", to="/elsewhere"))  # fmt: skip
    assert differences(nodes(node, 3, n2=other)) == []
    assert differences(nodes(node, 1)) == differences({}) == []
