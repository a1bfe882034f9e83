"""The doctor's checks on planted facts: what is green, yellow, red, and what cannot be told."""

from __future__ import annotations

import datetime
import errno
import fcntl
import json
import os
import resource
import time
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hpcml.cli import doctor
from hpcml.cli.on_host import Laptop
from hpcml.doctor import finding, login_checks, node_findings, probe_job, scheduler
from hpcml.doctor import ports as ports_of_nodes
from hpcml.doctor.finding import Examination, Finding
from hpcml.errors import UNFIT, ConfigError, SiteError, SlurmUnreachableError
from hpcml.node.hardware import record
from hpcml.remote import answers
from hpcml.request.record import RunRequest
from hpcml.runs import bad_nodes
from hpcml.schedulers import Prospect, slurm, slurm_machine
from hpcml.schedulers.machine import Association
from hpcml.sites import lookup
from hpcml.sites.schema import Login
from hpcml.subprocesses import Answer
from hpcml.workload_forms import Form
from tests.fixtures.images import sif_file
from tests.said import says

PCI: dict[str, Any] = {"bus_id": "", "path": [], "numa": -1}
NOW = time.mktime((2026, 11, 23, 8, 0, 0, 0, 0, -1))
KNOWN = [Association("astro", "", ("normal", "dbg"), "normal"), Association("bio", "cpu", (), "")]


def examination(
    tmp_path: Path, *settings: str, site: str = "leonardo", seconds: float = 60.0, **asked: Any
) -> Examination:
    home = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin", "HPCML_SYSTEM_CONFIG": "/nowhere"}
    loaded = lookup.load(site, home, None, settings)
    spec = RunRequest.of(script=tmp_path / "doctor", arguments=("true",), cwd=tmp_path, form=Form.DOCTOR, **asked)
    ours, spec = probe_job.request(loaded, spec)
    return Examination(ours, loaded, spec, home, seconds)


def told(one: Finding) -> tuple[str, str]:
    return one.state, one.sentence


def node(**facts: Any) -> dict[str, Any]:
    """Return the JSON of a healthy node's probe, with some of its keys changed."""
    system = record.System(machine="x86_64", programs={"singularity": "/usr/bin/singularity"})
    healthy = record.to_json(record.Node(record.Probing(record.SCHEMA), system)) | {
        "interfaces": interfaces(lo=["127.0.0.1"], ib0=["10.0.0.1"], eth0=[]),
        "infiniband": [port(number) for number in range(4)],
        "slots": [slot("0000:1d:00.0", "mlx5_0:1", "PXB")],
        "limits": locked(None),
        "memory": shm(256 << 30),
        "disks": disks("/scratch", "ext4", 1 << 40),
        "driver": "535.274.02",
        "smi": [smi("0000:1d:00.0", "535.274.02")],
        "importable": ["dask_cuda", "distributed_ucxx"],
        "built_for": {"12": ["rmm-cu12"]},
    }
    return healthy | facts


def port(device: int, state: str = "ACTIVE", layer: str = "InfiniBand", number: int = 1) -> dict[str, Any]:
    word = "LinkUp" if state == "ACTIVE" else "Disabled"
    facts = {"name": f"mlx5_{device}:{number}", "device": f"mlx5_{device}", "rate": "", "link_layer": layer}
    rest = {"port": number, "gigabits": 0.0, "pci": PCI}
    return {**facts, "state": state, "physical_state": word, **rest}


def interfaces(**addresses: list[str]) -> list[dict[str, Any]]:
    return [{"kind": "", "name": name, "ipv4": several} for name, several in addresses.items()]


def slot(bus_id: str, nearest: str, distance: str) -> dict[str, Any]:
    return {"bus_id": bus_id, "nearest": nearest, "distances": {nearest: distance}}


def locked(limit: int | None) -> dict[str, Any]:
    return {"locked_memory": {"soft": limit, "hard": None}}


def shm(size: int, *left: str, taken: int = 0) -> dict[str, Any]:
    return {"total": 512 << 30, "shm": size, "shm_used": 0, "shm_left": [*left], "shm_left_bytes": taken}


def disks(folder: str, kind: str, size: int) -> dict[str, Any]:
    return {"scratch": folder, "folders": {folder: {"kind": kind, "bytes": size, "free": size, "error": ""}}}


def smi(bus_id: str, driver: str = "535.1", mig: str = "Disabled", mode: str = "Default") -> dict[str, str]:
    return {"bus_id": bus_id, "driver": driver, "mig": mig, "compute_mode": mode}


def ports(**changes: str) -> list[dict[str, Any]]:
    return [{**one, **changes} for one in node()["infiniband"]]


TCP_ONLY = {"version": "1.21.0", "library": "", "modules": [], "transports": {"tcp": ["ib0"]}}
NODE_FAULTS: list[tuple[str, dict[str, Any], str, str]] = [
    ("interface", {"interfaces": interfaces(lo=["127.0.0.1"], hsn0=["10.0.0.1"])}, "red", "interface ib0 has no IPv4 address on n1"),
    ("ports", {"infiniband": ports(state="DOWN", physical_state="Polling")}, "red", "mlx5_0:1 of n1 is DOWN (Polling)"),
    ("gpu-distance", {"slots": [slot("g", "mlx5_3:1", "SYS")]}, "yellow", "g of n1 is at distance SYS from port mlx5_3:1"),
    ("gpu-distance", {"slots": []}, "yellow", "n1 has no NVIDIA GPU, but other nodes do"),
    ("locked-memory", {"limits": locked(8 << 20)}, "red", "n1: locked memory is limited to 8.0 MiB, but RDMA needs"),
    ("shared-memory", {"memory": shm(64 << 20)}, "red", "/dev/shm of n1 has a size of only 64 MiB"),
    ("shared-memory", {"memory": shm(1 << 38, "a", taken=4 << 30)}, "yellow", "1 old files of yours"),
    ("scratch", {"disks": disks("/tmp", "tmpfs", 10 << 30)}, "yellow", "/tmp of n1 is a tmpfs (10 GiB)"),
    ("shared-gpus", {"smi": [smi("g", mig="Enabled")]}, "yellow", "n1: MIG divides GPU g"),
    ("shared-gpus", {"smi": [smi("g", mig="[N/A]", mode="Prohibited")]}, "red", "n1: GPU g accepts no programs"),
    ("shared-gpus", {"smi": []}, "yellow", "nvidia-smi responds on other nodes, but not on n1"),
    ("shared-gpus", {"mps": True}, "yellow", "n1: NVIDIA's MPS is running"),
    ("driver", {"smi": [], "driver": "470.82.01"}, "red", "n1: driver 470.82.01 is too old: this environment's RAPIDS is built for CUDA 12"),
    ("driver", {"importable": [], "driver": "470.82.01"}, "red", "n1: driver 470.82.01 is too old: CUDA 12 of the profile needs driver 535"),
    ("driver", {"smi": [], "driver": ""}, "red", "n1 has no NVIDIA driver, but other nodes do"),
    ("environment", {"built_for": {"12": ["rmm-cu12"], "13": ["cupy-cuda13x"]}}, "red", "n1: the environment mixes packages for different CUDA"),
    ("environment", {"ucx": TCP_ONLY}, "yellow", "n1: UCX 1.21.0 () would use TCP between nodes, not this node's RDMA network"),
    ("environment", {"built_for": {"13": ["rmm-cu13"]}, "driver": "580.1"}, "yellow", "n1: the profile names CUDA 12, but this environment's RAPIDS is built for"),
    ("architecture", {"machine": "aarch64"}, "yellow", "different architectures (n1: aarch64; n2: x86_64)"),
]  # fmt: skip


def test_what_the_facts_of_nodes_mean(tmp_path: Path, subtests: pytest.Subtests) -> None:
    exam = examination(tmp_path)
    clocks = {"n1": (0.0, 0.001), "n2": (0.01, 0.001)}
    healthy = node_findings.judge(exam, {"n1": node(), "n2": node()}, clocks)
    assert {one.check: told(one) for one in healthy if one.state != "green"} == {}
    for check, facts, state, words in NODE_FAULTS:
        with subtests.test(check=check, words=words):
            found = {one.check: one for one in node_findings.judge(exam, {"n1": node(**facts), "n2": node()}, clocks)}
            assert found[check].state == state, found[check]
            assert words in found[check].sentence
            assert found[check].remedy
    low = {"n1": node(limits=locked(8 << 20)), "n2": node(limits=locked(8 << 20))}
    found = {one.check: one for one in node_findings.judge(exam, low, clocks)}
    assert found["locked-memory"].sentence.startswith("n1 and n2: locked memory is limited to 8.0 MiB")
    assert found["locked-memory"].facts == {"limits": dict.fromkeys(low, 8 << 20)}
    both = {"n1": node(mps=True), "n2": node(smi=[smi("g", mode="Prohibited")])}
    found = {one.check: one for one in node_findings.judge(exam, both, clocks)}
    assert told(found["shared-gpus"]) == ("red", "n2: GPU g accepts no programs (compute mode)")
    for ahead, state in ((5.0, "yellow"), (-300.0, "red")):
        found = {
            one.check: one for one in node_findings.judge(exam, {"n1": node(), "n2": node()}, {"n2": (ahead, 0.1)})
        }
        assert found["clocks"].state == state
        assert f"the clock of n2 is {abs(ahead):.0f} s" in found["clocks"].sentence
    exam = examination(tmp_path, "network.adapters=[]")
    alone = node_findings.judge(exam, {"n1": node(infiniband=[], slots=[], smi=[], driver="", importable=[])}, {})
    not_told = {"ports", "gpu-distance", "locked-memory", "clocks", "shared-gpus", "driver", "environment"}
    assert {one.check for one in alone if one.state == "n/a"} == not_told
    for damaged in ({}, node(limits=7)):
        assert {one.state for one in node_findings.judge(exam, {"n1": damaged}, clocks)} == {"n/a"}
    unread = node_findings.judge(exam, {"n1": node(memory_error="OSError: x"), "n2": node()}, clocks)
    assert [one.check for one in unread if "could not read" in one.sentence] == ["shared-memory"]


def read(by_node: dict[str, dict[str, Any]]) -> finding.ByNode:
    return {name: record.from_json(table) for name, table in by_node.items()}


Table = list[tuple[str, dict[str, list[dict[str, Any]]], str, str, str]]
PAIR = [port(0), port(1)]
ETHERNET = [port(0, layer="Ethernet"), port(1, layer="Ethernet")]
NAMED: Table = [
    ("well", {"n1": PAIR, "n2": PAIR}, "green", "mlx5_0, mlx5_1 are active and of one link type on each node", ""),
    ("RoCE", {"n1": ETHERNET, "n2": ETHERNET}, "green", "of one link type on each node", ""),
    ("one lacks one", {"n1": PAIR, "n2": [port(0)]}, "red", "n2 has no adapter mlx5_1, but other nodes do", "--exclude n2."),
    ("each lacks another", {"n1": [port(0)], "n2": [port(1)]}, "red", "n1 has no adapter mlx5_1", "--exclude n1,n2."),
    ("all lack one", {"n1": [port(0)], "n2": [port(0), port(2)]}, "yellow", "contains mlx5_1, but n1, n2 have no such", "['mlx5_0']"),
    ("all lack one, one is down", {"n1": [port(0)], "n2": [port(0, "DOWN")]}, "red", "mlx5_0:1 of n2 is DOWN", "--exclude n2."),
    ("the only node lacks one", {"n1": [port(0)]}, "yellow", "contains mlx5_1, but n1 has no such adapter", "['mlx5_0']"),
    ("none has any", {"n1": [], "n2": []}, "yellow", "contains mlx5_0, mlx5_1, but the nodes have no RDMA port", "[]"),
    ("one has none", {"n1": PAIR, "n2": []}, "red", "n2 has no RDMA port, but other nodes do", "--exclude n2."),
    ("down", {"n1": PAIR, "n2": [port(0), port(1, "DOWN")]}, "red", "InfiniBand port mlx5_1:1 of n2 is DOWN (Disabled)", "--exclude n2."),
    ("RoCE is down", {"n1": ETHERNET, "n2": [ETHERNET[0], port(1, "DOWN", "Ethernet")]}, "red",
        "Ethernet port mlx5_1:1 of n2 is DOWN (Disabled)", "--exclude n2."),
    ("down, and Ethernet then", {"n1": PAIR, "n2": [port(0), port(1, "DOWN", "Ethernet")]}, "red", "mlx5_1:1 of n2 is DOWN", "--exclude n2."),
    ("no state", {"n1": PAIR, "n2": [port(0), port(1, "")]}, "red", "mlx5_1:1 of n2 is in no known state", "--exclude n2."),
    ("mixed within each", {"n1": [port(0), ETHERNET[1]], "n2": [port(0), ETHERNET[1]]}, "red",
        "adapter mlx5_1 of n1 uses Ethernet, but mlx5_0 of n1 uses InfiniBand", "network.adapters = ['mlx5_0']"),
    ("mixed within one", {"n1": PAIR, "n2": [port(0), ETHERNET[1]]}, "red",
        "adapter mlx5_1 of n2 uses Ethernet, but mlx5_1 of n1 uses InfiniBand", "--exclude n2."),
    ("mixed within the only one", {"n1": [port(0), ETHERNET[1]]}, "red", "adapter mlx5_1 of n1 uses Ethernet", "['mlx5_0']"),
    ("spare is down", {"n1": [*PAIR, port(2, "DOWN")], "n2": [*PAIR, port(2)]}, "green", "the unused mlx5_2 is down", ""),
    ("spare Ethernet", {"n1": [*PAIR, port(2, layer="Ethernet")], "n2": PAIR}, "green", "of one link type on each node", ""),
    ("second port is down", {"n1": [*PAIR, port(1, "DOWN", number=2)], "n2": PAIR}, "green", "of one link type on each", ""),
]  # fmt: skip
NOT_NAMED: Table = [
    ("well", {"n1": PAIR, "n2": PAIR}, "green", "mlx5_0, mlx5_1 are active and of one link type", ""),
    ("one lacks one", {"n1": PAIR, "n2": [port(0)]}, "yellow", "n2 has 1 active adapters of InfiniBand, but n1 has 2", "--exclude n2."),
    ("down on one", {"n1": PAIR, "n2": [port(0), port(1, "DOWN")]}, "red", "mlx5_1:1 of n2 is DOWN", "--exclude n2."),
    ("RoCE is down on one", {"n1": ETHERNET, "n2": [ETHERNET[0], port(1, "DOWN", "Ethernet")]}, "red", "mlx5_1:1 of n2 is DOWN", "--exclude n2."),
    ("down on each", {"n1": [port(0), port(1, "DOWN")]}, "yellow", "mlx5_1:1 of n1 is DOWN", "network.adapters = ['mlx5_0']"),
    ("no port is active", {"n1": [port(0, "DOWN")]}, "red", "mlx5_0:1 of n1 is DOWN (Disabled), and the node has no active port", "--exclude n1."),
    ("no Ethernet port is active", {"n1": [port(0, "DOWN", "Ethernet")]}, "yellow", "mlx5_0:1 of n1 is DOWN", "report the port to the site"),
    ("only one node's Ethernet is active", {"n1": ETHERNET, "n2": [port(0, "DOWN", "Ethernet")]}, "red", "mlx5_0:1 of n2 is DOWN", "--exclude n2."),
    ("other kinds", {"n1": PAIR, "n2": ETHERNET}, "red", "different link types (n1: InfiniBand; n2: Ethernet)", "Request nodes"),
    ("Ethernet beside it", {"n1": [port(0), ETHERNET[1]], "n2": [port(0), port(1, "DOWN", "Ethernet")]}, "green", "of mlx5_0 are active", ""),
    ("other names", {"n1": [port(0)], "n2": [port(1)]}, "green", "the nodes' ports are active", ""),
    ("one has none", {"n1": PAIR, "n2": []}, "red", "n2 has no RDMA port", "--exclude n2."),
    ("none has any", {"n1": [], "n2": []}, "n/a", "no InfiniBand or RoCE port", ""),
]  # fmt: skip


def test_ports_are_judged_node_by_node(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for names, table in (('["mlx5_0","mlx5_1"]', NAMED), ("[]", NOT_NAMED)):
        exam = examination(tmp_path, f"network.adapters={names}")
        for case, by_node, state, words, remedy in table:
            with subtests.test(case=case, adapters=names):
                found = ports_of_nodes.judge(exam, read({name: node(infiniband=own) for name, own in by_node.items()}))
                assert found.state == state, found
                assert words in found.sentence
                assert remedy in found.remedy
                assert bool(found.remedy) is (state in ("red", "yellow"))
                shown = ("name", "device", "state", "physical_state", "link_layer", "rate")
                rows = {name: [{key: one[key] for key in shown} for one in own] for name, own in by_node.items()}
                assert state == "n/a" or found.facts["ports"] == rows


def test_variables_against_the_ports_of_each_node(tmp_path: Path, subtests: pytest.Subtests) -> None:
    """What one node has does not make up for what another lacks, and a spare port need not be named."""
    spare = {"n1": [*PAIR, port(2)], "n2": [*PAIR, port(2, "DOWN")]}
    cases = [
        ("mlx5_0,mlx5_1", "green", "of one link type", ""),
        ("mlx5_0,mlx5_1,mlx5_2", "red", "NCCL_IB_HCA names mlx5_2, but the active adapters of n2 are mlx5_0, mlx5_1", "mlx5_0,mlx5_1."),
        ("mlx5_0", "yellow", "NCCL_IB_HCA leaves the RDMA adapters mlx5_1", "set NCCL_IB_HCA to mlx5_0,mlx5_1."),
    ]  # fmt: skip
    exam = examination(tmp_path, 'network.adapters=["mlx5_0","mlx5_1"]')
    for value, state, words, remedy in cases:
        with subtests.test(value=value):
            told_by = {name: node(infiniband=own, environment={"NCCL_IB_HCA": value}) for name, own in spare.items()}
            found = ports_of_nodes.judge(exam, read(told_by))
            assert found.state == state, found
            assert words in found.sentence
            assert remedy in found.remedy


def test_a_node_that_tells_nothing_is_not_green() -> None:
    told_by = {"n1": node()}
    assert probe_job.judge_answers(told_by, ("n1",), "9 s").state == "green"
    silent = probe_job.judge_answers(told_by, ("n1", "n2"), "9 s")
    assert told(silent) == ("yellow", says("but the results below are incomplete: n2"))
    assert probe_job.judge_answers({}, ("n1", "n2"), "9 s").state == "red"


def test_the_image_on_nodes(tmp_path: Path) -> None:
    image = str(sif_file.make(tmp_path / "a.sif", {"org.hpcml.kind": "rapids", "org.hpcml.cuda": "13"}, arch="04"))
    exam = examination(tmp_path, image=image, account="astro")
    found = {one.check: told(one) for one in node_findings.judge(exam, {"n1": node(programs={}, importable=[])}, {})}
    assert found["driver"][1].endswith("is too old: CUDA 13 of the image needs driver 580 or newer")
    assert found["architecture"] == ("red", says("for aarch64, but the nodes are x86_64"))
    assert found["container"] == ("red", says("program singularity is missing on n1"))
    two = {"n1": node(in_image=True, machine="aarch64"), "n2": node(programs={})}
    found = {one.check: told(one) for one in node_findings.judge(exam, two, {})}
    assert found["container"] == ("red", says("program singularity is missing on n2"))
    assert login_checks.image(exam).state == "red"
    assert login_checks.image(examination(tmp_path, image="/nowhere/a.sif", account="astro")).state == "red"
    assert login_checks.image(examination(tmp_path)).state == "n/a"


def test_the_account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def asked(known: list[Association] | str, **options: Any) -> tuple[str, str]:
        monkeypatch.setattr(slurm_machine, "associations", lambda _: known)
        return told(scheduler.account(examination(tmp_path, **options)))

    assert asked(KNOWN, account="astro")[0] == "green"
    assert asked(KNOWN, account="chem") == ("red", says("account chem is not one of your"))
    assert asked(KNOWN, account="bio") == (
        "red",
        says("cpu, not partition boost_usr_prod"),
    )
    assert asked(KNOWN, account="astro", qos="boost_qos_dbg")[1].endswith("only QoS dbg, normal, not QoS boost_qos_dbg")
    assert asked([], account="astro") == ("red", "Slurm's accounting has no account for you")
    assert asked("Access/permission denied", account="astro")[0] == "n/a"


def test_the_default_qos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """MareNostrum's default QoS is of CPU nodes; its profile names another."""
    monkeypatch.setattr(slurm_machine, "associations", lambda _: [Association("bsc", "", (), "gp_ehpc")])
    own: dict[str, Any] = {"site": "marenostrum5", "account": "bsc"}
    assert scheduler.default_qos(examination(tmp_path, **own)).state == "green"
    unsaid = scheduler.default_qos(examination(tmp_path, "defaults.qos=", **own))
    assert told(unsaid) == ("red", says("runs use the default QoS gp_ehpc", "which is for nodes without GPUs"))
    assert "--qos acc_ehpc" in unsaid.remedy
    assert scheduler.default_qos(examination(tmp_path, **own, qos="gp_ehpc")).state == "red"
    monkeypatch.setattr(slurm_machine, "associations", lambda _: "denied")
    assert scheduler.default_qos(examination(tmp_path, "defaults.qos=", **own)).state == "yellow"
    assert scheduler.default_qos(examination(tmp_path)).state == "n/a"


def test_slurms_configuration(tmp_path: Path) -> None:
    exam = examination(tmp_path)
    believed = {"KillWait": "30 sec", "MaxArraySize": "1001", "PriorityFlags": "MAX_TRES", "SLURM_VERSION": "23.11.10"}
    cases: list[tuple[dict[str, str], str, str]] = [
        ({}, "green", "Slurm 23.11.10"),
        ({"KillWait": "10 sec"}, "yellow", "kills a job 10 s after"),
        ({"KillWait": "20 sec"}, "yellow", "script_grace is 20s"),  # both at the same time
        ({"KillWait": "21 sec"}, "green", "Slurm 23.11.10"),
        ({"RequeueExit": "1-9,85"}, "yellow", "exit with status 85"),
        ({"RequeueExitHold": "64-66"}, "yellow", "exit with status 64"),
        ({"MaxArraySize": "1"}, "yellow", "job arrays are off"),
        ({"PriorityFlags": ""}, "yellow", "the sum of the resources"),
    ]
    for told_by, state, words in cases:
        found = scheduler.judge_configuration(believed | told_by, exam)
        assert found.state == state, found
        assert words in found.sentence


def test_the_partition(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def asked(answer: Answer) -> tuple[str, str]:
        monkeypatch.setattr(slurm, "ask", lambda *_: answer)
        return told(scheduler.partition(examination(tmp_path, account="astro")))

    assert asked(Answer(0, "PartitionName=p MaxNodes=64 MaxTime=1-00:00:00 State=UP", ""))[0] == "green"
    assert asked(Answer(0, "PartitionName=p MaxNodes=UNLIMITED MaxTime=UNLIMITED State=UP", ""))[0] == "green"
    differs = asked(Answer(0, "PartitionName=p MaxNodes=8 MaxTime=12:00:00 State=UP", ""))
    assert differs[1].endswith("max_time is 1-00:00:00, but 12:00:00 in Slurm; max_nodes is 64, but 8 in Slurm")
    assert asked(Answer(0, "PartitionName=p State=DRAIN", ""))[0] == "red"
    assert asked(Answer(1, "", "Partition boost_usr_prod not found"))[0] == "red"
    assert asked(Answer(1, "", "Access/permission denied"))[0] == "n/a"
    assert asked(Answer(None, "", ""))[0] == "n/a"
    exam = examination(tmp_path, account="astro")
    monkeypatch.setattr(exam, "directives", lambda: {"--partition": "boost_usr_prod,gone"})

    def one_is_gone(command: list[str], timeout: float = 60.0) -> Answer:
        gone = command[-1] == "gone"
        return Answer(1, "", "Partition gone not found") if gone else Answer(0, "PartitionName=p State=UP", "")

    monkeypatch.setattr(slurm, "ask", one_is_gone)
    assert told(scheduler.partition(exam))[1] == "there is no partition gone"


def test_the_start_and_the_certificate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def at(hours: float) -> str:
        return datetime.datetime.fromtimestamp(NOW + hours * 3600).isoformat()  # noqa: DTZ006 - as sbatch tells it

    cases = [
        ([NOW + 43200], at(1), "green"), ([NOW + 43200], "", "green"), ([NOW + 43200], at(24), "yellow"), ([NOW + 600], "", "yellow"),
        ([NOW + 43200], at(12.01), "yellow"),
        ([NOW - 60], at(1), "red"), ([float("inf"), NOW - 60], at(1), "green"), ([], at(1), "n/a"),
    ]  # fmt: skip
    for ends, start, state in cases:
        found = login_checks.judge_certificate(ends, start, NOW, "step ssh login")
        assert found.state == state, found
        assert (found.remedy == "Get a new certificate: step ssh login.") == (state in ("yellow", "red"))
    exam = examination(tmp_path, account="astro")
    monkeypatch.setattr(exam, "start", lambda: Prospect("2099-01-01T00:00:00"))
    assert scheduler.start(exam).sentence.startswith("Slurm would start a job in ")

    def silent() -> Prospect:
        raise SlurmUnreachableError("Slurm's controller does not answer", hint="Wait.")

    monkeypatch.setattr(exam, "start", silent)
    assert told(scheduler.start(exam)) == ("red", "Slurm's controller does not answer")
    assert scheduler.start(examination(tmp_path)).state == "n/a", "no account: there is no request"

    def refused() -> Prospect:
        lines = (
            "sbatch: error: cli_filter: no memory for GPUs",
            "sbatch: error: cli_filter plugin terminated with error",
        )
        raise SiteError("Slurm refused the job", hint="Ask.", quote=lines)

    monkeypatch.setattr(exam, "start", refused)
    found = scheduler.start(exam)
    assert "cli_filter: no memory for GPUs; cli_filter plugin terminated with error" in found.sentence


def test_the_login_node_that_answers() -> None:
    leonardo = Login(host="login.x.it", hosts=("login01-ext.x.it", "login05-ext.x.it"))
    assert login_checks.judge_login_node(leonardo, "login05.x.local").state == "green"
    strange = login_checks.judge_login_node(leonardo, "login09.x.local")
    assert strange.state == "yellow"
    assert "--host login01-ext.x.it" in strange.remedy
    many = login_checks.judge_login_node(Login(host="login.y.de"), "y1")
    assert (many.state, "login.hosts" in many.remedy) == ("yellow", True)
    assert login_checks.judge_login_node(Login(host="me@y1.y.de"), "y1.y.local").state == "green"
    assert login_checks.judge_login_node(Login(host="y"), "y1", of_profile=False).state == "green", (
        "an alias of the user's"
    )


def test_quotas_in_bytes_and_files() -> None:
    """`lfs quota -q` and `quota -w -p` have the same columns."""
    lustre = "/leonardo 900000 0 1000000 - 4000000* 4000000 4000000 6d\n"
    assert [one.state for one in login_checks.judge_quota(lustre)] == ["green", "red"]
    nfs = "Disk quotas for user alice (uid 1000):\n Filesystem blocks quota limit grace files quota limit grace\n"
    nfs += "server:/home 980000 1000000 1100000 0 10 0 0 0\n"
    assert [told(one) for one in login_checks.judge_quota(nfs)] == [
        ("yellow", "980000 of 1000000 KiB of your quota on server:/home are used")
    ]
    assert list(login_checks.judge_quota("no quota here\n")) == []


def test_adapters_and_libraries(tmp_path: Path) -> None:
    stubs = tmp_path / "cuda/lib64/stubs"
    stubs.mkdir(parents=True)
    (stubs / "libnvidia-ml.so.1").touch()
    exam = examination(tmp_path)
    for folders, state in ((f"{stubs.parent}", "yellow"), (f"{stubs}:/usr/lib", "red"), ("/usr/lib", "green")):
        exam.environment = {"CUDA_HOME": f"{tmp_path}/cuda", "LD_LIBRARY_PATH": folders}
        assert login_checks.library_path(exam).state == state
    exam.environment = {"NCCL_IB_HCA": "^mlx5_2"}
    assert login_checks.adapters(exam).state == "green"
    exam.environment = {"NCCL_IB_HCA": "mlx5_0,mlx5_1,mlx5_4,mlx5_5"}
    assert "names mlx5_4, mlx5_5" in login_checks.adapters(exam).sentence


def test_the_file_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    exam = examination(tmp_path, site="local")
    left = tmp_path / ".hpcml-doctor-left"
    left.mkdir()
    os.utime(left, (1, 1))
    assert login_checks.file_system(exam).state == "green"
    assert list(tmp_path.iterdir()) == []
    with monkeypatch.context() as changed:
        changed.setattr(fcntl, "flock", lambda *_: (_ for _ in ()).throw(OSError(errno.ENOLCK, "No locks")))
        assert "cannot be locked" in login_checks.file_system(exam).sentence
        changed.setattr(fcntl, "flock", lambda *_: None)
        assert login_checks.file_system(exam).state == "yellow", "a lock that keeps nobody away is none"
    now = time.time()
    with monkeypatch.context() as changed:
        changed.setattr(time, "time", lambda: now - 100)
        assert login_checks.file_system(exam).sentence.endswith("100 s ahead of this machine's clock")
    with monkeypatch.context() as changed:
        changed.setattr(os, "rename", lambda *_, **__: (_ for _ in ()).throw(OSError(errno.EXDEV, "Invalid link")))
        assert login_checks.file_system(exam).sentence.startswith("files cannot be renamed to an existing")


@pytest.mark.parametrize("swap", ["link", "rename"])
def test_the_trial_of_the_file_system_writes_nowhere_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, swap: str
) -> None:
    """Who may write to the runs folder gives the trial's folder, or a folder of the user's, another name."""
    runs, own = tmp_path / "runs", tmp_path / "runs/results"
    own.mkdir(parents=True)
    runs.chmod(0o777)
    (own / "old").write_text("precious")
    os.utime(own, (1, 1))
    exam = examination(tmp_path, f"paths.runs={runs}", site="local")
    original = Path.mkdir

    def mkdir(path: Path, *words: Any, **options: Any) -> None:
        original(path, *words, **options)
        if path.name.startswith(".hpcml-doctor-"):
            path.rename(path.with_name("aside"))
            path.symlink_to(own) if swap == "link" else own.rename(path)

    with monkeypatch.context() as changed:
        changed.setattr(Path, "mkdir", mkdir)
        assert login_checks.file_system(exam).state == "red"
    (left,) = {path.resolve() for path in runs.glob("*/old")}
    os.utime(left.parent, (1, 1))
    assert login_checks.file_system(exam).state == "green"
    assert os.listdir(left.parent) == ["old"], "nothing was written, and no folder"
    assert left.read_text() == "precious"


def test_room_for_bytes_and_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    exam = examination(tmp_path, site="local")

    def with_(blocks: int, inodes: int) -> tuple[str, str]:
        monkeypatch.setattr(os, "statvfs", lambda _: os.statvfs_result((4096, 4096, 1 << 30, blocks, blocks, 1 << 20, inodes, inodes, 0, 255)))  # fmt: skip
        return told(login_checks.quota(exam))

    assert with_(1 << 28, 1 << 19)[0] == "green"
    assert with_(1 << 28, 500) == ("yellow", f"the file system of {tmp_path} has space for only 500 files more")
    assert with_(1 << 15, 1 << 19) == ("yellow", f"the file system of {tmp_path} has space for only 128 MiB more")
    assert with_(0, 1 << 19)[0] == "red"


@pytest.mark.parametrize(("groups", "there", "limit"), [
    ("0::/user.slice/a.scope", {"user.slice/memory.max": "536870912", "user.slice/a.scope/memory.max": "max"}, 512 << 20),
    ("9:cpu:/other\n4:memory:/user.slice\n0::/init", {"memory/memory.limit_in_bytes": "9223372036854771712",
        "memory/user.slice/memory.limit_in_bytes": "536870912", "memory/other/memory.limit_in_bytes": "1"}, 512 << 20),
    ("4:memory:/a", {"memory/a/memory.limit_in_bytes": "9223372036854771712"}, None),
])  # fmt: skip
def test_the_memory_of_a_login_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, groups: str, there: dict[str, str], limit: int | None
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    made = {"proc/self/cgroup": groups, **{f"sys/fs/cgroup/{name}": text for name, text in there.items()}}
    for name, text in made.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"{text}\n")
    monkeypatch.setattr(login_checks, "_ROOT", tmp_path)
    found = login_checks.limits(examination(tmp_path))
    assert (found.state, found.facts.get("session_memory")) == ("yellow" if limit else "green", limit)


def test_what_the_shell_and_the_machine_allow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    exam = examination(tmp_path)
    monkeypatch.setattr(login_checks, "_ROOT", tmp_path)
    assert login_checks.limits(exam).state == "green"
    kinds = ((resource.RLIMIT_CPU, 600, "after 600 s"), (resource.RLIMIT_NPROC, 20, "you may have only 20 processes"))
    for kind, value, words in kinds:
        monkeypatch.setattr(resource, "getrlimit", lambda asked, k=kind, v=value: (v if asked == k else -1, -1))
        found = login_checks.limits(exam)
        assert (found.state, words in found.sentence) == ("yellow", True)
    monkeypatch.setenv("SQUEUE_FORMAT", "%i")
    exam.environment = dict(os.environ)
    assert "SQUEUE_FORMAT affect your own" in scheduler.variables(exam).sentence
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    exam.environment = dict(os.environ)
    assert "inside job 7" in scheduler.variables(exam).sentence


def test_the_grant_and_the_limit_of_jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def left(used: int) -> str:
        command = f'cost.budget=["echo", "astro 20260101 20270101 1000 {used} 0"]'
        return scheduler.budget(examination(tmp_path, command, account="astro", partition="boost_usr_prod")).state

    assert [left(used) for used in (100, 960, 1000)] == ["green", "yellow", "red"]
    assert scheduler.budget(examination(tmp_path, "cost.budget=[]", account="astro")).state == "n/a"
    for room, state in ((None, "n/a"), (0, "red"), (3, "green")):
        monkeypatch.setattr(slurm_machine, "room", lambda *_, answer=room: answer)
        assert scheduler.submit_limit(examination(tmp_path, account="astro")).state == state


def test_the_profile_the_request_and_the_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert login_checks.profile(examination(tmp_path)).state == "green"
    lumi = examination(tmp_path, site="lumi")
    assert login_checks.profile(lumi).state == "red"
    once = [scheduler.request(lumi), scheduler.start(lumi), *probe_job.look(lumi, 1.0, print)]
    assert {one.state for one in once} == {"n/a"}, "one cause is told once"
    by_name = {check.name: check for check in login_checks.CHECKS}
    (refused,) = login_checks.examine(examination(tmp_path), [by_name["request"]])
    assert refused.state == "red"
    assert "--account" in refused.remedy
    assert login_checks.failed_nodes(examination(tmp_path)).state == "green"
    bad = bad_nodes.BadNode("lrdn0042", "an Xid error", "a-20261123-080000-1a2b", time.time())
    bad_nodes.Memory("leonardo").add([bad.run], [bad], time.time())
    found = login_checks.failed_nodes(examination(tmp_path))
    assert found.state == "yellow"
    assert "--exclude lrdn0042" in found.remedy


def test_late_and_broken_checks_are_not_green(tmp_path: Path) -> None:
    import threading

    wait = threading.Event()

    def hang(_: Examination) -> Finding:
        wait.wait(120)
        return finding.green("at last")

    def fail(_: Examination) -> Finding:
        raise OSError("no such thing")

    exam = examination(tmp_path, site="local", seconds=0.2)
    made = login_checks.examine(
        exam,
        [
            login_checks.Check("a", hang, late="it does not answer", remedy="Wait."),
            login_checks.Check("b", hang),
            login_checks.Check("c", fail),
            login_checks.Check("d", hang, of_slurm=True),
        ],
    )
    wait.set()
    assert [(one.check, one.state) for one in made] == [("a", "red"), ("b", "n/a"), ("c", "n/a"), ("d", "n/a")]
    assert "no response within 0.2 s" in made[0].sentence


def test_what_a_login_node_says_is_checked() -> None:
    one = {"check": "start", "state": "green", "sentence": "well", "remedy": "", "facts": {}, "seconds": 0.1}
    assert answers.of_findings(json.dumps({"findings": [one]}), "there") == [one]
    for wrong in ({**one, "state": "purple"}, {**one, "check": "a\nb"}):
        with pytest.raises(ConfigError, match="sent an invalid message"):
            answers.of_findings(json.dumps({"findings": [wrong]}), "there")


def test_a_refused_request_is_judged_by_what_is_given(tmp_path: Path) -> None:
    exam = examination(
        tmp_path, "defaults.account=the-profile-s", account="mine", partition="boost_usr_prod", nodes=9999
    )
    assert (exam.directives()["--account"], exam.directives()["--partition"]) == ("mine", "boost_usr_prod")


def test_each_task_of_an_array_is_a_job_of_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    def ask(command: list[str], _: float) -> Answer:
        return Answer(0, "7_1\n7_2\n7_3\n" if "--array" in command else "7_[1-3]\n", "")

    monkeypatch.setattr(slurm_machine, "_submit_limits", lambda *_: [10, 20])
    monkeypatch.setattr(slurm, "ask", ask)
    assert slurm_machine.room([], 1.0) == 7


def test_a_red_finding_of_the_login_node_reaches_the_laptop(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said = json.dumps({"findings": [Finding("slurm", "red", "slurmctld does not answer", "Ask the site.")._asdict()]})
    monkeypatch.setattr(doctor, "_asked", lambda *_: (UNFIT, said))
    monkeypatch.setattr(doctor, "_with_this_end", lambda _, __, ___, found: found)
    connection: Any = SimpleNamespace(host="login")
    status = doctor.from_laptop(Laptop("login", Login(), lambda: connection, Namespace(json=False, all=False), []))
    assert status == UNFIT
    assert "slurmctld does not answer" in capsys.readouterr().out
