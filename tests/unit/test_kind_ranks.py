"""Ranks: their option, their variables, the agents' authenticated connection, and which end is the run's."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import socket
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from absences import absence_of
from hpcml.errors import CANCELLED, IDLE, IMAGE, STOPPED, TIME_LIMIT, HpcmlError
from hpcml.failures import judgement
from hpcml.failures.cause import Case
from hpcml.failures.end import NODE_MEMORY, End, OtherEnd, parse
from hpcml.kinds.ranks import KIND
from hpcml.kinds.ranks.node import interconnect, lost_nodes, nccl_log, pmi_handover, rapidsmpf_server
from hpcml.kinds.ranks.node.supervised import ENDING, EVENTS, FOLLOW, LEFT, Processes, Ranks
from hpcml.kinds.ranks.variables import World, of_rank, with_users_own
from hpcml.node import job
from hpcml.node.context import Context
from hpcml.node.events_and_end import RunEndedError
from hpcml.node.interconnect.measurement import parse_nccl_log
from hpcml.node.link import line as line_of
from hpcml.node.link.connections import Connection
from hpcml.node.link.hub import Hub
from hpcml.node.tasks.run_tasks import end_of
from hpcml.options.reading import request_of
from hpcml.paths import AttemptPaths, RunPaths
from hpcml.plan.make_plan import RunLocation, plan
from hpcml.request.record import Code
from hpcml.schedulers import slurm
from hpcml.subprocesses import Answer
from hpcml.workload_forms import Form
from matrix import site_of
from node_settings import settings as settings_of
from tests.said import in_order, says

KEY = b"k" * 32
WORLD = World(nodes=2, each=2, address="10.0.0.1", port=4000, coordinator=4001)


@pytest.mark.parametrize(("given", "values"), [
    ({"ranks": "0"}, ("'0'", "gpu, node")),
    ({"ranks": "gpu"}, ("--ranks gpu", "GPUs")),
    ({"ranks": "5", "cpus_per_node": "4"}, ("5 ranks", "5 CPUs", 4)),
    ({"ranks": "5", "gpus_per_node": "4"}, ("5 ranks", "5 GPUs", 4)),
    ({"ranks": "2", "gpus_per_node": "1"}, ("--ranks 2/gpu",)),
    ({"ranks": "2/gpu"}, ("--ranks 2/gpu", "GPUs")),
    ({"ranks": "2/gpu", "gpus_per_node": "2", "cpus_per_node": "3"}, ("4 ranks", "4 CPUs", 3)),
    ({"ranks": "/gpu"}, ("'/gpu'", "gpu, node")),
    ({"ranks": "2", "own_clusters": True}, ("--own-clusters", "kind dask")),
    ({"ranks": "2", "mpi": "openmpi"}, ("'openmpi'", "pmix", "pmi2")),
    ({"mpi": "pmix"}, ("--mpi", "kind ranks")),
    ({"ranks": "2", "mpi": "pmix", "scheduler": "local"}, ("--mpi", "srun", "local")),
])  # fmt: skip
def test_ranks_that_cannot_be_are_refused(given: dict[str, Any], values: tuple[object, ...]) -> None:
    with pytest.raises(HpcmlError) as caught:
        planned(given)
    assert re.search(in_order(*values), f"{caught.value} {caught.value.hint}")
    assert caught.value.hint


def test_several_ranks_share_a_gpu_only_where_that_is_asked_for() -> None:
    """MPI codes do so; by chance it would be a fault."""
    made = planned({"ranks": "2/gpu", "gpus_per_node": "4"})
    assert (made.inside.workers.per_node, dict(made.directives)["--gpus-per-node"]) == (8, "4")


def planned(given: dict[str, Any]) -> Any:
    request = request_of(given, Code(Path("/x/train.py"), cwd=Path("/x")))
    site = site_of({"scheduler": given.get("scheduler", "slurm"), "slurm": {"srun_extra": ["--mpi=none"]}})
    return plan(site, request, RunLocation(Path("/r/run"), "/usr/bin/python3", "1"))


def test_a_plan_with_mpi_has_a_task_of_srun_for_each_rank() -> None:
    made = planned({"ranks": "gpu", "nodes": "2", "gpus_per_node": "4", "mpi": "pmi2"})
    assert (made.roles, made.inside.of_kind) == (("rank", "mpi"), {"mpi": "pmi2"})
    agents, tasks, _ = [step.launcher for step in made.steps]
    assert {"--ntasks=2", "--ntasks-per-node=1"} <= {*agents.options}
    assert {"--ntasks=8", "--ntasks-per-node=4", "--distribution=block", "--kill-on-bad-exit=0"} <= {*tasks.options}
    assert [word for word in tasks.options if word.startswith("--mpi")][-1] == "--mpi=pmi2"
    assert tasks.shell == "--cpus-per-task=1"


def test_slurm_lists_its_kinds_of_pmi(monkeypatch: pytest.MonkeyPatch) -> None:
    new = "MPI plugin types are...\n\tpmix\n\tnone\n\tcray_shasta\nspecific pmix plugin versions available: pmix_v4\n"
    monkeypatch.setattr(slurm, "ask", lambda *_: Answer(0, new, ""))
    assert slurm.mpi_kinds(2.0) == ("pmix", "none", "cray_shasta")
    monkeypatch.setattr(slurm, "ask", lambda *_: Answer(0, "", "srun: MPI types are...\nsrun: none\nsrun: pmi2\n"))
    assert slurm.mpi_kinds(2.0) == ("none", "pmi2")


def on_a_node(folder: Path) -> Any:
    """Return the context of an agent, and of the tasks of srun beside it."""
    attempt = AttemptPaths(folder)
    attempt.secret.mkdir()
    attempt.link_key.write_bytes(KEY)
    attempt.link.write_text("{}")
    return SimpleNamespace(attempt=attempt, node="n2", settings=settings_of(workers__per_node=1, job__image="/a.sif"))


def test_another_user_s_process_is_no_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    context = on_a_node(tmp_path)
    agent = pmi_handover.Tasks(context, range(3, 4))
    caller = pmi_handover._call(pmi_handover._place(context), time.monotonic() + 60)
    assert caller
    with caller, agent.listener:
        caller.send(b'{"rank": 3, "variables": {}}')
        monkeypatch.setattr("os.geteuid", lambda: 12345)
        assert not agent.are_complete()
        with pytest.raises(ConnectionResetError):
            caller.recv(1)
        assert (
            pmi_handover._call(pmi_handover._place(context), time.monotonic() + 0.2) is None
        )  # another user's process is no agent


def test_a_task_that_says_nothing_sensible_is_none(tmp_path: Path) -> None:
    context = on_a_node(tmp_path)
    agent = pmi_handover.Tasks(context, range(3, 4))
    said = [b"", b"x", b"[]", b"{}", b'{"rank": "x", "variables": {}}', b'{"rank": 3, "variables": 5}', b"\xff", None]
    with contextlib.ExitStack() as opened:
        opened.enter_context(agent.listener)
        for message in said:
            caller = pmi_handover._call(pmi_handover._place(context), time.monotonic() + 60)
            assert caller
            opened.enter_context(caller)
            if message is None:
                caller.send(b'{"rank": 3, "variables": {"PMI_RANK": "3"}}')
            elif message:
                caller.send(message)
            else:
                caller.close()
        assert agent.are_complete()
        assert agent.by_rank[3].variables == {"PMI_RANK": "3"}
        assert not agent.callers
        agent.by_rank[3].connection.close()


def test_a_rank_has_the_connection_of_its_task_with_slurm(tmp_path: Path) -> None:
    context = on_a_node(tmp_path)
    agent = pmi_handover.Tasks(context, range(3, 4))
    rank, slurms = socket.socketpair()
    with rank, slurms:
        if not (pid := os.fork()):
            os.environ |= {"PMI_FD": str(rank.fileno()), "PMI_RANK": "3", "SLURM_PROCID": "3"}
            vars(pmi_handover)["load"] = lambda: context
            os._exit(pmi_handover.main())
        deadline = time.monotonic() + 60
        while not agent.are_complete():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert not any(map(os.get_inheritable, agent.by_rank[3].sockets))
        made = agent.connected(3, {"PMI_RANK": "0", "PMIX_RANK": "0", "HOME": "/h"})
        number = int(made.pop("PMI_FD"))
        assert made == {"PMI_RANK": "3", "PMIX_MCA_gds": "hash", "HOME": "/h"}
        assert os.get_inheritable(number)
        with socket.socket(fileno=number) as theirs:
            theirs.sendall(b"init")
        assert slurms.recv(4) == b"init"
    assert os.waitpid(pid, os.WNOHANG) == (0, 0)  # Slurm's side must last as long as the ranks
    agent.by_rank[3].connection.close()
    assert os.waitpid(pid, 0) == (pid, 0)
    agent.listener.close()


def test_a_rank_has_the_variables_of_torchrun_and_of_slurm(monkeypatch: pytest.MonkeyPatch) -> None:
    made = of_rank(WORLD, 3, interface="ib0", threads=8, errors="/e")
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT")
    assert [made[name] for name in names] == ["3", "4", "1", "2", "1", "10.0.0.1", "4000"]
    assert (made["NCCL_SOCKET_IFNAME"], made["GLOO_SOCKET_IFNAME"]) == ("=ib0", "ib0")
    assert not any(name.startswith("PET_") for name in made)  # a torchrun of a rank would join the ranks
    assert of_rank(WORLD._replace(each=1, gpus=4), 1, interface="", threads=8, errors="")["PET_NPROC_PER_NODE"] == "4"
    made = of_rank(WORLD._replace(rapidsmpf=4002, gpus=2), 3, interface="ib0", threads=8, errors="")
    assert [made[f"RRUN_{name}"] for name in ("RANK", "NRANKS", "SOCKET_ADDR")] == ["3", "4", "10.0.0.1:4002"]
    numbers = {"rank": 3, "local": 1, "node": 1, "each": 2, "nodes": 2}
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    assert job.task_variables(**numbers)["SLURM_JOB_ID"] == "0"
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    made = job.task_variables(**numbers)
    assert [made[f"SLURM_{name}"] for name in ("PROCID", "LOCALID", "NTASKS", "STEP_TASKS_PER_NODE")] == [
        "3", "1", "4", "2(x2)"]  # fmt: skip
    slurms = {"PMIX_RANK": "0", "PMI_FD": "3", "PMI2_LIBRARY": "x"}
    assert job.without_pmi({**slurms, "PMIX_MCA_gds": "hash"}) == {"PMIX_MCA_gds": "hash"}


def test_no_rank_gets_a_rendezvous_that_unpickles_what_others_write() -> None:
    """And each torchrun gets an endpoint: on one node, static without an endpoint is c10d."""
    for nodes, each, gpus in itertools.product((1, 2), (1, 2), (0, 4)):
        world = WORLD._replace(nodes=nodes, each=each, gpus=gpus, rapidsmpf=4002)
        for rank in range(world.size):
            made = of_rank(world, rank, interface="ib0", threads=8, errors="/e")
            assert not any("c10d" in value or "etcd" in value for value in made.values())
            assert made.get("PET_RDZV_BACKEND", "static") == "static"
            assert ("PET_RDZV_ENDPOINT" in made) == (made.get("PET_NODE_RANK") == str(rank)) == (each == 1)
    assert (
        with_users_own(made, {"PET_RDZV_BACKEND": "c10d"})[0]["PET_RDZV_BACKEND"] == "c10d"
    )  # their submission notes it


def test_a_user_s_own_value_wins_unless_it_cannot_work() -> None:
    computed = of_rank(WORLD, 0, interface="ib0", threads=8, errors="")
    made, notes = with_users_own(computed, {"OMP_NUM_THREADS": "2", "NCCL_SOCKET_IFNAME": "^lo", "RANK": "7"})
    assert (made["OMP_NUM_THREADS"], made["NCCL_SOCKET_IFNAME"], made["RANK"], notes) == ("2", "^lo", "0", [])
    made, notes = with_users_own(computed, {"GLOO_SOCKET_IFNAME": "^lo"})
    assert (made["GLOO_SOCKET_IFNAME"], len(notes)) == ("ib0", 1)


@pytest.fixture
def hub() -> Iterator[Hub]:
    with Hub(["127.0.0.1", "127.0.0.2"], KEY, EVENTS) as made:
        yield made


def served(hub: Hub, work: Any) -> tuple[Any, list[tuple[str, dict[str, Any]]]]:
    """Return what work in a thread gives, and the messages that the hub has got meanwhile."""
    answer: list[Any] = []
    thread = threading.Thread(target=lambda: answer.append(work()))
    thread.start()
    messages = []
    while thread.is_alive():
        messages += hub.receive(0.01)
    return answer[0], messages + hub.receive(0.01)


def test_a_node_tries_all_addresses_and_speaks_over_one(hub: Hub) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.3", 0))
        places = [closed.getsockname(), *hub.places]
        (line, ways), messages = served(hub, lambda: line_of.connect(places, KEY, "n1"))
    assert line is not None
    assert list(ways) == ["127.0.0.1", "127.0.0.2"]
    line.send(event="alive", processors=1.5)
    while len(messages) < 2:
        messages += hub.receive(1)
    assert messages == [("n1", {"event": "connected"}), ("n1", {"event": "alive", "processors": 1.5})]
    hub.send(do="start")
    assert [order for _ in range(2) for order in line.receive()] == [{"do": "start"}]
    line.close()
    assert hub.receive(1) == [("n1", {"event": "lost", "why": "it closed the connection"})]


def test_who_lacks_the_run_s_key_gets_no_line(hub: Hub) -> None:
    (line, _), messages = served(hub, lambda: line_of.connect(hub.places, b"x" * 32, "n1"))
    assert messages == []
    assert not hub.lines
    with socket.create_connection(hub.places[0]) as stranger:
        stranger.sendall(b"\xff" * line_of.LONGEST + b"\n")
        for _ in range(4):
            assert hub.receive(0.05) == []
        stranger.settimeout(5)
        with contextlib.suppress(ConnectionResetError):
            while stranger.recv(1024):
                pass
    assert not hub.entrance.strangers
    if line:
        line.close()


@pytest.mark.parametrize("change", [lambda text: text.replace(b"ok", b"no"), lambda text: text + text])
def test_a_line_that_was_changed_or_said_again_ends_the_connection(change: Any) -> None:
    ours, theirs = socket.socketpair()
    sender, passed = line_of.Line(Connection(ours, 1000), KEY, b"a", b"b"), theirs.recv
    sender.send(event="ok")
    receiver = line_of.Line(Connection(theirs, 1000), KEY, b"b", b"a", change(passed(line_of.LONGEST)))
    receiver.receive()
    assert receiver.why == "it sent a line that is not authentic"
    sender.close()
    receiver.close()


def test_a_node_that_cannot_enter_the_image_ends_the_run_as_such(tmp_path: Path) -> None:
    run = RunPaths(tmp_path)
    for folder in (run.attempt(0).nodes, run.attempt(0).exits, run.logs):
        folder.mkdir(parents=True)
    settings = settings_of(job__one_machine=False, job__image="/images/dask.sif")
    context = Context(run, run.attempt(0), 0, settings, "n1", ("n1", "n2", "n3"))
    (run.attempt(0).exits / "rank@n2").write_text("255\n")
    run.log("rank", "n2").write_text("FATAL:   container creation failed: it is cut off\n")
    end = lost_nodes.end_without(absence_of(context, KIND, lost_nodes.WORDS), ["n2", "n3"], late=True)
    assert end
    assert (end.exit_status, end.phase, end.at_fault) == (IMAGE, "image", ("n2",))
    assert "n2: the image could not be started" in end.message
    assert end.hint


class RapidsmpfRank:
    """A connection as rapidsmpf's SocketBackend opens it."""

    def __init__(self, port: int, rank: int, token: str, size: int = 2) -> None:
        self.connection = socket.create_connection(("127.0.0.1", port), timeout=20)
        self.file = self.connection.makefile("rwb")
        self.admitted = self.ask(f"AUTH rank={rank} nranks={size} token={token}")

    def ask(self, question: str, value: bytes = b"") -> str:
        """Return the answer to a question, or the value that it announces; nothing if the connection is closed."""
        self.file.write(question.encode() + b"\n" + value)
        self.file.flush()
        answer = self.file.readline().decode().rstrip("\n")
        length = answer.partition("VALUE valuelen=")[2]
        return self.file.read(int(length)).decode() if length else answer

    def close(self) -> None:
        self.file.close()
        self.connection.close()


def test_rapidsmpf_s_server_may_have_ended_before_it_is_told_to() -> None:
    with rapidsmpf_server.Server("127.0.0.1", 1, "token") as server:
        server.over.set()
        server.thread.join()


def test_rapidsmpf_s_ranks_meet_by_its_own_protocol() -> None:
    token = rapidsmpf_server.token_of(KEY)
    with rapidsmpf_server.Server("127.0.0.1", 2, token) as server, ThreadPoolExecutor(2) as pool:
        for wrong in ((0, "x" * 64, 2), (2, token, 2), (0, token, 3)):
            with contextlib.closing(RapidsmpfRank(server.port, *wrong)) as stranger:
                assert stranger.admitted == ""
        root, other = RapidsmpfRank(server.port, 0, token), RapidsmpfRank(server.port, 1, token)
        with contextlib.closing(root), contextlib.closing(other):
            assert (root.admitted, other.admitted) == ("OK", "OK")
            late = pool.submit(other.ask, "GET key=ucxx_root_address timeout=20000")
            assert root.ask("PUT key=ucxx_root_address valuelen=5", b"a\nb c") == "OK"
            assert late.result() == "a\nb c"
            assert other.ask("GET key=other timeout=1") == "TIMEOUT"
            for wait in ("SYNC", "BARRIER", "SYNC"):
                one = pool.submit(root.ask, wait)
                assert other.ask(wait) == one.result() == "OK"
            assert other.ask("PUT key=mine valuelen=1", b"x").startswith("ERROR only rank 0")
    with pytest.raises(ConnectionRefusedError):
        RapidsmpfRank(server.port, 0, token)


class Ended:
    """Four ranks on two nodes, whose ends the test tells at times that it chooses."""

    def __init__(self, folder: Path) -> None:
        (folder / "logs").mkdir()
        self.folder = folder
        self.orders: list[dict[str, Any]] = []
        self.warnings: list[str] = []
        self.events: list[tuple[str, dict[str, Any]]] = []
        context = SimpleNamespace(
            run=SimpleNamespace(
                log=lambda role, node: folder / "logs" / f"{role}-{node}.log", script_log=folder / "out", logs=folder
            ),
            attempt=AttemptPaths(folder),
            node_names=("n1", "n2"),
            worker_names=lambda _: ("0", "1"),
            settings=settings_of(job__one_machine=False),
        )
        self.clock = SimpleNamespace(seconds=100.0)
        events = SimpleNamespace(write=lambda name, **facts: self.events.append((name, facts)))
        state = SimpleNamespace(context=context, clock=self.clock, warn=self.warnings.append, events=events)
        hub = SimpleNamespace(send=lambda **order: self.orders.append(order))
        processes: Any = SimpleNamespace(state=state, world=WORLD, hub=hub)
        self.ranks = Ranks(processes)

    def end(self, rank: int, status: int, *, memory: bool = False) -> None:
        self.ranks.take(f"n{1 + rank // 2}", {"rank": rank, "status": status, "memory": memory})


def test_ranks_that_use_no_cpu_are_written_down_once_and_again_when_one_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time", lambda: 1000.0)
    written: list[dict[str, Any]] = []
    own = Processes.__new__(Processes)
    own.is_idle, own.settings = False, settings_of()
    own.state = cast("Any", SimpleNamespace(events=SimpleNamespace(write=lambda _, **facts: written.append(facts))))
    for idle in (0.0, 60.0, 61.0, 70.0, 2.0, 3.0):
        own._note_idleness(idle)
    assert written == [{"since": 939.0}, {"since": 0.0}]


def test_an_end_for_idleness_names_who_asked_for_it_and_the_command_that_shows_the_line() -> None:
    own = Processes.__new__(Processes)
    own.settings, own.is_idle = settings_of(deadlines__idle=60.0), True
    own.heard, own.idle = {}, {"n1": (0.0, 0.0, 0.0)}
    own.state = cast("Any", SimpleNamespace(clock=SimpleNamespace(seconds=61.0), warn=print))
    alone = SimpleNamespace(hindrance=lambda: None)
    own.script = cast("Any", SimpleNamespace(alone=alone, note_rest=lambda _: None, rest=lambda: "rank 1 still runs"))
    with pytest.raises(RunEndedError) as raised:
        own.check()
    assert raised.value.end.exit_status == IDLE
    assert re.search(in_order("hpcml why", "deadlines.idle (default: off)"), raised.value.end.hint)


@pytest.fixture
def ended(tmp_path: Path) -> Ended:
    return Ended(tmp_path)


def test_the_first_rank_that_fails_is_named_and_the_others_are_told_to_end(ended: Ended, tmp_path: Path) -> None:
    (tmp_path / "script-error-2.json").write_text("{}")
    ended.end(2, 7)
    ended.end(3, 1)
    ended.clock.seconds += FOLLOW / 2
    assert (ended.ranks.poll(), ended.orders) == (None, [])
    ended.clock.seconds += FOLLOW
    assert ended.ranks.poll() is None
    assert ended.orders == [{"do": "signal", "number": 15}]
    ended.end(0, 143)
    ended.clock.seconds += ENDING
    assert ended.ranks.poll() is None
    assert ended.orders[1:] == [{"do": "close"}]
    ended.end(1, 137)
    assert ended.ranks.poll() == 7
    assert ended.ranks.describe_end(7) == "rank 2 on n2 exited with status 7; 1 other rank failed later"
    assert not ended.ranks.killed_by_others(7)
    assert not ended.ranks.only_exited(7)  # it also tells of the other rank
    also = OtherEnd(3, "n2", 1, "exited with status 1")
    assert ended.ranks.failed_process() == (2, "n2", "rank-n2-2.log", 0, (also,), ())
    assert (tmp_path / "script-error.json").exists()


def test_the_first_of_each_other_way_is_named_and_no_consequence(ended: Ended, tmp_path: Path) -> None:
    """Of four ranks one is out of memory; the errors of the others are another cause, its repetition, a consequence."""
    ended.end(1, 137, memory=True)
    errors = {2: "bad", 3: "bad", 0: "[/x/gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.1]:4000"}
    for rank, message in errors.items():
        chain = [{"type": "ValueError" if rank else "RuntimeError", "message": f"{message}\nmore"}]
        (tmp_path / f"script-error-{rank}.json").write_text(json.dumps({"chain": chain}))
        ended.end(rank, 1)
    assert ended.ranks.poll() == 137
    failed = ended.ranks.failed_process()
    assert (failed.rank, failed.others) == (1, (OtherEnd(2, "n2", 1, "raised ValueError: bad"),))
    ended.ranks.failures = ended.ranks.failures[1:]  # of the others the first is "bad" too, as the second
    (tmp_path / "script-error-2.json").replace(tmp_path / "script-error.json")
    assert ended.ranks.failed_process().others == ()


def test_another_rank_that_the_kernel_killed_reached_no_limit_on_the_local_site(ended: Ended) -> None:
    ended.end(1, 1)
    ended.end(2, 137, memory=True)
    for local in (False, True):
        cast("Any", ended.ranks.state.context).settings = settings_of(job__one_machine=local)
        [other] = ended.ranks.failed_process().others
        assert (NODE_MEMORY not in other.clause, other.rank) == (local, 2)


def test_ranks_that_end_well_end_nobody(ended: Ended) -> None:
    for rank in range(3):
        ended.end(rank, 0)
    ended.clock.seconds += LEFT + 1
    assert ended.ranks.poll() is None
    ended.ranks.note_rest(ended.clock.seconds)
    assert ended.orders == []
    assert ended.warnings == [says("3 of 4 ranks ended with status 0. Rank 3", "60", "s after the first rank ended")]
    assert ended.ranks.over_on("n1")
    assert not ended.ranks.over_on("n2")
    assert ended.events == [("ranks-left", {"count": 1})]
    ended.end(3, 0)
    assert ended.ranks.poll() == 0
    assert ended.events[1:] == [("ranks-ended", {"first": 0, "last": 3, "node": "n2", "apart": LEFT + 1})]


def test_who_still_runs_is_said_once(ended: Ended) -> None:
    ended.clock.seconds += 1
    for rank in range(3):
        ended.end(rank, 0)
        ended.clock.seconds += LEFT + 1
        ended.ranks.note_rest(ended.clock.seconds)
    assert ended.warnings == [says("1 of 4 ranks ended", "Ranks 1, 2, 3", "60")]


def test_a_rank_that_saved_and_stopped_does_not_end_the_others(ended: Ended) -> None:
    ended.end(0, 0)
    ended.end(1, STOPPED)
    ended.clock.seconds += FOLLOW + 1
    assert (ended.ranks.poll(), ended.orders) == (None, [])
    ended.end(2, STOPPED)
    ended.end(3, STOPPED)
    assert ended.ranks.poll() == STOPPED


def test_memory_that_ran_out_in_a_rank_is_told_apart(ended: Ended) -> None:
    ended.end(1, 137, memory=True)
    assert ended.ranks.out_of_memory(137)
    assert "rank 1 on n1 was killed" in ended.ranks.describe_end(137)


def test_a_node_that_does_not_answer_does_not_keep_the_run(ended: Ended) -> None:
    for rank in (0, 1):
        ended.end(rank, 0)
    ended.ranks.kill()
    ended.clock.seconds += ENDING + 1
    assert (ended.ranks.poll(), ended.ranks.failed_process().killed_ranks) == (137, (2, 3))


def own_end(ended: Ended, status: int, why: End | None) -> End:
    """Return the end of the ranks; ``why`` the run had to end before."""
    task: Any = SimpleNamespace(error=ended.folder / "error", log=ended.folder / "out", code=SimpleNamespace(form=""))
    kind = SimpleNamespace(programs={})
    state: Any = SimpleNamespace(
        context=ended.ranks.state.context, kind=kind, end_requests=SimpleNamespace(time_limit_near=False)
    )
    return end_of(state, task, ended.ranks, status, why)


# What each of four ranks ended with (None: nothing was heard of it), those that ended before the run had to, by what
# that told them, the run's exit status, and the ranks that are named.
CUT_OFF: dict[str, tuple[list[int | None], int, str, int, tuple[int, ...]]] = {
    "one is killed": ([0, 143, 0, 0], 1, "hpcml", TIME_LIMIT, (1,)),
    "Slurm's signal was quicker": ([0, 143, 143, 0], 3, "hpcml", CANCELLED, (1, 2)),
    "one is lost": ([0, 0, 0, None], 3, "hpcml", CANCELLED, (3,)),
    "one obeys with an error": ([0, 0, 3, 0], 2, "hpcml", TIME_LIMIT, (2,)),
    "only one has saved": ([STOPPED, 143, 143, 143], 0, "hpcml", TIME_LIMIT, (1, 2, 3)),
    "none had ended": ([143, 143, 143, 143], 0, "hpcml", CANCELLED, ()),
    "all obey": ([0, 0, 0, 0], 0, "script", 0, ()),
    "all save": ([STOPPED, 0, STOPPED, 0], 0, "script", STOPPED, ()),
    "one had failed": ([0, 7, 143, 0], 2, "hpcml", CANCELLED, (2,)),
}


@pytest.mark.parametrize(
    ("before", "killed"), [(None, (3,)), (End(CANCELLED, "script", "hpcml", "it had to end"), (1, 3))]
)
def test_a_rank_whose_own_signal_ended_the_run_is_not_among_those_that_were_killed(
    ended: Ended, before: End | None, killed: tuple[int, ...]
) -> None:
    """Unless the run had to end before: then Slurm's signal may have been quicker than hpcml's."""
    for rank, status in enumerate((0, 137, 0, 143)):
        ended.end(rank, status)
    assert ended.ranks.poll() == 137
    end = own_end(ended, 137, before)
    assert (end.killed_ranks, end.rank) == (killed, None if before else 1)


@pytest.mark.parametrize("case", CUT_OFF)
def test_a_run_that_was_cut_off_is_no_success_and_names_the_ranks_that_were_killed(case: str, ended: Ended) -> None:
    """Rank 0 may have exited with 0 long before; a rank that obeyed with 0 was not killed."""
    statuses, before, by, exit_status, killed = CUT_OFF[case]
    why = End(TIME_LIMIT if exit_status in (TIME_LIMIT, STOPPED) else CANCELLED, "script", "hpcml", "it had to end")
    for rank, status in enumerate(statuses):
        if rank == before:
            ended.ranks.tell_to_end()
        if status is not None:
            ended.end(rank, status)
    ended.ranks.kill()
    ended.clock.seconds += ENDING + 1
    status = ended.ranks.poll()
    assert status is not None
    end = own_end(ended, status, why).with_killed_ranks()
    assert (end.by, end.exit_status, end.killed_ranks) == (by, exit_status, killed)
    assert parse(end.as_json()).killed_ranks == killed
    assert end.message.endswith(in_words(killed)) is bool(killed) or by == "script"
    cause = judgement.judge(Case(end, KIND), [])
    assert (in_words(killed) in cause.what if cause else by == "script") or not killed


def in_words(ranks: tuple[int, ...]) -> str:
    who = f"rank {ranks[0]} was" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))} were"
    return f"; {who} killed before {'it' if len(ranks) == 1 else 'they'} finished"


def inside_of(folder: Path, **given: Any) -> Any:
    """Return the settings of a run of ranks that starts a program in a folder."""
    words = {"ranks": "1", "nodes": "2", **{name: str(value) for name, value in given.items() if name != "require"}}
    request = request_of(words, Code(Path("solver"), form=Form.PROGRAM, cwd=folder))
    site = site_of({"scheduler": "slurm", "interconnect": {"require": given.get("require", "warn")}})
    return plan(site, request, RunLocation(folder / "run", sys.executable, "1")).inside


@pytest.mark.parametrize(("given", "wanted"), [
    ({}, False),  # on CPUs, importing torch would cost more than the start
    ({"require": "rdma"}, True),
    ({"gpus_per_node": 1, "require": "rdma"}, True),
    ({"gpus_per_node": 1}, "logs"),  # the ranks' own NCCL costs no time
    ({"gpus_per_node": 2, "nodes": 1}, "logs"),
    ({"gpus_per_node": 2, "require": "none"}, False),
])  # fmt: skip
def test_which_ranks_have_their_interconnect_checked(given: dict[str, Any], wanted: bool | str, tmp_path: Path) -> None:
    settings = inside_of(tmp_path, **given)
    assert interconnect.is_wanted(settings) is (wanted is True)
    assert nccl_log.reads_logs(settings) is (wanted == "logs")


def test_the_ways_of_nccl_are_read_from_the_first_rank_s_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = os.uname().nodename.partition(".")[0]
    (tmp_path / f"nccl-{host}.16.log").write_text("c NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM\n")  # earlier
    ways = nccl_log.Ways(tmp_path)
    log = tmp_path / f"nccl-{host}.17.log"

    def look() -> dict[str, Any] | None:
        ways.next_look = 0.0
        return ways.look()

    assert look() is None
    log.write_text("c NCCL INFO NET/Socket : Using [0]eth0:10.0.0.1<0>\nc NCCL INFO Using network Socket\n")
    (tmp_path / f"nccl-other-{host}.17.log").write_text("c NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM\n")
    assert [look(), look()] == [None, None]  # no collective operation yet
    with log.open("a") as file:
        file.write("c NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/Socket/0\n")
    assert look() is None  # it may still grow
    found = look()
    assert found
    assert (found["net"], found["across"], found["within"]) == ("Socket", {"NET/Socket": 1}, {})
    assert look() is None
    attempt = SimpleNamespace(probe_of=lambda node: tmp_path / node, interconnect=tmp_path / "interconnect.json")
    context: Any = SimpleNamespace(settings=inside_of(tmp_path, gpus_per_node=1), attempt=attempt)
    answer = nccl_log.judged_by_logs(context, {"n1": found, "n2": found}, "eth0")
    assert answer["problem"].startswith("NCCL uses TCP sockets across nodes (")
    assert "NET/Socket on eth0 across nodes" in answer["line"]
    assert "bandwidth" not in answer["line"]
    for name in ("NCCL_DEBUG", "NCCL_DEBUG_FILE", "NCCL_DEBUG_SUBSYS"):
        monkeypatch.delenv(name, raising=False)
    assert nccl_log.logging({"NCCL_DEBUG_FILE": "of hpcml"})["NCCL_DEBUG"] == "INFO"
    monkeypatch.setenv("NCCL_DEBUG", "WARN")  # the user's
    assert nccl_log.logging({"NCCL_DEBUG_FILE": "of hpcml"}) == {}


def test_ranks_without_torch_are_not_checked_and_rdma_refuses_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "solver").write_text(f"#!{sys.executable} -S\n")  # without site-packages
    (tmp_path / "solver").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    settings = inside_of(tmp_path, require="warn")
    run = SimpleNamespace(log=lambda *_: tmp_path / "log")
    context: Any = SimpleNamespace(settings=settings, node="n1", scratch=lambda: str(tmp_path), run=run)
    part = interconnect.Part(context, "gloo", {rank: {"RANK": str(rank)} for rank in range(2)})
    children = list(part.children.values())
    deadline = time.monotonic() + 60
    while (answer := part.look()) is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert part.look() is None
    assert all(child.poll() is None for child in children)  # other ranks may still need them
    part.end()
    assert all(child.returncode is not None for child in children)
    assert not list(tmp_path.glob("hpcml_*"))
    for require in ("warn", "rdma"):
        context.settings = inside_of(tmp_path, require=require)
        made = interconnect.judged(context, {"n1": answer}, 1.0)
        assert made["line"] == f"the interconnect was not checked: {sys.executable} has no torch (n1)"
        assert (made["ok"], bool(made["problem"])) == (require == "warn", require == "rdma")


def test_the_slowest_process_of_all_nodes_counts(tmp_path: Path) -> None:
    log = parse_nccl_log("")
    seconds = iter((1.0, 2.0, 1.0, 1.0))
    answers: dict[str, Any] = {
        node: {"results": [{"bytes": 8, "seconds": next(seconds), "right": True} for _ in range(2)],
               "log": log, "moved": {}, "interface": "ib0"}
        for node in ("n1", "n2")
    }  # fmt: skip
    attempt = SimpleNamespace(probe_of=lambda node: tmp_path / node)
    context: Any = SimpleNamespace(settings=inside_of(tmp_path, gpus_per_node=2), attempt=attempt)
    made = interconnect.measurement(context, answers)
    assert made.nccl is not None
    assert (made.protocol, made.interface, made.nccl["bandwidth"]) == ("nccl", "ib0", 2 * 3 / 4 * 8 / 2)
    answers["n2"]["results"][1]["right"] = False
    assert (interconnect.measurement(context, answers).nccl or {})["error"] == "the all-reduce returned a wrong sum"
    answers["n1"]["results"][0] = {"error": "RuntimeError: refused"}
    assert interconnect.is_complete({"n1": answers["n1"]}, 2)
    assert (interconnect.measurement(context, answers).nccl or {})["error"] == "n1: RuntimeError: refused"
