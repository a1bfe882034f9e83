"""The ranks of a node: the agent meets the supervisor, starts them when all nodes are ready, and reports their ends."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from hpcml.errors import WORKERS_NEVER_CAME
from hpcml.failures.end import MemoryLimit
from hpcml.kinds.ranks.node import interconnect, nccl_log, unconnected
from hpcml.kinds.ranks.node.pmi_handover import Tasks
from hpcml.kinds.ranks.node.rapidsmpf_server import token_of
from hpcml.kinds.ranks.own_settings import Own
from hpcml.kinds.ranks.roles import PROGRAMS, RANK
from hpcml.kinds.ranks.variables import TOKEN, World, of_rank, with_users_own
from hpcml.node import agent, job, process_helpers, script_environment, shared_files, starts
from hpcml.node.context import Context, load
from hpcml.node.hardware import sysfs
from hpcml.node.hardware.preflight import Inspection, UnfitError
from hpcml.node.link.messages import sign_every
from hpcml.node.script import worlds_of_one
from hpcml.node.tasks.process import command_of_script, variables_of_script, world_of_one
from hpcml.safe_files import size_of, stat_fields

AGAIN = 0.5  # seconds until a supervisor that was not reached is tried again
GROWTH = 1.0  # seconds between two looks at the sizes of the logs, and more in long runs:
PRECISION = 0.001  # of the time since the start
IN_VAIN = 127  # the exit status of a rank that cannot be started


def main() -> int:
    """Start the node's ranks when the supervisor says so, wait for their end, and return the exit status."""
    context = load()
    node = agent.begin(context, agent.Members(RANK.name, 0, WORKERS_NEVER_CAME))
    if not os.access(context.settings.code.cwd, os.X_OK):
        return node.refuse(f"the script's working folder cannot be opened: {context.settings.code.cwd}")
    agent.watch(context)
    try:
        Inspection(context).end()
    except UnfitError as error:
        return node.refuse(str(error))
    ranks = Ranks(context, node, time.monotonic() + context.settings.deadlines.workers)
    try:
        return ranks.serve()
    finally:
        ranks.kill()
        node.link.close()


class Ranks:
    """The ranks of this node, and what the supervisor orders: the agent looks at both."""

    def __init__(self, context: Context, node: agent.Node, deadline: float) -> None:
        self.context, self.node, self.link, self.deadline = context, node, node.link, deadline
        self.late = ""
        self.mpi = context.settings.own(Own).mpi
        self.next_use = self.next_growth = self.next_look = 0.0
        self.looks = unconnected.Looks(wanted=False)
        self.log_begins: dict[int, int] = {}  # by rank: bytes of its log that earlier attempts wrote
        self.sizes: dict[str, int] = {}  # of the logs, by name, as last written down
        self.began = time.time()
        self.world: World | None = None
        self.interface = ""  # the one that leads to the first node, as soon as a world is known
        self.check: interconnect.Part | None = None
        self.nccl: nccl_log.Ways | None = None
        self.tasks: Tasks | None = None
        self.told: object = None  # the line, or the files, by which the supervisor knows that this node is ready

    def serve(self) -> int:
        """Wait for the start, run the ranks, and return the agent's exit status."""
        while self.world is None:
            if self.node.ending or os.getppid() != self.node.parent:
                return 0  # the supervisor ended the run, and says why
            if not self.link.is_up and time.monotonic() >= self.next_look:
                self.next_look = time.monotonic() + AGAIN
                if agent.run_has_ended(self.context):
                    return 0
                if time.monotonic() > self.deadline:
                    return self._refuse()
            self.look()
            if self.tasks and (others := self.tasks.by_rank.keys() - {*self.tasks.ranks}):
                return self.node.refuse(
                    f"srun started rank {min(others)} on this node: hpcml expects consecutive ranks on each node"
                )
            self.link.wait(agent.TICK / 4)
        return agent.keep(self.node, self._become_rank, 0, self, self._report)

    def _refuse(self) -> int:
        """Say that the supervisor cannot be reached; one that is stopped, on this node, is ended."""
        if not self.link.is_known:
            reason = "hpcml's supervisor did not write its address (link.json) in time"
            return self.node.refuse(reason, own_fault=self.context.node == self.context.node_names[0])
        self.node.watch.end_supervisor(self.link)
        tried = ", ".join(place for place, _ in self.link.places)
        reason = f"{self.context.node_names[0]} does not respond at any of its addresses: {tried}"
        return self.node.refuse(reason, own_fault=False)

    def look(self) -> bool:
        """Do what the supervisor orders, and report to it; return False if it is lost while the ranks run."""
        for order in self.node.hear():
            self._obey(order)
        if self.tasks is None and self.mpi and self.link.is_known:
            self.tasks = Tasks(self.context, numbers_of(self.context, self.context.node))
        if self.link.is_up and self._is_ready():
            self.told = self.link.line or self.link.boxes
            self.link.send(event="ready")
        if time.monotonic() >= self.next_use:
            self.next_use = time.monotonic() + sign_every(self.context.settings.deadlines.answer)
            used = _processor_seconds([slot.pid for slot in self.node.slots])
            self.link.give_sign(event="use", processors=used)
        if self.world and time.time() >= self.next_growth:
            self._note_growth()
        if self.check and (answer := self.check.look()):
            self.link.send(event="interconnect", interface=self.interface, **answer)
        self._look_for_mpi()
        if self.nccl and (log := self.nccl.look()):
            self.link.send(event="nccl", interface=self.interface, log=log)
        if not (self.world and self.link.lost):
            return True
        self.late = f"the connection to hpcml's supervisor was lost: {self.link.lost}"
        self.kill()  # before anything is written: the file system may be behind the same network
        return False

    def _is_ready(self) -> bool:
        """Whether the supervisor has to get a report that this node is ready: once on each line, or by files."""
        is_told = self.told is (self.link.line or self.link.boxes)
        return not is_told and (not self.mpi or bool(self.tasks and self.tasks.are_complete()))

    def _obey(self, order: dict[str, Any]) -> None:
        match order.get("do"):
            case "connect":
                self.told = None
                self.link.drop("the supervisor asked for another try")
            case "check":
                self._check(World(**order["world"]))
            case "checked":
                self._end_check()
            case "start":
                self._begin(World(**order["world"]))
            case "signal":
                self._signal(int(order["number"]))
            case "close":
                self.node.ending = True
                self.kill()

    def _look_for_mpi(self) -> None:
        """Report ranks whose programs use MPI although nothing connects them."""
        for rank, how in self.looks.look({slot.pid: int(slot.name) for slot in self.node.slots if slot.pid}):
            self.link.send(event="alone", rank=rank, how=how)

    def _interface_to(self, address: str) -> str:
        """Return the interface of this node that leads to an address of the first, empty if it is not known."""
        way = self.link.ways.get(address, "")
        return next((name for name, several in sysfs.addresses().items() if way in several), "")

    def _check(self, world: World) -> None:
        """Start the interconnect's check on this node."""
        settings = self.context.settings
        self.interface, error = self._interface_to(world.address), self.context.attempt.script_error
        each = world.each * (settings.job.nodes if settings.job.one_machine else 1)
        first = 0 if settings.job.one_machine else self.context.node_names.index(self.context.node) * each
        variables = {
            rank: self._variables(world, rank, 1, error) | {"MASTER_PORT": str(world.port)}
            for rank in range(first, first + each)
        }
        self.check = interconnect.Part(self.context, interconnect.backend(settings), variables)

    def _end_check(self) -> None:
        if self.check:
            self.check.end()
            self.check = None

    def _begin(self, world: World) -> None:
        self.world, self.interface, self.link.reconnects = world, self._interface_to(world.address), False
        self.node.slots = [agent.Slot(str(rank)) for rank in numbers_of(self.context, self.context.node)]
        self.log_begins = {int(slot.name): size_of(log_of(self.context, int(slot.name))) for slot in self.node.slots}
        self.looks = unconnected.Looks(wanted=world.size > 1 and not self.tasks)
        if nccl_log.reads_logs(self.context.settings):
            self.nccl = nccl_log.Ways(self.context.run.logs)
        variables = of_rank(world, 0, interface=self.interface, threads=1, errors="")
        for note in with_users_own(variables, os.environ)[1]:
            self.link.send(event="note", text=f"{self.context.node}: {note}")

    def _become_rank(self, slot: agent.Slot) -> int:
        """In a fork of the agent: become the rank. It returns only if the program cannot be started."""
        context, world = self.context, self.world
        assert world is not None
        os.setpgid(0, 0)  # what it starts ends with it
        rank = int(slot.name)
        threads = self._take_processors(rank)
        command = command_of_script(context, PROGRAMS)
        environment = self._variables(world, rank, threads, error_of(context, rank))
        if self.tasks:
            environment = self.tasks.connected(rank, environment)
        if self.nccl and rank == numbers_of(context, context.node)[0]:
            environment |= nccl_log.logging(environment)
        os.umask(0o077)
        log = os.open(log_of(context, rank), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        for standard in (1, 2):
            os.dup2(log, standard)
        os.umask(context.settings.code.umask)
        try:
            os.chdir(context.settings.code.cwd)
            os.execvpe(command[0], command, environment)  # noqa: S606 - what the user submitted
        except OSError as error:
            program = str(error.filename) if os.sep in command[0] else command[0]
            hindered = starts.hindrance(error, program)
            print(f"hpcml: rank {rank} could not be started: {hindered.reason}", file=sys.stderr)
            with contextlib.suppress(OSError):  # the log says it too
                shared_files.write_json(error_of(context, rank), {"chain": [], "not_started": hindered._asdict()})
        return IN_VAIN

    def _variables(self, world: World, rank: int, threads: int, error: Path) -> dict[str, str]:
        """Return all variables of a rank's process; ``error`` is the file for the error that ends a script."""
        # With --mpi the libraries look for the step that Slurm's connections belong to.
        given = job.without_pmi(os.environ) if self.tasks else job.of_batch_script(os.environ)
        environment = variables_of_script(self.context, given, error)
        torch_error = str(self.context.attempt.directory / f"torch-error-{rank}.json")
        variables = of_rank(world, rank, interface=self.interface, threads=threads, errors=torch_error)
        variables |= {TOKEN: token_of(self.link.key)} if TOKEN in variables else {}
        environment |= with_users_own(variables, environment)[0]
        if world.size > 1:
            environment |= {
                worlds_of_one.RECORD: str(unconnected.record_of(self.context, rank)),
                worlds_of_one.RANKS: str(world.size),
            }
        environment |= job.task_variables(
            rank=rank, local=rank % world.each, node=rank // world.each, each=world.each, nodes=world.nodes
        )
        script_environment.restore(environment)
        return environment

    def _take_processors(self, rank: int) -> int:
        """Bind this process to its share of the node's processors, and return the number of its threads.

        Ranks with neighbouring numbers have neighbouring processors. Where there are more ranks than processors, each
        may use all of them.
        """
        allowed = sorted(os.sched_getaffinity(0))
        numbers = numbers_of(self.context, self.context.node)
        place, share = numbers.index(rank), len(allowed) // len(numbers)
        if share and len(numbers) > 1:
            os.sched_setaffinity(0, allowed[place * share : (place + 1) * share])
        return max(1, share // max(1, self.context.settings.gpus if len(numbers) == 1 else 1))

    def _report(self, slot: agent.Slot, pid: int, code: int) -> None:
        """Tell the supervisor of a rank's end, and end what it left."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        status = 128 - code if code < 0 else code
        memory = slot.memory_limit == MemoryLimit.NODE
        self._note_growth()
        rank = int(slot.name)
        is_alone = world_of_one(self.context, unconnected.record_of(self.context, rank))
        begin = self.log_begins.get(rank, 0)
        self.link.send(event="rank-ended", rank=rank, status=status, memory=memory, alone=is_alone, log_begin=begin)

    def _note_growth(self) -> None:
        """Write down the sizes of the logs that have grown: `hpcml logs` merges the ranks' lines by it."""
        now, run = time.time(), self.context.run
        self.next_growth = now + max(GROWTH, PRECISION * (now - self.began))
        logs = [log_of(self.context, int(slot.name)) for slot in self.node.slots]
        sizes = {path.name: size_of(path) for path in (*logs, run.log(RANK.name, self.context.node))}
        grown = {name: size for name, size in sizes.items() if size > self.sizes.get(name, 0)}
        self.sizes |= grown
        with contextlib.suppress(OSError), growth_of(self.context).open("a") as file:  # a full disk loses their order
            file.writelines(f"{now:.1f} {size} {name}\n" for name, size in grown.items())

    def _signal(self, number: int) -> None:
        """Send a signal to the ranks' main processes, and to none that they started."""
        for slot in self.node.slots:
            if slot.pid:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(slot.pid, number)

    def kill(self) -> None:
        """Kill the ranks and all that they started, and the check's processes."""
        self._end_check()
        for slot in self.node.slots:
            if slot.pid:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(slot.pid, signal.SIGKILL)


def numbers_of(context: Context, node: str) -> range:
    """Return the numbers of a node's ranks; on one machine all are there."""
    count = len(context.worker_names(node))
    first = 0 if context.settings.job.one_machine else context.node_names.index(node) * count
    return range(first, first + count)


def log_of(context: Context, rank: int, node: str = "") -> Path:
    """Return the log of a rank of a node, by default of this one: that of rank 0 is the script's."""
    return context.run.script_log if rank == 0 else context.run.log(RANK.name, f"{node or context.node}-{rank}")


def growth_of(context: Context) -> Path:
    """Return the file of this node with the sizes of its ranks' logs over time."""
    return context.run.log(RANK.name, context.node).with_suffix(".times")


def error_of(context: Context, rank: int) -> Path:
    """Return the file for the error that ends the script in a rank."""
    return context.attempt.directory / f"script-error-{rank}.json"


def _processor_seconds(leaders: list[int]) -> float:
    """Return the processor time that the process groups of some processes have used, in seconds."""
    ticks, groups = 0, {str(pid) for pid in leaders if pid}
    for pid in process_helpers.pids() if groups else ():
        with contextlib.suppress(OSError):
            fields = stat_fields(Path("/proc", str(pid)))
            ticks += int(fields[11]) + int(fields[12]) if fields[2] in groups else 0
    return ticks / os.sysconf("SC_CLK_TCK")
