"""The ranks of a run, as its supervisor sees them: when all nodes are ready, which rank failed first, how they end."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hpcml import errors, listeners
from hpcml.failures.end import IDLE_HINT, NODE_MEMORY, End, OtherEnd, Reason, of_machine
from hpcml.failures.note import script_error
from hpcml.failures.rule import Role, Where
from hpcml.failures.rules import meaning
from hpcml.kind import FailedProcess, Hindrance
from hpcml.kinds.ranks.node import interconnect, lost_nodes, nccl_log, reserved_ports, unconnected
from hpcml.kinds.ranks.node.rank_agent import error_of, log_of, numbers_of
from hpcml.kinds.ranks.node.rapidsmpf_server import Server, token_of
from hpcml.kinds.ranks.roles import RANK
from hpcml.kinds.ranks.variables import OPEN, World
from hpcml.node import stacks
from hpcml.node.agents import Agents
from hpcml.node.events_and_end import RunEndedError, end_of_hindrance, say
from hpcml.node.hardware import dask_protocol
from hpcml.node.interconnect import record, result
from hpcml.node.link.messages import NUMBER, Events
from hpcml.node.missing_processes import Absence
from hpcml.node.run_state import TICK, RunState
from hpcml.node.tasks.task import Task
from hpcml.node.versions_and_clocks import Comparison
from hpcml.paths import SCRIPT
from hpcml.repairs.table import REPAIRS
from hpcml.safe_files import tail
from hpcml.units import first_of_many, format_deadline

FOLLOW = 5.0  # seconds after the first failure, in which other ranks write their errors, until they are told to end
ENDING = 10.0  # seconds that they have then
COUNT = 5.0  # seconds between two events with the number of ranks that still run
LEFT = 60.0  # seconds after a rank's good end after which it is said who still runs
IDLE_SEEN = 60.0  # seconds without use of a CPU that a status shows
IDLE = 0.005  # of a processor, below which a node's ranks do nothing
CLOSE = 2.0  # seconds in which the agents end by themselves
_SHOWN = 40  # lines at the end of rank 0's log in which a port that is taken is looked for
_NAMED = 4
_GOOD = (0, errors.STOPPED)  # exit statuses of a rank that did its work
_KILLED = 128 + signal.SIGKILL
_BY_SIGNAL = (_KILLED, 128 + signal.SIGTERM)  # of a rank that had to end with the run
_LONGEST = 300  # characters of an error's message in a clause
EVENTS: Events = {  # of the agents of ranks, beside those of every kind
    "ready": {},
    "use": {"processors": NUMBER},
    "interconnect": {"interface": str, "results": list, "log": dict, "moved": dict},
    "nccl": {"interface": str, "log": dict},
    "rank-ended": {"rank": int, "status": int, "memory": bool, "alone": str},
    "alone": {"rank": int, "how": str},
}
_TRIES = 3  # times that the nodes try the first one's addresses before none is said to lead to all


class Processes:
    """The agents of all nodes. ``folders`` is what is removed at the run's end."""

    def __init__(self, state: RunState, folders: contextlib.ExitStack) -> None:
        self.state, self.context, self.settings = state, state.context, state.context.settings
        self.versions = Comparison(state.context, (RANK,), shown=("python", "torch", "jax", "mpi4py"))
        self.agents = Agents(state, folders, self._addresses(), self.versions, EVENTS)
        self.hub, self.heard, self.lost = self.agents.hub, self.agents.heard, self.agents.lost
        self.absence = Absence(state, self.agents, lost_nodes.WORDS)
        self.folders, self.ports = folders, reserved_ports.Ports(folders, state.context.node)
        self.world = World()
        self.lost_at: dict[str, float] = {}  # by node that was lost while the script ran, by the supervisor's clock
        self.tries = _TRIES
        self.ready: set[str] = set()  # nodes whose ranks can start
        self.reached: dict[str, list[str]] = {}  # by node, this one's addresses that it reached; none: it uses files
        self.idle: dict[str, tuple[float, float, float]] = {}  # by node: since when, at which time, with which seconds
        self.is_idle = False  # whether events.jsonl says so
        self.measured: dict[str, dict[str, Any]] = {}  # by node: its part of the interconnect's check, or NCCL's log
        self.script: Ranks | None = None

    def _addresses(self) -> list[str]:
        """Return this node's addresses at which the ranks may meet, the best first."""
        single = self.settings.single_node
        try:
            best, _ = dask_protocol.choose_address(self.settings.network.interface, single_node=single)
        except dask_protocol.NoAddressError as error:
            hint, node = "Set network.interface in the profile.", self.context.node
            raise self.state.end(errors.START_FAILED, str(error), hint, node=node, reason=Reason.NO_ADDRESS) from error
        if single or self.settings.network.interface:
            return [best]
        return list(dict.fromkeys([best, *dask_protocol.own_addresses("", single_node=False)]))

    # -- startup --------------------------------------------------------------------------------------------------

    def start(self) -> dict[str, str]:
        """Wait until every node has connected; the ranks' variables are made on their nodes."""
        state = self.state
        state.phase = "nodes"
        self.agents.begin()
        deadline = state.clock.seconds + self.settings.deadlines.workers
        while not self._are_ready():
            self.step()
            self.check()
            state.judge(self.versions)
            state.end_requests.check(state.phase)
            late = state.clock.seconds > deadline
            if late or state.time_to_look():
                self._end_without_nodes(late=late)
        state.judge(self.versions)
        state.note_repairs(self.versions.local, [row for row in REPAIRS if row.without_dask])
        self.world = self._world()
        state.events.write("ranks-ready", address=self.world.address, seconds=state.seconds, security=OPEN)
        if interconnect.is_wanted(self.settings):
            self._check_interconnect()
        return {}

    def _are_ready(self) -> bool:
        """Whether all nodes are; where no address leads to all, they try again: a flood of connections may be why."""
        if len(self.ready) < len(self.context.node_names):
            return False
        if self._common() or not self.tries:
            return True
        self.tries -= 1
        self.ready.clear()
        self.hub.send(do="connect")
        return False

    def _check_interconnect(self) -> None:
        """Have the agents make an all-reduce; ``interconnect.require`` decides what its result means."""
        state, limit = self.state, self.settings.deadlines.interconnect
        state.phase = "interconnect"
        state.events.write("interconnect-checking")
        began = state.clock.seconds
        port = reserved_ports.Ports(self.folders, self.context.node).reserve(listeners.MASTER_PORT)
        world = interconnect.world_of_check(self.world, self.settings, port)
        self.hub.send(do="check", world=world._asdict())
        while not (is_complete := interconnect.is_complete(self.measured, len(self.context.node_names))):
            self.step()
            self.check()
            state.end_requests.check(state.phase)
            if state.clock.seconds - began > limit:
                break
        self.hub.send(do="checked")
        if is_complete:
            answer = interconnect.judged(self.context, self.measured, state.clock.seconds - began)
        else:
            answer = record.too_late(limit, [node for node in self.context.node_names if node not in self.measured])
        state.events.write("interconnect-checked", **answer)
        result.obey(state, answer)

    def _tell_ways(self, interface: str) -> None:
        """Write down by which ways NCCL goes in the ranks, and warn if it is TCP."""
        answer = nccl_log.judged_by_logs(self.context, self.measured, interface)
        self.state.events.write("interconnect-seen", **answer)
        if problem := answer["problem"]:
            self.state.warn(f"{problem}{f'. Remedy: {remedy}' if (remedy := answer['remedy']) else ''}.")

    def _end_without_nodes(self, *, late: bool) -> None:
        """End the run if a node cannot come any more, or with the deadline if one has not come."""
        missing = [node for node in self.context.node_names if node not in self.ready]
        if end := lost_nodes.end_without(self.absence, missing, late=late):
            raise RunEndedError(end)

    def _common(self) -> list[str]:
        """Return the addresses of this node that every node has reached which has a line, the best first."""
        ways = [reached for reached in self.reached.values() if reached]
        return [one for one, _ in self.hub.places if all(one in reached for reached in ways)]

    def _world(self) -> World:
        """Return the settings that all ranks share: an address that each node has reached, and free ports there."""
        if not (common := self._common()):
            ways = "; ".join(f"{node} reaches {', '.join(by)}" for node, by in list(self.reached.items())[:_NAMED])
            reason = f"no address of {self.context.node} can be reached from all nodes ({ways})"
            hint = "Set network.interface in the profile to the interface that connects the nodes."
            raise self.state.end(errors.WORKERS_NEVER_CAME, reason, hint)
        each = self.settings.workers.per_node
        numbers = [self.ports.reserve(row) for row in (listeners.MASTER_PORT, listeners.JAX_PORT)]
        nodes, gpus = self.settings.job.nodes, self.settings.gpus
        world = World(nodes, each, gpus, common[0], numbers[0], numbers[1])
        if world.may_use_rapidsmpf:
            server = self.folders.enter_context(Server(common[0], world.size, token_of(self.agents.key)))
            world = world._replace(rapidsmpf=server.port)
        return world

    # -- what the nodes report ------------------------------------------------------------------------------------

    def step(self) -> None:
        """Take in what the agents report, for at most one tick."""
        self.state.clock.tick()
        for node, message in self.agents.receive(TICK):
            self._take(node, message)

    def _take(self, node: str, message: dict[str, Any]) -> None:
        match message["event"]:
            case "ready":
                self.ready.add(node)
                each = len(self.context.worker_names(self.context.node))
                self.state.events.write("node-ready", node=node, count=len(self.ready) * each)
            case "use":
                self._note_use(node, float(message["processors"]))
            case "interconnect":
                self.measured[node] = message
            case "nccl":
                self.measured[node] = message["log"]
                if len(self.measured) == len(self.context.node_names):
                    self._tell_ways(message["interface"])
            case "rank-ended" if self.script:
                self.script.take(node, message)
            case "alone" if self.script:
                self.script.alone.take(node, int(message["rank"]), message["how"])
            case "hello" | "lost":
                self._note_connection(node, message)

    def _note_connection(self, node: str, message: dict[str, Any]) -> None:
        """Take note that a node's agent is there, or its connection lost; before the start it may come back."""
        if message["event"] == "lost":
            if self.script is None:
                self.ready.discard(node)
            return
        self.reached[node] = message["reached"]
        if not message["reached"]:
            first, tried = self.context.node, ", ".join(address for address, _ in self.hub.places)
            uses = f"{node} cannot connect to {first} ({tried}) and uses files instead"
            self.state.warn(f"{uses}: the ranks may not reach each other.")

    def _note_use(self, node: str, seconds: float) -> None:
        now = self.state.clock.seconds
        since, last, before = self.idle.get(node, (now, now, seconds))
        used = seconds - before > IDLE * (now - last)
        self.idle[node] = (now if used else since, now, seconds)

    # -- what a loss means ----------------------------------------------------------------------------------------

    def check(self) -> None:
        """Raise RunEndedError if a node does not answer, or if no rank does anything."""
        now, deadlines = self.state.clock.seconds, self.settings.deadlines
        for node in self.heard:
            if self.script and self.script.over_on(node):
                continue
            if node in self.lost and self.script:
                since = self.lost_at.setdefault(node, now)
                self._end(lost_nodes.after_loss(self.absence, node, since), self.lost)
            elif node in self.lost and self.state.time_to_look():
                self._end_without_nodes(late=False)  # if its agent has written why
            if self.agents.is_silent(node):
                silent = self.agents.recently_silent()
                self._end(lost_nodes.by_silence(self.state, silent, node, self.hub.places[0][0]), silent)
        if self.script is None:
            return
        if is_alone := self.script.alone.hindrance():
            raise RunEndedError(end_of_hindrance(is_alone))
        self.script.note_rest(now)
        idle = now - max([since for since, _, _ in self.idle.values()], default=now)
        self._note_idleness(idle)
        if idle > deadlines.idle_notice > 0:
            self.state.warn(f"No rank has used a CPU for {format_deadline(deadlines.idle_notice)}.")
        if idle > deadlines.idle > 0:
            reason = f"no rank used a CPU for {format_deadline(deadlines.idle)}: {self.script.rest()}"
            hint = IDLE_HINT.format("Look where ranks wait: hpcml why.")
            raise RunEndedError(End(errors.IDLE, SCRIPT, "hpcml", reason, hint))

    def _end(self, end: End | None, lost: Iterable[str]) -> None:
        """End the run, if there is an end; of lost nodes nobody reports the ends of ranks any more."""
        if end and self.script:
            self.script.lose(lost)
        if end:
            raise RunEndedError(end)

    def _note_idleness(self, idle: float) -> None:
        """Write down since when no rank has used a CPU, once that is long, and later that one does again."""
        is_idle = idle > min(IDLE_SEEN, self.settings.deadlines.idle_notice or IDLE_SEEN)
        if is_idle != self.is_idle:
            self.is_idle = is_idle
            self.state.events.write("ranks-idle", since=round(time.time() - idle, 2) if is_idle else 0.0)

    # -- its end --------------------------------------------------------------------------------------------------

    def run(self, task: Task, environment: dict[str, str]) -> Ranks:  # noqa: ARG002 - the agents know both
        """Start the task in the ranks of all nodes; RunEndedError if another program has taken a port."""
        if taken := self.ports.reserve_again():
            raise self.state.end(errors.PORT_TAKEN, taken.clause, reserved_ports.HINT)
        numbers = self.ports.numbers
        self.world = self.world._replace(port=numbers[listeners.MASTER_PORT], coordinator=numbers[listeners.JAX_PORT])
        self.script = Ranks(self)
        self.idle.clear()
        self.hub.send(do="start", world=self.world._asdict())
        self.state.events.write("ranks-running", count=self.world.size)
        return self.script

    def hindrance(self, status: int) -> Hindrance | None:  # noqa: ARG002 - of ranks that exited with 0 too
        """Return the hindrance that kept the ranks from their work; None if there was none."""
        return self.script.hindrance() if self.script else None

    def close(self) -> float:
        """Tell the agents to end, and return the seconds that they may take."""
        self.agents.order(do="close")
        return CLOSE

    @property
    def silent(self) -> bool:
        """Whether no agent is connected any more."""
        return not self.hub.lines

    def remarks(self) -> list[str]:
        """Return nothing: the ranks' own output says how they fared."""
        return []


class Ranks:
    """The script in all ranks; its exit status is that of the rank that failed first."""

    pid = 0  # it has a process on each node, of which none stands for all

    def __init__(self, processes: Processes) -> None:
        self.processes, self.state, self.world = processes, processes.state, processes.world
        self.left = set(range(self.world.size))
        self.lost: set[int] = set()  # ranks on nodes that report nothing any more
        self.node_by_rank: dict[int, str] = {}
        self.statuses: dict[int, int] = {}  # by rank
        # Ranks and their ends in order, until they are told to end.
        self.failures: list[tuple[int, dict[str, Any]]] = []
        self.first_end = self.first_failure = self.killed_at = 0.0  # by the supervisor's clock; 0: not yet
        self.first = -1  # the rank that ended first
        self.told = self.is_noted = False
        self.counted, self.counted_at = self.world.size, 0.0  # ranks that run, by the events, and when it was written
        self.alone = unconnected.Alone(processes.state.context, self.world.size, log_of)
        self.taken: reserved_ports.Taken | None = None  # a port on which rank 0 could not listen

    def take(self, node: str, end: dict[str, Any]) -> None:
        """Take in a rank's end."""
        rank, status, now = int(end["rank"]), int(end["status"]), self.state.clock.seconds
        self.left.discard(rank)
        self.node_by_rank[rank], self.statuses[rank] = node, status
        self.alone.take(node, rank, str(end.get("alone", "")))
        if not self.first_end:
            self.first, self.first_end = rank, now
        if status not in _GOOD and not self.told:
            self.failures.append((rank, end))
            if rank == 0 and reserved_ports.IN_USE.search("\n".join(tail(self.state.context.run.script_log, _SHOWN))):
                self.taken = self.processes.ports.taken()
            if not self.first_failure:
                self.first_failure = now
                self.state.events.write("rank-failed", rank=rank, node=node, status=status)
                self._keep_stacks()
        if not (self.left or self.told or self.failures):
            apart = round(now - self.first_end, 3)
            self.state.events.write("ranks-ended", first=self.first, last=rank, node=node, apart=apart)

    def _keep_stacks(self) -> None:
        """Have the nodes write where the other ranks are, while they still live: one may be why this one failed."""
        if self.left:
            try:
                stacks.ask(self.state.context, self.pid)
            except OSError as error:
                say(self.state.context, f"the call stacks of the ranks were not written: {error}")

    def lose(self, nodes: Iterable[str]) -> None:
        """Wait no longer for the ranks of nodes that report nothing any more."""
        for node in nodes:
            self.lost.update(numbers_of(self.state.context, node))

    def over_on(self, node: str) -> bool:
        """Whether all ranks of a node have ended."""
        return self.left.isdisjoint(numbers_of(self.state.context, node))

    def poll(self) -> int | None:
        """Return the exit status of the first rank that failed, else of rank 0; None while a rank runs."""
        now = self.state.clock.seconds
        since = now - self.first_failure if self.first_failure else 0.0
        awaited = self.left - self.lost
        if awaited and since > FOLLOW:
            self.tell_to_end()
        if awaited and since > FOLLOW + ENDING:
            self.kill()
        if awaited and not (self.killed_at and now - self.killed_at > ENDING):  # a node that hangs reports nothing
            return None
        if self.failures:
            self._keep_error(self.failures[0][0])
            return int(self.failures[0][1]["status"])
        statuses = [self.statuses.get(rank, _KILLED) for rank in range(self.world.size)]
        return next((status for status in statuses if status not in _GOOD), max(statuses))

    def _keep_error(self, rank: int) -> None:
        """Put a rank's error into the file where it is looked for."""
        context = self.state.context
        with contextlib.suppress(FileNotFoundError):  # it was no error of Python's
            error_of(context, rank).replace(context.attempt.script_error)

    def failed_process(self) -> FailedProcess:
        """Return the rank that failed first."""
        if not self.failures:
            return FailedProcess(killed_ranks=self._killed())
        rank, end = self.failures[0]
        node = self.node_by_rank[rank]
        log = log_of(self.state.context, rank, node).name
        return FailedProcess(rank, node, log, int(end.get("log_begin", 0)), self._others(), self._killed())

    def _killed(self) -> tuple[int, ...]:
        """Return the ranks that ended only because the run did, or of which nothing is known, if others ended well."""
        if not any(status in _GOOD for status in self.statuses.values()):
            return ()
        failed = {rank for rank, end in self.failures if int(end["status"]) not in _BY_SIGNAL}
        ended = {rank for rank, status in self.statuses.items() if status in _GOOD}
        return tuple(sorted({*range(self.world.size)} - ended - failed))

    def _others(self) -> tuple[OtherEnd, ...]:
        """Return the ranks that failed after the first, in each other way that is no consequence."""
        context = self.state.context
        by_clause: dict[str, OtherEnd] = {}
        for rank, end in self.failures[1:]:
            clause, node = _with_error(end, error_of(context, rank)), self.node_by_rank[rank]
            of_node = of_machine(clause, one_machine=context.settings.job.one_machine)
            by_clause.setdefault(clause, OtherEnd(rank, node, int(end["status"]), of_node))
        by_clause.pop(_with_error(self.failures[0][1], context.attempt.script_error), None)
        return tuple(other for other in by_clause.values() if not _is_consequence(other.clause))[:_NAMED]

    def tell_to_end(self) -> None:
        """Send SIGTERM to the main process of each rank, once."""
        if not self.told:
            self.told = True
            self.processes.hub.send(do="signal", number=int(signal.SIGTERM))

    def kill(self) -> None:
        """Kill the ranks that are left, with all that they started."""
        if self.left and not self.killed_at:
            self.told, self.killed_at = True, self.state.clock.seconds
            self.processes.hub.send(do="close")

    def killed_by_others(self, status: int) -> bool:
        """Whether somebody else's SIGKILL ended the rank that failed first."""
        return status == 128 + signal.SIGKILL and bool(self.failures)

    def out_of_memory(self, status: int) -> bool:
        """Whether the kernel killed the rank that failed first because memory ran out."""
        return self.killed_by_others(status) and bool(self.failures[0][1]["memory"])

    def describe_end(self, status: int) -> str:
        """Return the words for the script's end, with the rank that failed first."""
        if not self.failures:
            return errors.MEANING[status] if status == errors.STOPPED else f"all ranks exited with status {status}"
        rank, end = self.failures[0]
        others = len(self.failures) - 1
        followed = f"; {others} other rank{'s' if others > 1 else ''} failed later" if others else ""
        return f"rank {rank} on {self.node_by_rank[rank]} {_how(end)}{followed}"

    def only_exited(self, status: int) -> bool:
        """Whether that says no more than the exit status."""
        if not self.failures:
            return status != errors.STOPPED
        _, end = self.failures[0]
        return len(self.failures) == 1 and not end["memory"] and not errors.signal_of_status(int(end["status"]))

    def hindrance(self) -> Hindrance | None:
        """Return a hindrance if the ranks did not find each other, or another program has rank 0's port."""
        if hindrance := self.alone.hindrance():
            return hindrance
        if self.taken:
            return Hindrance(errors.PORT_TAKEN, f"{self.taken.clause}; {self.describe_end(1)}", reserved_ports.HINT)
        return None

    def rest(self) -> str:
        """Return the ranks that still run, as a clause."""
        named = first_of_many([*map(str, sorted(self.left))], 2 * _NAMED)
        return f"ranks {named} still run" if len(self.left) > 1 else f"rank {named} still runs"

    def note_rest(self, now: float) -> None:
        """Say once who still runs, some time after other ranks ended well; write down how many do, as others end."""
        if len(self.left) < self.counted and now - max(self.first_end, self.counted_at) > COUNT:
            self.counted, self.counted_at = len(self.left), now
            self.state.events.write("ranks-left", count=self.counted)
        if self.is_noted or not self.left:
            return
        if self.first_end and not self.failures and now - self.first_end > LEFT:
            self.is_noted = True
            ended = self.world.size - len(self.left)
            self.state.warn(
                f"{ended} of {self.world.size} ranks ended with status 0. "
                f"{self.rest().capitalize()}, {LEFT:g} s after the first rank ended."
            )


def _how(end: dict[str, Any]) -> str:
    """Return the end of a rank's process as a clause."""
    status = int(end["status"])
    if end["memory"]:
        return f"was killed because {NODE_MEMORY} (out of memory)"
    if number := errors.signal_of_status(status):
        return f"was killed by {errors.signal_name(number)}"
    return f"exited with status {status}"


def _with_error(end: dict[str, Any], path: Path) -> str:
    """Return the end of a rank's process as a clause: by the error in a file, if there is one."""
    if not (chain := script_error(path).get("chain")):
        return _how(end)
    text = f"raised {chain[0]['type']}: {chain[0].get('message')}".partition("\n")[0]
    return text.rstrip(": ")[:_LONGEST]


def _is_consequence(clause: str) -> bool:
    """Whether an error shows only that something else failed before."""
    known = meaning(clause, Where.LOG)
    return known is not None and known.rule.role is Role.CASCADE
