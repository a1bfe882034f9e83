"""The parts of the node side that need no node: files, addresses, settings and who is to blame."""

from __future__ import annotations

import errno
import importlib.util
import itertools
import json
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from absences import absence_of
from hpcml import typed_json
from hpcml.kinds.dask import KIND
from hpcml.kinds.dask.node import dask_worker, gpus, interconnect, lost_workers, main_in_workers
from hpcml.kinds.dask.node.security import tls
from hpcml.node import agent, full_disk, process_helpers, script_environment, shared_files
from hpcml.node import context as node_context
from hpcml.node.hardware import dask_protocol, sysfs
from hpcml.node.process_helpers import EndNote
from hpcml.plan import make_plan
from hpcml.request import record as request
from hpcml.safe_files import write
from hpcml.sites import schema, settings_layers
from node_settings import settings as settings_of
from tests.said import says


@pytest.fixture
def context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> node_context.Context:
    site = settings_layers.build(schema.Site, settings_layers.Layers())
    place = make_plan.RunLocation(tmp_path, "/usr/bin/python3", "0")
    spec = request.RunRequest.of(tmp_path / "job.py", ("a", ""), tmp_path, nodes=2)
    table = typed_json.plain(make_plan.plan(site, spec, place))
    (tmp_path / "plan.json").write_text(json.dumps(table))
    for name, value in (("HPCML_RUN_DIR", str(tmp_path)), ("SLURM_JOB_NODELIST", "n[1-2]"), ("SLURMD_NODENAME", "n1")):
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("HPCML_ATTEMPT", raising=False)
    loaded = node_context.load()
    for folder in (loaded.attempt.exits, loaded.attempt.nodes, loaded.run.logs):
        folder.mkdir(parents=True)
    return loaded


def test_who_is_missing(context: node_context.Context) -> None:
    absence = absence_of(context, KIND, lost_workers.WORDS)
    assert lost_workers.missing_nodes(absence, {"n1", "n2"}) == []
    context.run.log("worker", "n2").write_text("it imports\n")
    silent = lost_workers.missing_nodes(absence, {"n1"})
    assert [(missing.node, missing.final, missing.quote) for missing in silent] == [
        ("n2", False, ())
    ]  # no log is read yet
    late = lost_workers.of_the_workers(absence, {"n1"}, 120.0)
    assert late
    assert late.quote == ("it imports",)
    write(context.attempt.exit_of("worker", "n2"), "127\n")
    context.run.log("worker", "n2").write_text("sh: python: not found\n")
    (ended,) = lost_workers.missing_nodes(absence, {"n1"})
    assert ended.final
    assert "127" in ended.sentence()
    assert ended.quote == ("sh: python: not found",)
    failed = lost_workers.of_the_workers(absence, set(), 120.0)
    assert failed
    assert "127" in failed.message
    assert "n1" not in failed.message, "it may only be slow"
    (unheard,) = lost_workers.missing_nodes(absence, {"n1", "n2"})  # the scheduler may not know yet of the task's end
    assert unheard.workers == ("n2",)


def test_a_file_is_there_whole_and_for_the_user_alone(tmp_path: Path) -> None:
    shared_files.write_json(tmp_path / "a.json", {"x": 1})
    assert shared_files.read_json(tmp_path / "a.json") == {"x": 1}
    assert (tmp_path / "a.json").stat().st_mode & 0o777 == 0o600
    assert shared_files.read_json(tmp_path / "none.json") is None
    (tmp_path / ".hidden").touch()
    assert shared_files.listed(tmp_path) == {"a.json"}
    assert shared_files.listed(tmp_path / "none") == set()


def test_waiting_ends_at_the_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seconds, naps = itertools.count(), iter(range(9))
    clock = SimpleNamespace(monotonic=lambda: next(seconds), sleep=lambda _: next(naps))
    monkeypatch.setattr(shared_files, "time", clock)
    assert not shared_files.wait_for(tmp_path / "never", 2, 0.01)
    (tmp_path / "there").touch()
    assert shared_files.wait_for(tmp_path / "there", 2, 0.01)


def test_ucx_stays_on_loopback_in_a_run_of_one_node_and_waits_for_no_event(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("UCX_NET_DEVICES", "UCXPY_PROGRESS_MODE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("UCX_TLS", "^posix")
    assert dask_protocol.ucx_environment(single_node=False) == {"UCXPY_PROGRESS_MODE": "thread"}
    monkeypatch.setenv("UCXPY_PROGRESS_MODE", "polling")
    assert dask_protocol.ucx_environment(single_node=True) == {"UCX_NET_DEVICES": "lo"}
    monkeypatch.setenv("UCX_NET_DEVICES", "mlx5_0:1")
    assert dask_protocol.ucx_environment(single_node=True) == {}


def test_ucx_shares_no_memory_with_the_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UCXPY_PROGRESS_MODE", "polling")
    monkeypatch.delenv("UCX_TLS", raising=False)
    assert dask_protocol.ucx_environment(single_node=False) == {"UCX_TLS": "^sysv"}
    said = tls.explanation("ucx", set(), gpus=False, group_memory=True)
    assert said.endswith(
        "; open to all users who can connect: UCX's System V shared memory, open to your group (UCX_TLS)"
    )


@pytest.mark.parametrize(("protocol", "devices", "gpus", "words"), [
    ("tls", set(), False, "mutual TLS"),
    ("ucx", set(), False, says("mutual TLS to the scheduler; UCX")),
    ("tcp", set(), False, says("mutual TLS to the scheduler; data over TCP", "key", "not encrypted")),
    ("ucx", {"ib0"}, True, says("mutual TLS to the scheduler; UCX", "who can connect: UCX's TCP on ib0, NCCL")),
])  # fmt: skip
def test_security_in_words(protocol: str, devices: set[str], gpus: bool, words: str) -> None:
    assert tls.explanation(protocol, devices, gpus=gpus) == words


def test_ucx_must_be_installed_where_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(dask_protocol.NoProtocolError, match="distributed-ucxx is not installed"):
        dask_protocol.choose_protocol(settings_of(network__protocol="ucx"))
    gpus_of_a_node = SimpleNamespace(count=4)
    several = settings_of(job__gpus=4, job__whole_nodes=True, network__private=True, workers__gpu=gpus_of_a_node)
    assert dask_protocol.choose_protocol(several) == ("tls", "distributed-ucxx is not installed")


@pytest.mark.parametrize("head", [True, False])
def test_pools_leave_room(head: bool) -> None:
    total = 141 * gpus.GIB
    size = gpus.pool_size(total, head=head)
    assert size % gpus.HUGE_PAGE == 0
    assert (total - size > 18 * gpus.GIB) if head else (11 * gpus.GIB < total - size < 13 * gpus.GIB)
    small = 16 * gpus.GIB
    assert 8 * gpus.GIB < gpus.pool_size(small, head=head) <= 13 * gpus.GIB


def test_a_pool_is_never_larger_than_what_is_free() -> None:
    total = 141 * gpus.GIB
    wanted = gpus.pool_size(total, head=False)
    assert gpus.fitting(wanted, total, total - gpus.GIB) == wanted
    assert 9 * gpus.GIB < gpus.fitting(wanted, total, int(10.8 * gpus.GIB)) <= 10 * gpus.GIB
    with pytest.raises(gpus.NoGpuError, match=r"1\.5 GiB of the GPU's 141\.0 GiB are free, but a worker needs 1 GiB"):
        gpus.fitting(wanted, total, int(1.5 * gpus.GIB))
    assert gpus.fitting(gpus.GIB // 2, total, 2 * gpus.GIB) == gpus.GIB // 2  # as asked for


def test_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    assert dask_protocol.choose_address("", single_node=True)[0] == "127.0.0.1"
    assert dask_protocol.choose_address("lo", single_node=False) == ("127.0.0.1", "interface lo from the profile")
    with pytest.raises(dask_protocol.NoAddressError, match="no IPv4 address"):
        dask_protocol.choose_address("nowhere0", single_node=False)
    own = [(socket.AF_INET, 0, 0, "", (address, 0)) for address in ("127.0.1.1", "10.0.0.5")]
    monkeypatch.setattr(sysfs, "interfaces", lambda _: [])
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_: own)
    monkeypatch.setattr(sysfs, "addresses", lambda: {"lo": ["127.0.0.1", "127.0.1.1"], "eth0": ["10.0.0.5"]})
    monkeypatch.setattr(socket, "gethostname", lambda: "n1")
    monkeypatch.setattr(socket, "if_nameindex", lambda: [(1, "lo"), (2, "eth0")])
    assert dask_protocol.choose_address("", single_node=False) == ("10.0.0.5", "address of n1")
    own[:] = [(socket.AF_INET, 0, 0, "", ("10.79.0.12", 0))]  # a wrong /etc/hosts: the address of another node
    address, why = dask_protocol.choose_address("", single_node=False)
    assert address == "10.0.0.5"
    assert "eth0 (n1 resolves to 10.79.0.12" in why


def test_a_scratch_folder_is_as_long_as_its_bytes(context: node_context.Context, tmp_path: Path) -> None:
    folder = tmp_path / ("\u00fc" * 40)
    job = context.settings.job._replace(scratch=str(folder))
    context = context._replace(settings=context.settings._replace(job=job))
    assert context.scratch(longest=len(str(folder).encode())) == str(folder)
    assert context.scratch(longest=len(str(folder))) == "/tmp"


def test_a_full_disk_takes_an_end_without_its_lines(
    context: node_context.Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    full_disk.renew(context.run)
    monkeypatch.setattr(shared_files, "write_json", refuse)
    facts = {"exit_status": 3, "quote": ["x" * 4096] * 20}
    assert full_disk.write_end(context.run, context.run.status, facts)
    assert json.loads(context.run.status.read_text()) == {"exit_status": 3, "quote": []}


PRINTS = """
import sys
from types import SimpleNamespace as Is
from hpcml.node import role as node
role = Is(name="scheduler", every_node=False)
main = lambda: print("a line") or print("another", file=sys.stderr) or 7
kind = Is(roles=[role], role=lambda _: role, main_of=lambda _: main)
node.finder, node.load = Is(install=lambda: None), lambda: Is(settings=Is(kind="one"))
sys.exit(node.main(["scheduler"], {"one": kind}))
"""


def test_a_role_that_prints_onto_a_full_disk_goes_on() -> None:
    with open("/dev/full", "w") as full:
        assert subprocess.run([sys.executable, "-c", PRINTS], stdout=full, stderr=full, check=False).returncode == 7


KEEPS = PRINTS.replace("every_node=False", "every_node=True").replace(
    "main = lambda:", "main = lambda: exit(open('/proc/self/oom_score_adj').read()) or"
)


def test_where_memory_runs_out_linux_kills_what_keeps_workers_before_the_scheduler() -> None:
    own = int(Path("/proc/self/oom_score_adj").read_text())
    done = subprocess.run([sys.executable, "-c", KEEPS], stderr=subprocess.PIPE, text=True, check=False)
    assert int(done.stderr) == min(own + process_helpers.KILLED_NEXT, 1000)


@pytest.mark.parametrize(("reason", "why"), [
    ("scheduler-close", EndNote.RETIRED), ("scheduler-close-worker", EndNote.RETIRED),
    ("worker-heartbeat-missing", EndNote.AGAIN), ("worker-without-gpu", EndNote.NO_GPU),
])  # fmt: skip
def test_a_worker_that_the_scheduler_closes_does_not_come_back(
    context: node_context.Context, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reason: str, why: bytes
) -> None:
    """It has the resources of the profile."""
    got: list[dict[str, Any]] = []

    async def serve(*arguments: Any) -> str:
        got.append(arguments[-1])
        return reason

    monkeypatch.setattr(dask_worker, "_serve", serve)
    monkeypatch.setattr(dask_worker, "_address", lambda *_: ("tls://127.0.0.1:1", "tls"))
    monkeypatch.setattr(interconnect, "log_environment", lambda _: {})
    monkeypatch.setattr(script_environment, "take_up", lambda *_, **__: None)
    monkeypatch.setattr(main_in_workers, "install", lambda _: None)
    monkeypatch.setattr(tls, "dask_settings", lambda *_: {})
    monkeypatch.setattr(tls, "security", lambda _: None)
    monkeypatch.setattr("dask.config.set", lambda _: None)
    monkeypatch.setattr("os.umask", lambda _: 0)
    settings = settings_of(of_kind__resources=[["disk", 2.0]], network__protocol="tls", network__interface="lo")
    one = context._replace(settings=settings)
    slot = agent.Slot(one.worker_names(one.node)[0])
    assert dask_worker.run(one, slot, tmp_path, dask_worker.Share(1, 0)) == 0
    assert slot.note.take() == why
    assert got[0]["resources"] == {"disk": 2.0}


def test_a_worker_finds_the_scheduler_of_its_share(context: node_context.Context, tmp_path: Path) -> None:
    (tmp_path / "address").write_text("tls://n1:1 tls\ntls://n1:2 ucx\n")
    assert dask_worker._address(context, tmp_path / "address", 1) == ("tls://n1:2", "ucx")
