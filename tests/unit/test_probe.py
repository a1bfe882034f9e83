"""The probe: what it makes of recorded answers and trees, and that asking leaves the caller clean and never hangs it."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hpcml.node.hardware import nvidia, nvidia_samples, probe, python_environment, record, sysfs
from tests.fixtures.nodes import tree
from tests.said import says

LEONARDO = tree.raw("leonardo.nvml")
PARTS = (
    "system", "packages", "importable", "infiniband", "interfaces", "limits", "cpus", "memory", "modules", "gpu",
    "ucx",
)  # fmt: skip


def facts_of(name: str, root: Path, *edits: tuple[str, str]) -> dict[str, Any]:
    tree.build(name, root, *edits)
    return record.to_json(probe.probe(root, drivers=tree.raw(f"{name}.nvml"), ucx=tree.raw("conda.ucx")))


def described(raw: dict[str, Any], root: Path, visible: str | None) -> dict[str, Any]:
    """Return NVML's answers as they are in the JSON."""
    gpu, fault = nvidia.described(raw, root, visible)
    return record.to_json(record.Node(record.Probing(1, errors={"gpu": fault}), gpu=gpu))


def python(code: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *(("-c", code) if code else ()), *arguments], env={**os.environ, **environment},
                          capture_output=True, text=True, check=False, timeout=120)  # fmt: skip


def test_a_whole_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    down = ("ib=mlx5_1 net=ib1", 'ib=mlx5_1 net=ib1 state="1: DOWN" phys="2: Polling"')
    facts = json.loads(json.dumps(facts_of("leonardo", tmp_path, down)))
    assert {part: facts[f"{part}_error"] for part in PARTS} == dict.fromkeys(PARTS, "")
    assert (facts["driver"], facts["cuda_driver"], facts["visible_count"]) == ("535.274.02", "12.2", 4)
    assert facts["gpus"][2] == {
        "index": 2, "uuid": "GPU-00000002-1111-2222-3333-444455556666", "name": "NVIDIA A100-SXM-64GB",
        "memory": 64 * 1024**3, "capability": [8, 0], "bus_id": "0000:8a:00.0",
        "pci": {"bus_id": "0000:8a:00.0", "path": ["pci0000:89", "0000:89:02.0", "0000:8a:00.0"], "numa": 1},
        "mig": False, "cpus": "16-31",
        "visible": True, "errors": {},
    }  # fmt: skip
    assert facts["ucx"]["transports"]["rc_mlx5"] == [f"mlx5_{number}:1" for number in range(4)]
    first, second = facts["infiniband"][:2]
    assert first == {
        "name": "mlx5_0:1", "device": "mlx5_0", "port": 1, "state": "ACTIVE", "physical_state": "LinkUp",
        "rate": "100 Gb/sec (2X HDR)", "gigabits": 100.0, "link_layer": "InfiniBand",
        "pci": {"bus_id": "0000:31:00.0", "path": ["pci0000:30", "0000:30:04.0", "0000:31:00.0"], "numa": 0},
    }  # fmt: skip
    assert (second["state"], second["physical_state"]) == ("DOWN", "Polling")
    interfaces = {entry["name"]: entry for entry in facts["interfaces"]}
    assert (interfaces["ib0"]["kind"], interfaces["eno1"]["kind"]) == ("infiniband", "ethernet")
    assert interfaces["ib0"]["ipv4"] == []  # a recorded tree has none, and this machine's own must not slip in
    assert facts["modules"] == {
        "nvidia": "535.274.02", "verbs": ["uverbs0", "uverbs1", "uverbs2", "uverbs3"],
    }  # fmt: skip
    assert facts_of("no-nic", tmp_path / "b")["modules"]["verbs"] == []


def test_the_record_comes_back_from_its_json(tmp_path: Path) -> None:
    table = json.loads(json.dumps(facts_of("leonardo", tmp_path)))
    assert record.to_json(record.from_json(table)) == table
    wrong: list[object] = [7, {}, {**table, "late": "nvml"}, {**table, "gpus": [{}]}, {**table, "visible_count": True}]
    wrong += [{**table, "packages": {"rmm": None}}, {key: table[key] for key in table if key != "ucx"}]
    for one in wrong:
        with pytest.raises(ValueError, match=r"is missing|is not "):
            record.from_json(one)


def test_a_record_of_an_older_version_is_read(tmp_path: Path) -> None:
    """It has facts that nobody reads any more."""
    table = json.loads(json.dumps(facts_of("leonardo", tmp_path)))
    older = json.loads(json.dumps(table))
    older |= {"glibc": "2.28", "distributions": {"rmm-cu13": "26.10.0"}}
    older["modules"] |= {"open_driver": False, "gdrcopy": True, "gpudirect": ["nvidia_peermem"], "rdma_cm": True}
    older["ucx"]["components"] = ["posix"]
    for port in older["infiniband"]:
        port |= {"subnet": "fe80", "firmware": "20.35", "board": "MT_1", "netdevs": ["ib0"]}
    for interface in older["interfaces"]:
        interface |= {"address": "", "megabits": 0, "mtu": 9000, "up": True, "state": "up", "pci": {}}
    for gpu in older["gpus"]:
        gpu |= {"bar1": 1, "mig_devices": [], "nvlink": {"links": 12}, "p2p": {}}
    assert record.to_json(record.from_json(older)) == table


def test_old_files_in_shared_memory_are_this_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tree.build("leonardo", tmp_path)
    shared = root / "dev/shm"
    shared.mkdir(parents=True, exist_ok=True)
    for name in ("old", "new"):
        (shared / name).write_bytes(bytes(8192))
    (shared / "folder").mkdir()
    for name in ("old", "folder"):
        os.utime(shared / name, (1, 1))
    assert probe._memory(root, thorough=True).shm_left == ("old",)
    assert probe._memory(root, thorough=True).shm_left_bytes >= 8192
    assert probe._memory(root, thorough=False).shm_left == ()
    monkeypatch.setattr(os, "getuid", lambda: os.geteuid() + 1)
    assert probe._memory(root, thorough=True).shm_left == ()


def test_gpus_in_the_pci_tree_and_their_nearest_port(tmp_path: Path) -> None:
    tree.build("leonardo", tmp_path, ("ib=mlx5_0 net=ib0", 'ib=mlx5_0 net=ib0 state="1: DOWN"'))
    assert probe._slots(tmp_path, sysfs.rdma_ports(tmp_path)) == []  # the tree names no vendors
    for bus in ("0000:10:00.0", "0000:8a:00.0"):
        for name, text in (("vendor", "0x10de"), ("class", "0x030200")):
            (tmp_path / "sys/bus/pci/devices" / bus / name).write_text(text)
    first, second = probe._slots(tmp_path, sysfs.rdma_ports(tmp_path))
    assert (first.bus_id, first.nearest, first.distances["mlx5_0:1"]) == ("0000:10:00.0", "mlx5_1:1", "NODE")
    assert (second.bus_id, second.nearest) == ("0000:8a:00.0", "mlx5_2:1")
    assert [slot.nearest for slot in probe._slots(tmp_path, [])] == ["", ""]


def test_what_fails_says_so_beside_what_works(tmp_path: Path) -> None:
    tree.build("dgx", tmp_path)  # it describes no /proc
    (tmp_path / "sys/class/infiniband/mlx5_3/ports/odd").mkdir()
    facts = record.to_json(probe.probe(tmp_path, drivers={"gpus": [{}], "driver": "1"}, ucx={"info": 7}))
    assert "meminfo" in facts["memory_error"]
    assert facts["infiniband_error"].startswith("ValueError")
    assert facts["gpu_error"].startswith("KeyError")
    assert facts["ucx_error"].startswith("TypeError")
    assert facts["memory"]["total"] == 0
    assert (facts["infiniband"], facts["gpus"], facts["ucx"]["transports"]) == ([], [], {})
    assert len(facts["interfaces"]) == 10


def test_a_node_whose_key_is_unknown_gets_no_agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ssh = tmp_path / "ssh"
    ssh.write_text(f'#!/bin/sh\necho "$@" >{tmp_path}/words\necho in\n')
    ssh.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert "while your job runs on it" in probe._ssh("n1", "n[1-2]")
    assert "-o ForwardAgent=no" in (tmp_path / "words").read_text()


def test_a_gpu_that_answers_in_part(tmp_path: Path) -> None:
    nothing: dict[str, Any] = {"memory": None, "capability": None, "mig": None, "affinity": None,
               "errors": {"memory": "GPU is lost"}, "bus_id": ""}  # fmt: skip
    answers = [{**LEONARDO["gpus"][0], **nothing}, LEONARDO["gpus"][1]]
    raw = {**LEONARDO, "gpus": answers, "errors": {"gpu2": "GPU is lost"}}
    facts = described(raw, tree.build("leonardo", tmp_path), None)
    assert facts["gpu_error"] == "gpu2: GPU is lost"
    first = facts["gpus"][0]
    assert (first["memory"], first["pci"]["path"], first["cpus"], first["mig"]) == (None, [], "", None)
    assert first["errors"] == {"memory": "GPU is lost"}


@pytest.mark.parametrize(("visible", "shown", "count"), [
    (None, {0, 1, 2, 3}, 4),
    ("", set(), 0),
    ("NoDevFiles", set(), 0),  # what Slurm sets for a step without GPUs
    ("-1", set(), 0),
    ("2,0", {0, 2}, 2),
    ("0, 1", {0, 1}, 2),
    ("0,9,1", {0}, 1),  # the list ends at the first name of nothing
    ("0,0,1", {0}, 1),
    ("GPU-00000003-1111-2222-3333-444455556666,1", {1, 3}, 2),
    ("GPU-00000003", {3}, 1),
    ("GPU-0000000", set(), 0),  # the beginning of four UUIDs
    ("MIG-a,MIG-b,0", {0, 1}, 3),
    ("MIG-c", set(), 0),
])  # fmt: skip
def test_which_gpus_are_visible(visible: str | None, shown: set[int], count: int) -> None:
    gpus = [dict(gpu) for gpu in LEONARDO["gpus"]]
    gpus[1] = {**gpus[1], "mig": [1, 1], "mig_devices": ["MIG-a", "MIG-b"]}
    assert nvidia.visible_gpus(visible, gpus) == (shown, count)
    marked = described({**LEONARDO, "gpus": gpus}, Path("/nowhere"), visible)
    assert {gpu["index"] for gpu in marked["gpus"] if gpu["visible"]} == shown
    assert marked["visible_devices"] == visible


def test_a_conda_environment(tmp_path: Path) -> None:
    (tmp_path / "conda-meta").mkdir()
    for name in ("ucx-1.19.0-h1b2c3d4_0", "cuda-version-12.9-h4f385c5_3", "rdma-core-58.0-h5888daf_0", "odd"):
        (tmp_path / "conda-meta" / f"{name}.json").write_text("{}")
    conda = python_environment.conda_packages(tmp_path)
    assert conda == {"ucx": "1.19.0", "cuda-version": "12.9", "rdma-core": "58.0"}
    facts = python_environment.packages({"rmm": "26.10.0"}, conda)  # a conda package's name does not say for which CUDA
    assert facts["built_for"] == {"12": ["cuda-version"]}
    assert facts["packages"] == {"rmm": "26.10.0", "libucx": "1.19.0", "cuda-version": "12.9", "rdma-core": "58.0"}
    assert python_environment.conda_packages(tmp_path / "none") == {}


def test_the_environment_tells_settings_but_no_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"UCX_TLS", "NCCL_DEBUG", "CUDA_VISIBLE_DEVICES"}
    secrets = {"NCCL_API_KEY", "CUDA_TOKEN", "PATH_UCX", "NVIDIA_API_KEY"}
    for name in settings | secrets:
        monkeypatch.setenv(name, "0")
    told = facts_of("leonardo", tmp_path)["environment"]
    assert settings <= told.keys()
    assert not told.keys() & secrets


# This machine itself, in processes of their own: the probe forks, and reads limits of its process.


def test_this_machine_as_a_person_sees_it() -> None:
    limited = """
import os, resource, runpy
resource.setrlimit(resource.RLIMIT_MEMLOCK, (65536, 65536))
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
runpy.run_module("hpcml.node.hardware.probe", run_name="__main__", alter_sys=True)
"""
    done = python(limited, UCX_NET_DEVICES="none0", UCX_LOG_LEVEL="info")
    facts = json.loads(done.stdout)  # UCX warns of none0, and must not do it in the midst of this
    assert facts["limits"]["locked_memory"] == {"soft": 65536, "hard": 65536}
    assert (facts["cpus"]["count"], facts["cpus"]["list"]) == (1, str(min(os.sched_getaffinity(0))))
    assert facts["hostname"] == os.uname().nodename
    assert ["127.0.0.1"] in [entry["ipv4"][:1] for entry in facts["interfaces"]]
    assert facts["memory"]["total"] > 2**20
    if importlib.util.find_spec("ucxx"):
        assert "posix" in facts["ucx"]["transports"]
        assert "tcp" not in facts["ucx"]["transports"]


@pytest.mark.skipif(importlib.util.find_spec("ucxx") is None, reason="ucxx is not installed (extra 'ucx')")
def test_a_ucx_that_may_use_nothing_says_so() -> None:
    facts = json.loads(python("", "-m", "hpcml.node.hardware.probe", UCX_TLS="rc_mlx5_none").stdout)
    assert "no allowed transport" in facts["ucx_error"]
    assert facts["ucx"]["version"]


def test_the_caller_stays_as_it_was() -> None:
    code = """
import os, sys
from hpcml.node.hardware import probe
def state():
    return dict(os.environ), len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))
before = state()
probe.probe()
assert before == state(), before
assert not {"ucxx", "pynvml", "rmm", "cupy", "cuda", "numpy"} & sys.modules.keys()
try:
    os.waitpid(-1, os.WNOHANG)
except ChildProcessError:
    print("no child is left")
"""
    done = python(code)
    assert done.stdout == "no child is left\n", done.stderr


HANGS_OR_CRASHES = """
import json, os, signal, time
from hpcml.node.hardware import nvidia, probe
asks = (lambda: time.sleep(600), lambda: os.kill(os.getpid(), signal.SIGSEGV), lambda: os._exit(3), lambda: 1 / 0)
for ask, deadline in zip(asks, (1.0, 60.0, 60.0, 60.0)):
    nvidia.ask = ask
    node = probe.probe(ucx={}, deadline=deadline)
    print(json.dumps([node.probing.errors["gpu"], node.probing.late, node.gpu.gpus]))
"""


def test_a_driver_that_hangs_or_crashes() -> None:
    assert [json.loads(line) for line in python(HANGS_OR_CRASHES).stdout.splitlines()] == [
        ["NVML gave no answer within 1 s", ["driver"], []],  # which waits less than the driver hangs
        [says("that queried NVML was ended by SIGSEGV"), [], []],
        ["the process that queried NVML gave no answer", [], []],
        ["ZeroDivisionError: division by zero", [], []],
    ]


def test_no_process_can_be_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> int:
        raise OSError("Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", refuse)
    node = probe.probe(tree.build("leonardo", tmp_path), ucx={})
    why = "no process could be started: Resource temporarily unavailable"
    assert node.probing.errors["gpu"] == f"NVML was not queried: {why}"


@pytest.mark.skipif(importlib.util.find_spec("pynvml") is None, reason="nvidia-ml-py is not installed")
def test_every_function_of_nvml_that_is_called_by_name_exists() -> None:
    import pynvml

    names = set(
        re.findall(r'"(nvml[A-Z]\w+)"', Path(nvidia.__file__).read_text() + Path(nvidia_samples.__file__).read_text())
    )
    assert len(names) > 15
    assert {name for name in names if not hasattr(pynvml, name)} == set()
