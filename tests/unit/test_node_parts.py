"""A job for some of a node's GPUs: what it asks for and says, what it costs, and what its workers take it has."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hpcml.doctor import probe_job
from hpcml.kinds.dask.node import dask_worker
from hpcml.plan import cost, make_plan
from hpcml.request import record as request
from hpcml.sites import lookup
from hpcml.sites.schema import Site
from hpcml.units import format_memory_for_slurm
from hpcml.workload_forms import Form
from matrix import site_of

PLACE = make_plan.RunLocation(Path("/runs/job-20261124-074500-1a2b"), "/usr/bin/python3", "0")
NODE = {"gpus_per_node": 4, "cpus_per_node": 30, "memory_per_node": "100001M"}


def planned(site: Site, **values: Any) -> make_plan.Plan:
    values |= {
        name: request.measure(name, values.pop(name)) for name in ("time", "memory_per_node") if values.get(name)
    }
    spec = request.RunRequest.of(Path("/home/me/job.py"), (), Path("/home/me"), account="acc", **values)
    return make_plan.plan(site, spec, PLACE)


def shipped(name: str) -> Site:
    return lookup.load(name, {"HPCML_SYSTEM_CONFIG": "/nowhere"}, None).site


def one(partition: dict[str, Any] | None = None, **tables: Any) -> Site:
    """Return a site of one partition of nodes with four GPUs."""
    return site_of(
        {"scheduler": "slurm", "name": "one", "partitions": {"gpu": {**NODE, **(partition or {})}}, **tables}
    )


def sizes(made: make_plan.Plan) -> tuple[str, str]:
    said = dict(made.directives)
    return said.get("--cpus-per-task", ""), said.get("--mem", "")


SHARES: list[tuple[Site, dict[str, Any], tuple[str, str], int]] = [
    (one(), {"gpus_per_node": 1}, ("7", "25000M"), 4),
    (one(), {"gpus_per_node": 3}, ("22", "75000M"), 4),
    (one(), {"gpus_per_node": 4}, ("30", "100001M"), 0),
    (one(), {}, ("30", "100001M"), 0),
    (one({"cpus_per_node": 2}), {"gpus_per_node": 1}, ("1", "25000M"), 4),
    (one(), {"gpus_per_node": 1, "cpus_per_node": 30}, ("30", "25000M"), 4),
    (one(), {"gpus_per_node": 1, "memory_per_node": "60000M"}, ("7", "60000M"), 4),
    (one(), {"gpus_per_node": 1, "memory_per_node": "60000M", "cpus_per_node": 9}, ("9", "60000M"), 4),
    (one(resources={"cpus_per_node": 12, "memory_per_node": "9G"}), {"gpus_per_node": 1}, ("12", "9216M"), 4),
    (one(resources={"exclusive": True}), {"gpus_per_node": 1}, ("30", "100001M"), 0),
    (one({"whole_nodes": True}), {"gpus_per_node": 1}, ("30", "100001M"), 0),
    (one(qos={"big": {"whole_nodes": True}}), {"gpus_per_node": 1, "qos": "big"}, ("30", "100001M"), 0),
    (one(qos={"big": {"whole_nodes": True}}), {"gpus_per_node": 1, "qos": "small"}, ("7", "25000M"), 4),
    (one(), {"gpus_per_node": 1, "sbatch": (("--exclusive", ""),)}, ("30", "100001M"), 0),
    (one(), {"gpus_per_node": 1, "sbatch": (("--exclusive", "user"),)}, ("7", "25000M"), 4),
    (one(slurm={"extra": ["--exclusive"]}), {"gpus_per_node": 1}, ("30", "100001M"), 0),
    (one({"gpus_per_node": 0}), {"gpus_per_node": 1}, ("30", "100001M"), 0),
    (shipped("leonardo"), {"gpus_per_node": 1}, ("8", "123500M"), 4),
    (shipped("snellius"), {"gpus_per_node": 1}, ("18", "122880M"), 4),
    (shipped("snellius"), {"gpus_per_node": 1, "partition": "gpu_h100"}, ("16", "184320M"), 4),
    (shipped("vega"), {"gpus_per_node": 2}, ("128", ""), 4),
    (shipped("marenostrum5"), {"nodes": 2, "gpus_per_node": 2}, ("40", ""), 4),
    (shipped("marenostrum5"), {"gpus_per_node": 1, "partition": "acc"}, ("20", ""), 4),
    (shipped("perlmutter"), {"gpus_per_node": 1, "qos": "shared"}, ("32", ""), 4),
    (shipped("perlmutter"), {"gpus_per_node": 1}, ("128", ""), 0),
    (shipped("juwels"), {"gpus_per_node": 1}, ("48", ""), 0),
]  # fmt: skip


def test_some_of_a_node_s_gpus_come_with_their_share_of_the_rest(subtests: pytest.Subtests) -> None:
    for number, (site, asked, expected, node_gpus) in enumerate(SHARES):
        with subtests.test(number=number, site=site.name, asked=asked):
            made = planned(site, **asked)
            assert sizes(made) == expected
            assert made.inside.job.node_gpus == node_gpus


DCGP = {"partition": "dcgp_usr_prod"}
PLAIN = {"cpus_per_node": 8, "memory_per_node": "8G"}
SOME_CPUS: list[tuple[Site, dict[str, Any], tuple[str, str], list[str]]] = [
    (shipped("leonardo"), {**DCGP, "cpus_per_node": 4}, ("4", "17642M"), ["4 of 112 CPUs and 17642M of 494000M"]),
    (shipped("leonardo"), {**DCGP, "cpus_per_node": 112}, ("112", "494000M"), []),
    (shipped("leonardo"), DCGP, ("112", "494000M"), []),
    (shipped("leonardo"), {**DCGP, "cpus_per_node": 4, "memory_per_node": "100G"}, ("4", "102400M"), []),
    (shipped("leonardo"), {**DCGP, "cpus_per_node": 4, "memory_per_node": "0"}, ("4", "0"), []),
    (shipped("leonardo"), {**DCGP, "cpus_per_node": 4, "sbatch": (("--exclusive", ""),)}, ("4", "494000M"), []),
    (one({"gpus_per_node": 0}), {"cpus_per_node": 2}, ("2", "6666M"), ["2 of 30 CPUs and 6666M of 100001M"]),
    (one({"gpus_per_node": 0}, resources={"cpus_per_node": 3}), {}, ("3", "10000M"), ["3 of 30 CPUs and 10000M of 100001M"]),
    (one({"gpus_per_node": 0}, resources={"memory_per_node": "9G"}), {"cpus_per_node": 2}, ("2", "9216M"), []),
    (one({"gpus_per_node": 0, "whole_nodes": True}), {"cpus_per_node": 2}, ("2", "100001M"), []),
    (one({"gpus_per_node": 0}, slurm={"remove": ["--mem"]}), {"cpus_per_node": 2}, ("2", ""), []),
    (one({"gpus_per_node": 0, "cpus_per_node": 0}), {"cpus_per_node": 2}, ("2", "100001M"), []),
    (one({"gpus_per_node": 0, "memory_per_node": ""}), {"cpus_per_node": 2}, ("2", ""), []),
    (one({"gpus_per_node": 0, "cpus_per_node": 0, "memory_per_node": "", "nodes": {"a": PLAIN, "b": {"cpus_per_node": 4, "memory_per_node": "6G"}}}),
     {"cpus_per_node": 2}, ("2", "2048M"), ["2 of 4 CPUs and 2048M of 6144M"]),
    (site_of({"scheduler": "slurm", "resources": PLAIN}), {"cpus_per_node": 2}, ("2", "2048M"), ["2 of 8 CPUs and 2048M of 8192M"]),
    (site_of({"scheduler": "slurm", "resources": PLAIN}), {}, ("8", "8192M"), []),
]  # fmt: skip


def test_some_of_a_node_s_cpus_come_with_their_share_of_its_memory(subtests: pytest.Subtests) -> None:
    for number, (site, asked, expected, notes) in enumerate(SOME_CPUS):
        with subtests.test(number=number, site=site.name, asked=asked):
            made = planned(site, **asked)
            assert sizes(made) == expected
            noted = [text for text in made.notices if text.endswith("more: --memory-per-node)")]
            assert [" ".join(text.split()[3:11]) for text in noted] == notes


SAID: list[tuple[Site, dict[str, Any], list[str]]] = [
    (one(), {"gpus_per_node": 1},
     ["the run requests 1 of 4 GPUs, 7 of 30 CPUs and 25000M of 100001M of memory per node "
      "(to request more: --cpus-per-node, --memory-per-node)"]),
    (one(), {"gpus_per_node": 1, "memory_per_node": "60000M"},
     ["the run requests 1 of 4 GPUs and 7 of 30 CPUs per node (to request more: --cpus-per-node)"]),
    (one(), {"gpus_per_node": 1, "cpus_per_node": 9, "memory_per_node": "60000M"}, []),
    (one(slurm={"remove": ["--mem"]}), {"gpus_per_node": 1},
     ["the run requests 1 of 4 GPUs and 7 of 30 CPUs per node (to request more: --cpus-per-node)"]),
    (one(slurm={"extra": ["--cpus-per-task=5"]}), {"gpus_per_node": 1},
     ["the run requests 1 of 4 GPUs and 25000M of 100001M of memory per node (to request more: --memory-per-node)"]),
    (one(), {"gpus_per_node": 4}, []),
    (one({"whole_nodes": True}), {"gpus_per_node": 4}, []),
    (one({"whole_nodes": True}), {"nodes": 2, "gpus_per_node": 1},
     ["this job reserves 2 nodes of gpu and uses 1 of 4 GPUs per node: add --gpus-per-node 4"]),
    (one({"gpus_per_node": 0}), {"gpus_per_node": 1},
     ["the profile does not give the number of GPUs per node (partitions.gpu.gpus_per_node), so hpcml requests 30 CPUs and 100001M of "
      "memory (to request other amounts: --cpus-per-node, --memory-per-node)"]),
    (one({"gpus_per_node": 0}), {"gpus_per_node": 1, "cpus_per_node": 2, "memory_per_node": "2G"}, []),
    (shipped("slurm"), {"gpus_per_node": 1},
     ["this job reserves whole nodes: if they have more than 1 GPU each, increase --gpus-per-node; the profile does not give the "
      "number of GPUs per node (resources.node_gpus)"]),
    (one(), {"nodes": 2, "partition": "gpu"},
     ["this job requests all CPUs and memory of its nodes, so no other job can use their 8 GPUs: add --gpus-per-node 4 if the script can use GPUs"]),
    (one(), {"partition": "gpu", "cpus_per_node": 2, "memory_per_node": "2G"}, []),
    (one(), {"partition": "gpu", "cpus_per_node": 2}, []),
    (one(), {"partition": "gpu", "cpus_per_node": 2, "memory_per_node": "100001M"},
     ["this job requests all memory of its nodes, so no other job can use their 4 GPUs: add --gpus-per-node 4 if the script can use GPUs"]),
    (site_of({"scheduler": "slurm", "resources": {"node_gpus": 4, "cpus_per_node": 8, "memory_per_node": "8G"}}), {"cpus_per_node": 2}, []),
    (shipped("slurm"), {}, []),
    (shipped("marenostrum5"), {"nodes": 2},
     ["this job requests all CPUs of its nodes, so no other job can use their 8 GPUs: add --gpus-per-node 4 if the script can use GPUs, or choose --qos gp_ehpc"]),
    (shipped("marenostrum5"), {"nodes": 2, "qos": "gp_ehpc"}, []),
    (shipped("marenostrum5"), {"gpus_per_node": 5}, ["A node has 4 GPUs, but the run requests 5; the profile's limit is only reported, so Slurm decides"]),
    (shipped("perlmutter"), {},
     ["this job takes whole nodes, so no other job can use their 4 GPUs: add --gpus-per-node 4 if the script can use GPUs, or choose nodes without GPUs"]),
    (shipped("perlmutter"), {"sbatch": (("--constraint", "cpu"),)}, []),
    (shipped("perlmutter"), {"gpus_per_node": 1, "sbatch": (("--constraint", "gpu&hbm80g"),)},
     ["this job reserves 1 node and uses 1 of 4 GPUs per node: add --gpus-per-node 4, or choose --qos shared, "
      "which reserves only a part of a node"]),
    (site_of({"scheduler": "slurm", "partitions": {"gpu": {**NODE, "whole_nodes": True}, "cpu": {"max_nodes": 4}}}),
     {"partition": "gpu"},
     ["this job takes whole nodes, so no other job can use their 4 GPUs: add --gpus-per-node 4 if the script can use GPUs, or choose a CPU partition (--partition cpu)"]),
    (shipped("juwels"), {}, ["this job takes whole nodes, so no other job can use their 4 GPUs: add --gpus-per-node 4 if the script can use GPUs"]),
]  # fmt: skip


def test_it_is_said_and_so_is_what_stays_unused(subtests: pytest.Subtests) -> None:
    for number, (site, asked, expected) in enumerate(SAID):
        with subtests.test(number=number, site=site.name, asked=asked):
            notices = planned(site, **asked).notices
            assert [
                text for text in notices if "GPU" in text and "libfabric" not in text and "UCX" not in text
            ] == expected


def test_the_cost_is_that_of_the_share_and_of_whole_nodes_where_they_are_given() -> None:
    leonardo = shipped("leonardo")
    weights, _ = cost.weights(leonardo.cost.weights)
    asked = cost.request(leonardo, planned(leonardo, gpus_per_node=1, time="10").directives, 1, 600)
    assert (asked.cpus, asked.gpus, format_memory_for_slurm(asked.memory)) == (8, 1, "123500M")
    assert cost.billing(asked, weights, largest=leonardo.cost.largest) * asked.seconds / 3600 == pytest.approx(8 / 6)
    juwels = shipped("juwels")
    whole = cost.request(juwels, planned(juwels, nodes=2, gpus_per_node=1).directives, 2, 600)
    assert (whole.cpus, whole.gpus) == (2 * 48, 2 * 4)


def test_workers_have_no_memory_that_was_not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    monkeypatch.setattr(dask_worker, "MEMORY_LIMIT", physical)
    for name in ("SLURM_MEM_PER_NODE", "SLURM_MEM_PER_CPU"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "7")

    def share(**asked: Any) -> dask_worker.Share:
        made = planned(one({"memory_per_node": ""}), **asked)
        context: Any = SimpleNamespace(settings=made.inside)
        return dask_worker.Share.of_node(context, made.inside.workers.per_node)

    assert share(gpus_per_node=1).memory_limit == physical // 4
    assert share(gpus_per_node=3).memory_limit == physical * 3 // 4 // 3
    monkeypatch.setattr(dask_worker, "MEMORY_LIMIT", 1 << 20)  # the control group's
    assert share(gpus_per_node=1).memory_limit == 1 << 20
    monkeypatch.setattr(dask_worker, "MEMORY_LIMIT", physical)
    monkeypatch.setenv("SLURM_MEM_PER_NODE", "100")
    assert share(gpus_per_node=1).memory_limit == 100 << 20


def test_the_doctor_s_job_asks_for_one_gpu_where_no_partition_is_listed() -> None:
    loaded = lookup.load("marenostrum5", {"HPCML_SYSTEM_CONFIG": "/nowhere"}, None)
    spec = request.RunRequest.of(Path("doctor"), (), Path("/"), form=Form.DOCTOR, account="acc")
    ours, asked = probe_job.request(loaded, spec)
    made = make_plan.plan(ours.site, asked, PLACE)
    assert dict(made.directives)["--gres"] == "gpu:1"
    assert not [text for text in made.notices if "GPU" in text]
    _, asked = probe_job.request(loaded, spec.changed(qos="gp_ehpc"))
    assert not asked.place.sbatch
