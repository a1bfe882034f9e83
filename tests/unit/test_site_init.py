"""What Slurm's answers become in a profile: those of four versions, denied ones, odd ones, and what a node adds."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import tomllib
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hpcml.cli import site as command
from hpcml.errors import SlurmUnreachableError
from hpcml.node.hardware import record
from hpcml.schedulers import slurm, slurm_machine
from hpcml.schedulers.machine import Tables
from hpcml.sites import lookup
from hpcml.subprocesses import Answer
from hpcml.survey import decide_profile, machine
from hpcml.survey.node_tables import Login
from hpcml.survey.profile_draft import SLURM, Draft, How, read_by
from site_slurm import Site

ANSWERS = Path(__file__).resolve().parents[1] / "fixtures/sites"
ODD = "example"  # a folder of texts as no machine writes them
QOS = ("sacctmgr", "--parsable2", "show", "qos")
FILES = ("sinfo", "config", "partition", "node", "qos", "assoc", "user")
LOGIN = Login("login01.example.org", ("users",), {"SCRATCH": "/scratch/me"}, mounts={"/scratch": "lustre"})
NO_PLACE = {"bus_id": "", "path": [], "numa": -1}


def probed() -> dict[str, Any]:
    """Return the JSON of a probe that a job made."""
    link = {"link_layer": "InfiniBand", "rate": "100 Gb/sec", "physical_state": "", "gigabits": 100.0}
    rest = {**link, "port": 1, "pci": NO_PLACE}
    return record.to_json(record.Node(record.Probing(record.SCHEMA))) | {
        "infiniband": [{**rest, "name": f"mlx5_{n}:1", "device": f"mlx5_{n}", "state": state}
                       for n, state in enumerate(("ACTIVE", "DOWN"))],
        "cpus": {"count": 160, "list": "", "online": 160, "threads": 2}, "limits": {"locked_memory": {"soft": None, "hard": None}},
        "job": {"partition": "acc", "qos": "acc_debug", "node": "as01", "nodes": "as[01-02]", "shown": "", "ssh": "ssh reaches a node while your job runs on it"},
        "names": ["NVIDIA H100"] * 4, "driver": "535.274.02",
        "interfaces": [{"name": "eno1", "kind": "ethernet", "ipv4": ["10.0.0.1"]}, {"name": "ib0", "kind": "infiniband", "ipv4": ["10.1.0.1"]}],
        "slots": [{"bus_id": "0000:1d:00.0", "nearest": "mlx5_0:1", "distances": {"mlx5_0:1": "PXB"}}],
        "disks": {"scratch": "", "folders": {"/tmp": {"kind": "tmpfs", "bytes": 2**33, "free": 2**32, "error": ""}}},
        "programs": {"singularity": "/usr/bin/singularity"},
    }  # fmt: skip


NODE = record.from_json(probed())


def text_of(machine: str, *command: str) -> str:
    """Return what a machine answers to a command; "-" if it is denied."""
    if machine == ODD:
        return (ANSWERS / ODD / f"{next(name for name in FILES if name in command)}.txt").read_text()
    code, text, _ = Site(str(ANSWERS / f"{machine}.toml")).answer(command[0], [*command[1:]])
    return "-" if code else text


def answer(monkeypatch: pytest.MonkeyPatch, machine: str, **changed: str) -> Tables:
    """Return what is read where Slurm's commands answer as on a machine, or with other texts; "-" is denied."""

    def ask(command: list[str], timeout: float = 60.0) -> Answer:
        assert 0 < timeout <= 60
        name = next(name for name in FILES if name in command)
        text = changed[name] if name in changed else text_of(machine, *command)
        return Answer(1, "", "error: Access/permission denied\n") if text == "-" else Answer(0, text, "")

    monkeypatch.setattr(slurm, "ask", ask)
    return slurm_machine.read("alice")


def profile_of(tables: Tables, node: record.Node | None = None) -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads(decide_profile.write(tables, LOGIN, node, "2026-11-23").text(("a profile",)))
    return found


def loaded(table_text: str, tmp_path: Path) -> lookup.LoadedSite:
    path = tmp_path / "made.toml"
    path.write_text(table_text)
    return lookup.load_profile(str(path), {"HPCML_SYSTEM_CONFIG": "/nowhere"})


EXPECTED: dict[str, dict[str, Any]] = {
    "lab": {"partitions": ["boost", "debug"], "qos": None, "default": "boost",
            "debug": {"max_nodes": 2, "max_time": "00:30:00", "gpus_per_node": 4, "cpus_per_node": 8, "memory_per_node": "4000M"}},
    "leonardo": {"partitions": ["lrd_all_serial", "boost_usr_prod", "dcgp_usr_prod"], "default": "lrd_all_serial",
                 "qos": ["boost_qos_bprod", "boost_qos_dbg", "boost_qos_lprod", "dcgp_qos_bprod", "dcgp_qos_dbg", "dcgp_qos_lprod", "normal"],
                 "boost_usr_prod": {"max_nodes": 64, "max_time": "1-00:00:00", "gpus_per_node": 4, "cpus_per_node": 32, "memory_per_node": "514000M"}},
    "marenostrum5": {"partitions": ["gpp", "acc"], "default": "gpp", "qos": ["acc_debug", "acc_ehpc", "acc_interactive", "gp_ehpc"],
                     "acc": {"max_nodes": 1120, "max_time": "3-00:00:00", "gpus_per_node": 4, "cpus_per_node": 160, "memory_per_node": "512000M", "qos": "acc_ehpc"}},
    # gpu: 128 GPUs of the default QoS are 64 nodes of 2 GPUs at the most, the partition has 30; of CPUs and memory the smallest counts
    "example": {"partitions": ["cpu", "gpu", "a.b"], "default": "cpu", "qos": ["quick", "standard", "odd", "gone"],
                "cpu": {"max_nodes": 100, "max_time": "2-00:00:00", "cpus_per_node": 252, "memory_per_node": "500000M",
                        "whole_nodes": True},
                "gpu": {"max_nodes": 30, "max_time": "2-00:00:00", "gpus_per_node": 4, "cpus_per_node": 128, "memory_per_node": "515000M",
                        "gpu_type": "a100", "nodes": {
                            "a100": {"max_nodes": 20, "gpus_per_node": 4, "gpu_type": "a100", "cpus_per_node": 128, "memory_per_node": "515000M"},
                            "h100_1g.10gb": {"max_nodes": 10, "gpus_per_node": 2, "gpu_type": "h100_1g.10gb", "cpus_per_node": 128, "memory_per_node": "1031000M"},
                            "h100": {"max_nodes": 10, "gpus_per_node": 1, "gpu_type": "h100", "cpus_per_node": 128, "memory_per_node": "1031000M"}}}},
}  # fmt: skip


@pytest.mark.parametrize("machine", EXPECTED)
def test_partitions_and_qos_of_four_versions(machine: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """22.05, 23.11, 24.11 and 25.11."""
    expected = dict(EXPECTED[machine])
    text = decide_profile.write(answer(monkeypatch, machine), LOGIN, None, "2026-11-23").text(())
    found = tomllib.loads(text)
    assert list(found["partitions"]) == expected.pop("partitions")
    assert list(found.get("qos", [])) == (expected.pop("qos") or [])
    assert found["defaults"]["partition"] == expected.pop("default")
    for name, values in expected.items():
        assert found["partitions"][name] == values
    made = loaded(text, tmp_path)
    own = {key.replace("\0", ".") for key, value in made.layers.values.items() if value.origin.endswith("made.toml")}
    known = {key for key in own if not key.startswith("facts.")} - set(made.site.facts)
    assert known == {"description", "extends", "identify.order", "defaults.time", "resources.exclusive"}


ASSOC = "Cluster|Account|User|Partition|QOS|Def QOS\nlab|p0123|alice||normal,gpuq|normal\nlab|p0123-gpu|alice||normal,gpuq|normal\nlab|small|alice|own|normal|normal\n"


def of_partitions(
    monkeypatch: pytest.MonkeyPatch,
    text: str,
    sinfo: str = "-",
    qos: str = "Name|MinTRES\nnormal|\n",
    assoc: str = ASSOC,
) -> Draft:
    answers = {"sinfo": sinfo, "node": "-", "assoc": assoc, "qos": qos, "user": "User|Def Acct\nalice|p0123\n"}
    tables = answer(monkeypatch, "lab", partition=text, config="ClusterName = lab\n", **answers)
    return decide_profile.write(tables, LOGIN, None, "2026-11-23")


@pytest.mark.parametrize(("fields", "why"), [
    ("AllowAccounts=p0123,other", ""), ("AllowAccounts=other DenyAccounts=other", "for the accounts other"),
    ("DenyAccounts=p0123,p0123-gpu", "for the accounts of others"), ("DenyAccounts=p0123", ""),
    ("AllowAccounts=p0123 DenyAccounts=p0123", ""), ("AllowAccounts=small", "for the accounts small"),
    ("AllowQos=long", "for other QoS"), ("AllowQos=gpuq", ""), ("DenyQos=normal", ""), ("DenyQos=normal,gpuq", "for other QoS"),
    ("AllocNodes=login[01-04]", ""), ("AllocNodes=web01", "not from login01.example.org"), ("AllocNodes=login01.example.org", ""),
    ("AllowGroups=staff", "for other groups"), ("ReqResv=YES", "only in a reservation"), ("State=DRAIN", "it is drain"),
])  # fmt: skip
def test_a_partition_that_takes_no_job_of_the_user_is_left_out(
    fields: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rest = "" if fields.startswith("State") else "State=UP"
    text = f"PartitionName=any State=UP TotalNodes=9\nPartitionName=it {fields} {rest} TotalNodes=4\n"
    made = tomllib.loads((draft := of_partitions(monkeypatch, text)).text(()))
    assert ("it" in made["partitions"]) == (not why)
    assert (f"it ({why})" in draft.text(())) == bool(why)


def test_in_a_maintenance_of_the_whole_machine_the_partitions_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    draft = of_partitions(
        monkeypatch, "PartitionName=a State=DOWN TotalNodes=4\nPartitionName=b State=INACTIVE TotalNodes=2\n"
    )
    assert list(tomllib.loads(draft.text(()))["partitions"]) == ["a", "b"]


def test_a_partition_gets_the_account_and_the_limits_that_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    text = ("PartitionName=cpu State=UP Default=YES TotalNodes=9 TotalCPUs=1152 MaxCPUsPerNode=64\n"
            "PartitionName=gpu State=UP TotalNodes=4 TotalCPUs=512 AllowAccounts=p0123-gpu QoS=gpuq\n"
            "PartitionName=own State=UP TotalNodes=1 TotalCPUs=64 AllowAccounts=small,p0123-gpu\n")  # fmt: skip
    draft = of_partitions(monkeypatch, text, qos="Name|MinTRES\nnormal|\ngpuq|gres/gpu=1\n")
    made = tomllib.loads(draft.text(()))["partitions"]
    assert made["cpu"]["cpus_per_node"] == 64
    assert "account" not in made["cpu"]
    assert (made["gpu"]["account"], made["gpu"]["needs_gpus"]) == ("p0123-gpu", True)
    assert made["own"]["account"] == "p0123-gpu"
    assert any("partition own accepts the accounts p0123-gpu, small" in question for question in draft.questions)
    assert draft.facts["partitions.gpu.account"].confidence == "confirmed"
    assert draft.facts["partitions.own.account"].confidence == "guessed"


@pytest.mark.parametrize(("cpus", "memory", "size"), [
    ("UNLIMITED", "MaxMemPerCPU=4000", (128, "512000M")), ("124", "MaxMemPerCPU=4000", (124, "496000M")),
    ("UNLIMITED", "MaxMemPerCPU=9000", (128, "1000000M")), ("64", "MaxMemPerNode=300000", (64, "300000M")),
])  # fmt: skip
def test_a_node_is_as_large_as_a_partition_lets_a_job_have_it(
    cpus: str, memory: str, size: tuple[int, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond MaxMemPerCPU Slurm adds CPUs: a job with all memory of a node would need more CPUs than a node has."""
    text = f"PartitionName=h100 State=UP TotalNodes=4 MaxCPUsPerNode={cpus} {memory}\n"
    draft = of_partitions(monkeypatch, text, sinfo="h100|4|128|1|1000000|infinite|h[1-4]|gpu:h100:4\n")
    made = tomllib.loads(draft.text(()))["partitions"]["h100"]
    assert (made["cpus_per_node"], made["memory_per_node"]) == size


def test_a_limit_of_gpus_is_none_of_partitions_with_other_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "PartitionName=mixed State=UP TotalNodes=20 QoS=q\nPartitionName=gpu State=UP TotalNodes=6 QoS=q\n"
    rows = "mixed|14|64|1|1|2-0|c[1-14]|(null)\nmixed|6|64|1|1|2-0|g[1-6]|gpu:4\ngpu|6|64|1|1|2-0|g[1-6]|gpu:4\n"
    qos = "Name|MaxTRESPU\nnormal|\nq|cpu=512,gres/gpu=8\n"
    made = tomllib.loads(of_partitions(monkeypatch, text, sinfo=rows, qos=qos).text(()))["partitions"]
    assert made["mixed"]["max_nodes"] == 8, "512 CPUs"
    assert made["gpu"]["max_nodes"] == 2, "8 GPUs"


def test_a_qos_without_limits_leaves_those_of_the_partitions(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A limit of a QoS stands in the place of the partition's: the default QoS would lift all limits of partitions."""
    text = ("PartitionName=shared State=UP Default=YES TotalNodes=99 MaxNodes=1 MaxTime=4-0\n"
            "PartitionName=wide State=UP TotalNodes=99 MaxNodes=56 MaxTime=12:00:00\n")  # fmt: skip
    draft = of_partitions(monkeypatch, text, qos="Name|MaxWall\nnormal|\ngpuq|2:00:00\n")
    made = tomllib.loads(draft.text(()))["qos"]
    assert made == {"normal": {"partitions": ["shared", "wide"]}, "gpuq": {"max_time": "02:00:00"}}
    assert "normal" in loaded(draft.text(()), tmp_path).site.qos


def test_the_qos_of_a_partition_is_named_where_the_user_has_no_default_one(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "PartitionName=cpu State=UP TotalNodes=9 AllowQos=cpu,icb,priority\n"
    assoc = "Cluster|Account|User|Partition|QOS|Def QOS\nlab|haicu|alice||cpu,gpu,icb|\n"
    draft = of_partitions(monkeypatch, text, qos="Name|MaxWall\ncpu|3-0\nicb|2-0\ngpu|\nnormal|\n", assoc=assoc)
    assert tomllib.loads(draft.text(()))["partitions"]["cpu"]["qos"] == "cpu"
    assert any("and you have no default QoS: is cpu correct" in question for question in draft.questions)


def test_a_partition_for_tests_is_the_last_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    text = ("PartitionName=batch State=INACTIVE Default=YES TotalNodes=99\nPartitionName=debug State=UP TotalNodes=99\n"
            "PartitionName=serial State=UP TotalNodes=50\n")  # fmt: skip
    made = tomllib.loads(of_partitions(monkeypatch, text).text(()))
    assert made["defaults"]["partition"] == "serial"
    assert list(made["partitions"]) == ["serial", "debug"]


def test_the_account_of_a_partition_is_one_whose_qos_the_partition_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "PartitionName=gpu State=UP Default=YES TotalNodes=9 AllowQos=g\nPartitionName=cpu State=UP TotalNodes=9 AllowQos=c\n"
    assoc = "Cluster|Account|User|Partition|QOS|Def QOS\nlab|p0123|alice||g|g\nlab|abc@cpu|alice||c|c\n"
    made = tomllib.loads(of_partitions(monkeypatch, text, qos="Name|\nc|\ng|\n", assoc=assoc).text(()))
    assert (made["defaults"]["account"], made["partitions"]["cpu"]["account"]) == ("p0123", "abc@cpu")


def test_nodes_of_several_kinds_are_listed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    rows = ("main*|62|128|1|512000|2-0|c[01-62]|(null)\nmain*|4|64|1|1024000|2-0|g[1-4]|gpu:ampere:6(S:0-1),gpu:1g.10gb:28,nvme:1\n"
            "main*|1|64|1|1|2-0|x1|gpu:4090:8\n")  # fmt: skip
    draft = of_partitions(monkeypatch, "PartitionName=main State=UP Default=YES TotalNodes=67\n", sinfo=rows)
    made = tomllib.loads(draft.text(()))["partitions"]["main"]
    assert (made["gpu_type"], made["gpus_per_node"]) == ("ampere", 6)
    assert {name: (kind.get("gpus_per_node"), kind["max_nodes"]) for name, kind in made["nodes"].items()} == {
        "cpu": (None, 62), "ampere": (6, 4), "1g.10gb": (28, 4), "4090": (8, 1)}  # fmt: skip
    assert "memory_per_node" not in made["nodes"]["4090"]
    site = loaded(draft.text(()), tmp_path).site
    assert site.partitions["main"].nodes["1g.10gb"].gpu_type == "1g.10gb"
    assert any("ampere, 1g.10gb, 4090 (partitions.main.gpu_type)" in question for question in draft.questions)


def test_memory_that_slurm_does_not_know_is_asked_for_by_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """RealMemory is 1 MiB where nobody has configured it; a request for more is refused there."""
    row = "gh*|256|72|1|1|2-00:00:00|c[001-256]|(null)\n"
    node = "NodeName=c001 CPUTot=72 CPUEfctv=72 ThreadsPerCore=1 RealMemory=1 Partitions=gh\n"
    shown = (
        "PartitionName=gh State=UP TotalNodes=256 TotalCPUs=18432 TRES=cpu=18432,mem=256M,node=256 MaxTime=2-00:00:00\n"
    )
    for changed in ({"sinfo": row, "node": node, "partition": shown}, {"sinfo": "-", "node": "-", "partition": shown}):
        draft = decide_profile.write(answer(monkeypatch, "lab", **changed), LOGIN, None, "2026-11-23")
        made = tomllib.loads(draft.text(()))["partitions"]["gh"]
        assert "memory_per_node" not in made
        assert made["cpus_per_node"] == 72
        assert made.get("remove", ["--mem", "--mem-per-cpu"]) == ["--mem", "--mem-per-cpu"]
        assert not any("memory_per_node" in question for question in draft.questions)


def test_gpus_whose_type_begins_with_a_digit_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = "geforce*|2|32|1|128000|1-00:00:00|g[1-2]|gpu:2080ti:8(S:0-1)\n"
    made = profile_of(answer(monkeypatch, "lab", sinfo=rows, node="-", partition="-"))
    assert made["partitions"]["geforce"]["gpus_per_node"] == 8


def test_the_limits_of_a_qos_are_those_that_a_job_has(monkeypatch: pytest.MonkeyPatch) -> None:
    leonardo = profile_of(answer(monkeypatch, "leonardo"))
    assert leonardo["qos"]["boost_qos_bprod"] == {"partitions": ["boost_usr_prod"], "min_nodes": 65, "max_nodes": 256, "max_time": "1-00:00:00"}  # fmt: skip
    assert leonardo["qos"]["boost_qos_lprod"]["max_time"] == "4-00:00:00", "its flag PartitionTimeLimit"
    assert leonardo["qos"]["boost_qos_dbg"] == {"partitions": ["boost_usr_prod"], "max_nodes": 2, "max_time": "00:30:00", "max_jobs": 2}  # fmt: skip
    plain = text_of("leonardo", *QOS).replace("PartitionTimeLimit", "")
    again = profile_of(answer(monkeypatch, "leonardo", qos=plain))
    assert again["qos"]["boost_qos_lprod"]["max_time"] == "1-00:00:00", "without it the partition's limit holds"
    in_gpus = text_of("leonardo", *QOS).replace("node=65", "gres/gpu=257")
    uneven = profile_of(answer(monkeypatch, "leonardo", qos=in_gpus))
    assert uneven["qos"]["boost_qos_bprod"]["min_nodes"] == 65, "257 GPUs are more than 64 nodes have"
    example = profile_of(answer(monkeypatch, "example"))
    assert example["facts"]["qos.standard.max_nodes"]["confidence"] == "guessed", "counted from GPUs"
    assert example["qos"]["quick"] == {"max_nodes": 4, "max_time": "00:30:00"}
    assert example["defaults"]["account"] == "two"
    assert example["qos"]["odd"]["max_time"] == "365-00:00:00", "the default QoS's limit is not its own"
    assert "max_nodes" not in example["qos"]["odd"], "no QoS limits its partitions' nodes: their own limit counts"
    assert example["deadlines"]["script_grace"] == "7s", "KillWait is 15 s"


def test_what_is_denied_is_taken_from_elsewhere(monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests) -> None:
    shown = text_of("leonardo", "scontrol", "--oneliner", "show", "node")
    with subtests.test("no sinfo, but nodes"):
        found = profile_of(answer(monkeypatch, "leonardo", sinfo="-", node=shown))
        assert found["partitions"]["boost_usr_prod"] == EXPECTED["leonardo"]["boost_usr_prod"]
        assert found["facts"]["partitions.boost_usr_prod"]["source"].endswith("scontrol show node")
    with subtests.test("sinfo alone"):
        found = profile_of(answer(monkeypatch, "leonardo", partition="-", node="-", qos="-", assoc="-", user="-"))
        assert found["partitions"]["dcgp_usr_prod"] == {"max_nodes": 1536, "max_time": "1-00:00:00", "cpus_per_node": 112, "memory_per_node": "514000M"}  # fmt: skip
        assert found["defaults"] == {"partition": "lrd_all_serial", "time": "30"}
    with subtests.test("a node alone"):
        tables = answer(monkeypatch, "marenostrum5", partition="-", qos="-", assoc="-", user="-")
        found = profile_of(tables, NODE)
        assert found["partitions"]["acc"] == {"gpus_per_node": 4, "cpus_per_node": 160}
        assert found["facts"]["partitions.acc"]["confidence"] == "guessed"
    with subtests.test("nothing"):
        tables = answer(monkeypatch, "marenostrum5", config="-", partition="-", qos="-", assoc="-", user="-")
        assert profile_of(tables)["resources"] == {"exclusive": True}
        monkeypatch.setattr(
            slurm, "ask", lambda *_: Answer(1, "", "Unable to contact slurm controller (connect failure)")
        )
        with pytest.raises(SlurmUnreachableError):
            slurm_machine.read("alice")


@pytest.mark.parametrize("noise", ["", "PartitionName=\nNodeName=", "\x1b[31m|||||||\x00=\n", "a|b|c|d|e|f|g|h\n" * 3])
def test_odd_answers_end_in_a_profile_nevertheless(noise: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in FILES:
        text = decide_profile.write(answer(monkeypatch, "example", **{name: noise}), LOGIN, None, "2026-11-23").text(())
        assert loaded(text, tmp_path).site.extends == "slurm"
        assert "\x1b" not in text


def test_a_node_adds_what_only_it_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    found = profile_of(answer(monkeypatch, "marenostrum5"), NODE)
    assert found["network"] == {"interface": "ib0", "adapters": ["mlx5_0"]}
    assert (found["gpu"], found["runtime"]) == ({"cuda": "12"}, {"container": "singularity"})
    facts = {key: fact.get("value") for key, fact in found["facts"].items()}
    assert facts["gpu.names"] == "4 × NVIDIA H100"
    assert facts["login.nodes"] == "ssh reaches a node while your job runs on it"
    assert facts["network.interfaces_seen"] == "eno1 10.0.0.1; ib0 10.1.0.1"
    assert facts["gpu.adapters"] == "0000:1d:00.0: mlx5_0:1 PXB"
    assert facts["network.locked_memory"] == "unlimited"
    assert facts["paths.node.tmp"] == "/tmp: tmpfs of 8.0 GiB, 4.0 GiB free"
    assert facts["paths.said.SCRATCH"] == "/scratch/me, lustre"
    assert found["facts"]["gpu.cuda"]["confidence"] == "guessed", "the driver's number alone says so"
    draft = decide_profile.write(answer(monkeypatch, "marenostrum5"), LOGIN, NODE, "2026-11-23")
    assert any("counts 2 threads of each core: is 80" in question for question in draft.questions)


def test_a_node_is_looked_at_without_any_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment of a login node may hold neither psutil nor NVML; the profile takes what there is."""
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ANSWERS.parents[2]), "SLURM_JOB_PARTITION": "acc"}
    path = tmp_path / "seen.json"
    words = [sys.executable, "-S", "-P", "-m", "hpcml.node.hardware.probe", "--thorough", "--job", str(path)]
    subprocess.run(words, env=environment, check=True, timeout=120)
    seen = json.loads(path.read_text())
    assert {one["name"]: one["ipv4"] for one in seen["interfaces"]}["lo"] == ["127.0.0.1"]
    found = profile_of(answer(monkeypatch, "marenostrum5"), record.from_json(seen))
    assert found["facts"]["paths.node.dev_shm"]["value"].startswith("/dev/shm: ")


@pytest.mark.parametrize(("folder", "words", "expected"), [
    ("leonardo", ("", "", ""), machine.JobRequest("my_account", "boost_usr_prod", "boost_qos_dbg", 2, "gpu:1")),
    ("marenostrum5", ("", "acc", "acc_interactive"), machine.JobRequest("ehpc1", "acc", "acc_interactive", 1, "gpu:1")),
    ("lab", ("", "", ""), machine.JobRequest("", "debug", "", 2, "gpu:1")),
])  # fmt: skip
def test_the_job_asks_for_what_starts_soon(folder: str, words: tuple[str, str, str], expected: machine.JobRequest,
                                           monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    assert machine.choose_job(profile_of(answer(monkeypatch, folder)), *words) == expected


def test_reading_again_keeps_what_the_user_and_a_node_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tables = answer(monkeypatch, "marenostrum5")
    text = decide_profile.write(tables, LOGIN, NODE, "2026-01-01").text(())
    mine = text.replace('cuda = "12"', 'cuda = "13"').replace('"gpu.cuda" = ', '"gpu.cuda" = { confidence = "reported", date = 2026-02-02, source = "me" } # ')  # fmt: skip
    path = tmp_path / "mine.toml"
    path.write_text(mine.replace('time = "30"', 'time = "45"'))

    def again(*, probed: bool) -> tuple[dict[str, Any], list[str]]:
        draft = decide_profile.write(tables, LOGIN, NODE if probed else None, "2026-11-23")
        survey = machine.Survey.__new__(machine.Survey)
        survey.draft, survey.node = draft, NODE if probed else None
        kept = survey.keep_of(path)
        return tomllib.loads(draft.text(())), kept

    found, kept = again(probed=False)
    assert (found["gpu"]["cuda"], found["defaults"]["time"], found["network"]["interface"]) == ("13", "45", "ib0")
    assert found["facts"]["gpu.cuda"]["source"] == "me"
    assert str(found["facts"]["network"]["date"]) == "2026-01-01"
    assert found["facts"]["gpu.names"]["value"] == "4 × NVIDIA H100"
    assert str(found["facts"]["partitions.acc.qos"]["date"]) == "2026-11-23"
    assert {"gpu.cuda", "defaults.time"} <= set(kept)
    found, kept = again(probed=True)
    assert sorted(kept) == ["defaults.time", "gpu.cuda"]
    assert str(found["facts"]["network"]["date"]) == "2026-11-23"


def test_a_partition_that_forbids_memory_is_asked_without(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slurm is asked for a node of each partition with --test-only; what it refuses becomes a setting or a question."""
    tables = answer(monkeypatch, "marenostrum5")

    def ask(command: list[str], timeout: float = 60.0) -> Answer:
        text = Path(command[-1]).read_text()
        assert "#SBATCH --account=ehpc1\n" in text
        if "--partition=acc" in text:
            return Answer(1, "", "sbatch: error: memory is not yours\n") if "--mem=" in text else Answer(0, "", "")
        return Answer(1, "", "sbatch: error: Batch job submission failed: too many CPUs\n")

    monkeypatch.setattr(slurm, "ask", ask)
    survey = machine.Survey.__new__(machine.Survey)
    survey.tables, survey.draft = tables, decide_profile.write(tables, LOGIN, None, "2026-11-23")
    survey.check()
    assert survey.draft.values["partitions", "acc"]["remove"] == ["--mem"]
    assert "memory is not yours" in survey.draft.facts["partitions.acc.remove"].source
    (question,) = [one for one in survey.draft.questions if "too many CPUs" in one]
    assert re.search(r"sbatch --test-only refused .*gpp \(--account=ehpc1 .*--nodes=1 .*Batch job submission", question)
    assert "too large" not in question, "nothing says so"


def test_a_partition_that_wants_the_type_of_gpus_gets_it(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = "v*|2|40|1|180000|1-0|v[1-2]|gpu:v100:4\n"
    draft = of_partitions(monkeypatch, "PartitionName=v State=UP Default=YES TotalNodes=2\n", sinfo=rows)
    survey = machine.Survey.__new__(machine.Survey)
    survey.draft, survey.tables = draft, slurm_machine.read("alice")

    def ask(command: list[str], timeout: float = 60.0) -> Answer:
        taken = "--gres=gpu:v100:4\n" in Path(command[-1]).read_text()
        banner = "sbatch: error: You must always specify a type when requesting gpu GRES\n"
        return (
            Answer(0, "", "")
            if taken
            else Answer(1, "", f"{banner}sbatch: error: Batch job submission failed: Unspecified error\n")
        )

    monkeypatch.setattr(slurm, "ask", ask)
    survey.check()
    assert survey.draft.values["partitions", "v"]["gpu_type"] == "v100"
    assert "You must always specify a type" in survey.draft.facts["partitions.v.gpu_type"].source
    assert not [one for one in survey.draft.questions if "refused" in one]


def test_a_draft_is_toml_whatever_it_holds() -> None:
    draft = Draft("2026-11-23")
    how = How(SLURM, 'a "question"\nof two lines \x1b[0m')
    draft.set(("partitions", "a.b c"), "qos", 'x"\\\x7f\x01é', how)
    draft.ask(("partitions", "a.b c"), "is\nit = so?")
    found = tomllib.loads(draft.text(("one\ntwo",)))
    assert found["partitions"]["a.b c"]["qos"] == 'x"\\\x7f\x01é'
    assert read_by(found["facts"]["partitions.a.b c.qos"]["source"]) == SLURM


def test_a_refreshed_profile_keeps_the_old_one_beside_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "mine.toml"
    path.write_text("# old\n")
    command._refresh(Namespace(yes=True), path, "# new\n", ["defaults.time"], differs=True)
    assert (path.read_text(), (tmp_path / "mine.toml.old").read_text()) == ("# new\n", "# old\n")
    assert "mine.toml.old" in capsys.readouterr().out


def test_a_no_is_a_value_and_nothing_is_none() -> None:
    draft = Draft("2026-11-26")
    for name, value in (("no", False), ("yes", True), ("zero", 0), ("empty", "")):
        draft.set((), name, value, How(SLURM, "scontrol"))
    assert draft.values[()] == {"no": False, "yes": True}


def test_a_partition_of_large_jobs_is_asked_for_its_least(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    profile = tmp_path / "new.toml"
    profile.write_text("extends = 'slurm'\n[partitions.large]\nmin_nodes = 4\n[partitions.any]\n")
    asked: dict[str, int] = {}

    def plan(_: object, spec: Any, __: object) -> Any:
        asked[spec.place.partition] = spec.size.nodes
        return SimpleNamespace(directives=())

    monkeypatch.setattr("hpcml.plan.make_plan.plan", plan)
    monkeypatch.setattr(machine, "_refused", lambda *_: "")
    survey: Any = object.__new__(machine.Survey)
    survey.on_disk = lambda _: contextlib.nullcontext(profile)
    survey.check()
    assert asked == {"large": 4, "any": 1}
