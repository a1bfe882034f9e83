"""The agent: one process on each node, which samples it, and forks and replaces the kind's processes there."""

from __future__ import annotations

import atexit
import contextlib
import math
import os
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from hpcml.errors import signal_name
from hpcml.failures.end import NODE_MEMORY, MemoryLimit, ProcessEnd, of_machine
from hpcml.node import (
    process_helpers,
    scratch,
    script_environment,
    services,
    shared_files,
    silent_supervisor,
    stacks,
)
from hpcml.node.context import Context
from hpcml.node.events_and_end import leave_note
from hpcml.node.link.uplink import Uplink
from hpcml.node.oom_and_hangs import oom_kills
from hpcml.safe_files import size_of
from hpcml.services import Wanted
from hpcml.units import in_mib

TICK = 0.2  # seconds between looks at memory and at the parent
STOPPED = 15  # looks that must find a process stopped: a whole job that is suspended stops in no order
LIVED = 10.0  # seconds after which a process that dies did not die at its start
WATCH_END = 60.0  # seconds for which the end of a process makes its node look for the end of the run
# How a process ended, in the names of rows of failures.rules ("worker-oom").
_BY_LIMIT: dict[str, str] = {MemoryLimit.NODE: "oom", MemoryLimit.PROCESS: "memory"}
_BY_SIGNAL = {-signal.SIGSEGV: "segfault", -signal.SIGABRT: "abort", -signal.SIGBUS: "bus", -signal.SIGKILL: "killed"}
_NO_GPU = "a CUDA error left it without its GPU"
MEMORY_TERMINATE = 0.95  # of the memory limit: Dask's own fraction, distributed.worker.memory.terminate


class Members(NamedTuple):
    """The processes that a kind has on each node."""

    noun: str  # what one of them is called in a sentence; the agent's role has the same name
    restarts: int  # how often one that dies is replaced before it has failed for good
    failed: int  # the agent's exit status if one has failed for good, or the node can have none
    writes_notes: bool = False  # whether hpcml's code in them notes a good end, so that exit status 0 is none by itself


@dataclass(slots=True)
class Slot:
    """One process's place on the node, through all the processes that fill it one after another."""

    name: str
    pid: int = 0
    started: float = 0.0
    start_at: float = 0.0
    deaths: int = 0
    cause: str = ""
    last_end: str = ""  # for people
    memory_limit: str = ""  # of failures.end.MemoryLimit: whose limit ended the last process here, empty for none
    done: bool = False
    failed: bool = False
    retired: bool = False
    replaces: bool = False  # whether another process was here before
    stopped: int = 0  # looks in a row that found it stopped
    note: process_helpers.EndNote = field(default_factory=process_helpers.EndNote)


@dataclass(slots=True)
class Node:
    """The state of this node and its processes, kept in a file for the supervisor."""

    context: Context
    members: Members
    slots: list[Slot] = field(default_factory=list)
    refused: str = ""
    own_fault: bool = True  # whether it is refused for what this node did, and not another
    ending: bool = False
    ends: list[ProcessEnd] = field(default_factory=list)  # but those of processes that were done
    last_end: float = -math.inf
    next_look: float = 0.0
    memory: str = ""
    oom_kills: int = field(default_factory=oom_kills)
    used_pids: set[int] = field(default_factory=set)
    parent: int = field(default_factory=os.getppid)  # the step: if it is gone, so is who would start this task again
    link: Uplink = field(init=False)
    watch: silent_supervisor.Watch = field(init=False)
    requests: stacks.Requests = field(init=False)
    unheard: list[dict[str, Any]] = field(default_factory=list)  # orders that have arrived and still wait
    writers: dict[int, str] = field(default_factory=dict)  # by pid of a child, the request for which it writes stacks
    bridges: dict[int, Wanted] = field(default_factory=dict)  # by pid of a child, the service to which it leads
    folder: scratch.Folder | None = None  # of their sockets

    def __post_init__(self) -> None:
        self.link, self.watch = Uplink(self.context), silent_supervisor.Watch(self.context)
        self.requests = stacks.Requests(self.context, self.context.settings.job.nodes)

    def hear(self) -> list[dict[str, Any]]:
        """Return the kind's orders that have arrived; what agents of every kind do by themselves is done."""
        orders, before, self.unheard = self.link.receive(), self.unheard, []
        if orders:
            self.watch.hear(max((float(order["busy"]) for order in orders if order.get("do") == "hear"), default=0.0))
        self.watch.look(self.link)
        asked = [order["request"] for order in orders if order.get("do") == "stacks"]
        asked = [request for request in asked if self.requests.is_new(request["id"])]
        if not (self.link.is_up and self.watch.answers):  # a supervisor that waits passes nothing on
            asked += filter(None, [self.requests.look()])
        for request in asked:
            _write_stacks(self, request)
        for order in orders:
            if order.get("do") == "service":
                _bridge(self, Wanted(**order["wanted"]))
        return before + [order for order in orders if order.get("do") not in ("hear", "stacks", "service")]

    def mark(self, state: str) -> None:
        """Say to the supervisor, and on the shared file system, what this node's task is doing."""
        children = {
            "failed": [
                {"name": slot.name, "why": slot.last_end, "memory_limit": slot.memory_limit}
                for slot in self.slots
                if slot.failed
            ],
            "retired": [slot.name for slot in self.slots if slot.retired],
            "deaths": {slot.name: slot.deaths for slot in self.slots if slot.deaths},
            "ends": [end._asdict() for end in self.ends],
        }
        node = {"node": self.context.node, "pid": os.getpid(), "state": state, "refused": self.refused}
        node |= {"own_fault": self.own_fault, **children, "memory": self.memory}
        self.link.send(event="mark", **node)
        try:
            shared_files.write_json(self.context.attempt.mark_of(self.context.node), node)
        except OSError as error:  # the processes are worth more than it; the supervisor sees that the disk is full
            where = f"the {self.members.noun}s on {self.context.node}"
            print(f"hpcml: the state of {where} cannot be written: {error}", file=sys.stderr)

    def refuse(self, why: str, *, own_fault: bool = True) -> int:
        """Say why this node can have no processes, and return the role's exit status.

        Without ``own_fault`` the reason is another node, or what is between both.
        """
        self.refused, self.own_fault = why, own_fault
        self.mark("refused")
        print(f"hpcml: {why}.", file=sys.stderr)
        return self.members.failed


class Awaited(Protocol):
    """What the processes of a node wait for before they are complete; the agent looks for it on behalf of all."""

    late: str  # the clause to print where it does not come

    def look(self) -> bool:
        """Look whether it is there; return False if it will never be."""


def begin(context: Context, members: Members) -> Node:
    """Return the state of this node, open its link to the supervisor, and write its first sign of life."""
    node = Node(context, members)
    node.link.open()
    node.mark("starting")
    return node


def watch(context: Context) -> None:
    """Remove what earlier runs left on this node, and sample it, each in a child process."""
    _sweep(context)
    _sample(context)


def _sweep(context: Context) -> None:
    """Remove what killed roles of earlier runs left on this node, in a child process: it may take long."""

    def sweep() -> int:
        for place in {context.scratch(), context.scratch(longest=context.socket_room), tempfile.gettempdir()}:
            if swept := scratch.sweep(place):
                print(
                    f"hpcml: removed {len(swept)} folders that processes of earlier runs left in {place}.", flush=True
                )
        return 0

    fork(sweep)  # _reap() takes the child's end


def _sample(context: Context) -> None:
    """Have a child process write what this node uses while the run lasts; forked early, so that it stays small."""
    settings, parent = context.settings, os.getpid()

    def sample() -> int:
        from hpcml.node.sampling import sampler

        path, gpus = context.attempt.samples_of(context.node), settings.gpus
        return sampler.run(path, context.node, settings.report.sample_every, gpus, parent)

    if settings.report.sample_every:
        try:
            fork(sample)  # nobody waits for it; it ends with this process
        except OSError as error:  # no process can be started: the kind's will say so where it matters
            print(
                f"hpcml: warning: {context.node}: the resource use is not sampled: {error.strerror}.", file=sys.stderr
            )


def fork(child: Callable[[], int]) -> int:
    """Have a child process do something and end with the status that it returns; return its pid."""
    sys.stdout.flush()
    sys.stderr.flush()
    with warnings.catch_warnings():  # safe: the link's thread holds nothing while this process forks
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        status = child()
    except BaseException:  # noqa: BLE001 - the child must never return into the parent's code
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def keep(
    node: Node,
    serve: Callable[[Slot], int],
    memory_limit: int,
    awaited: Awaited,
    at_end: Callable[[Slot, int, int], None] = lambda *_: None,
) -> int:
    """Fork the node's processes and replace those that die, until all are done or have failed for good.

    ``at_end`` is called with each process's slot, pid and exit code (negative: a signal) when it has ended.
    """
    wake, waker = os.pipe()
    os.set_blocking(wake, False)
    os.set_blocking(waker, False)
    signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: setattr(node, "ending", True))
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    node.mark("workers")
    while not all(slot.done for slot in node.slots):
        now = time.monotonic()
        for slot in node.slots:
            if not slot.done and not slot.pid and now >= slot.start_at:
                _start(node, slot, serve)
        node.link.wait(TICK, wake)
        with contextlib.suppress(BlockingIOError):
            os.read(wake, 4096)
        if not awaited.look():
            leave_note(node.context, node.members.noun, awaited.late)
            return node.members.failed
        _reap(node, at_end)
        _check_memory(node, memory_limit)
        _keep_going(node)
        _stop_if_ended(node)
        if os.getppid() != node.parent:
            return node.refuse(f"the job step that runs the {node.members.noun}s ended", own_fault=False)
    failed = any(slot.failed for slot in node.slots)
    node.mark("failed" if failed else "ended")
    return node.members.failed if failed else 0


class Bystander:
    """An agent whose node has no processes yet: it answers requests for stacks, and no signals."""

    LOOK = 2.0  # seconds between two looks whether the run has ended, while nobody can say it

    def __init__(self, node: Node) -> None:
        self.node = node
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(number, lambda *_: None)  # the supervisor ends the agent, which samples the node until then

    def wait_for(self, order: str, each: Callable[[list[dict[str, Any]]], None] = lambda _: None) -> bool:
        """Wait for an order of the supervisor; return False if the run, or the step, ends before.

        ``each`` is called at every look, with the orders that have arrived.
        """
        next_look = 0.0
        while os.getppid() == self.node.parent:
            _reap(self.node, lambda *_: None)
            orders = self.node.hear()
            each(orders)
            if {order, "close"} & {order.get("do") for order in orders}:
                self.node.unheard = orders
                return "close" not in [order.get("do") for order in orders]
            if not self.node.link.is_up and time.monotonic() >= next_look:
                next_look = time.monotonic() + self.LOOK
                if run_has_ended(self.node.context):
                    return False
            self.node.link.wait(TICK)
        return False


def _write_stacks(node: Node, request: dict[str, Any]) -> None:
    """Have a child process write the stacks of this node's processes."""
    parent, members = os.getpid(), {slot.pid: f"{node.members.noun} {slot.name}" for slot in node.slots if slot.pid}
    try:
        pid = fork(lambda: stacks.write(node.context, request, members, parent))
        node.writers[pid] = request["id"]  # _reap() takes its end
    except OSError as error:
        print(
            f"hpcml: the call stacks of the processes on {node.context.node} cannot be written: {error.strerror}.",
            file=sys.stderr,
        )


def _bridge(node: Node, wanted: Wanted) -> None:
    """Have a child process be the bridge to a service on this node; end the one before of the same name."""
    for pid in [pid for pid, before in node.bridges.items() if before.name == wanted.name]:
        if node.bridges[pid] == wanted:
            return
        del node.bridges[pid]
        os.kill(pid, signal.SIGKILL)
    if wanted.node != node.context.node:
        return
    parent = os.getpid()
    try:
        if node.folder is None:
            node.folder = scratch.Folder(node.context.scratch(longest=node.context.socket_room))
            atexit.register(node.folder.remove)
        path = node.folder.path / f"{os.urandom(4).hex()}.sock"
        node.bridges[fork(lambda: services.serve(node.context, wanted, path, parent))] = wanted
    except (OSError, scratch.UnsafePlaceError) as error:
        print(f"hpcml: no tunnel can lead to {wanted.name} on {wanted.node}: {error}.", file=sys.stderr)


def _stop_if_ended(node: Node) -> None:
    """After a process's end, look whether the whole run has ended; not otherwise, to spare the shared file system."""
    now = time.monotonic()
    since = now - node.last_end
    settings = node.context.settings
    patience = (
        settings.deadlines.teardown if settings.report.profilers else 0.0
    )  # in which the others finish their profiles
    if since > patience + WATCH_END or now < node.next_look:
        return
    node.next_look = now + min(1.0, since / 4)  # always more seldom: most ends of a process are not the run's
    if since >= patience and run_has_ended(node.context):
        for slot in node.slots:
            end(slot)
            slot.done = True


def run_has_ended(context: Context) -> bool:
    """Whether the supervisor has written that the run ended."""
    return context.attempt.ended.name in shared_files.listed(context.attempt.directory)


def _start(node: Node, slot: Slot, serve: Callable[[Slot], int]) -> None:
    parent = os.getpid()

    def work() -> int:
        process_helpers.end_with(parent)  # without it nobody would replace, watch or end this process
        process_helpers.killed_before_others(process_helpers.KILLED_FIRST - process_helpers.KILLED_NEXT)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        script_environment.answer_no_signals()  # the supervisor has the kind close them: the script goes first
        # With a dead process's number, UCX's neighbours would take their mappings of its memory for this one's.
        if os.getpid() in node.used_pids:
            slot.note.write(slot.note.AGAIN)
            return 0
        return serve(slot)

    slot.started, slot.memory_limit = time.monotonic(), ""
    slot.pid = fork(work)


def _reap(node: Node, at_end: Callable[[Slot, int, int], None]) -> None:
    while True:
        try:
            pid, code = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            return
        if request := node.writers.pop(pid, ""):
            node.link.send(event="stacks", id=request)
        if wanted := node.bridges.pop(pid, None):
            print(f"hpcml: the bridge to {wanted.name} on {wanted.node} ended by itself.", file=sys.stderr)
            if os.WIFSIGNALED(code):  # somebody killed it, or Linux when memory ran out
                _bridge(node, wanted)
        for slot in node.slots:
            if slot.pid == pid:
                slot.pid, slot.replaces = 0, True
                node.used_pids.add(pid)
                _judge(node, slot, os.waitstatus_to_exitcode(code))
                at_end(slot, pid, os.waitstatus_to_exitcode(code))


def _judge(node: Node, slot: Slot, code: int) -> None:
    """Decide what a process's end means: done, come back, or failed for good after too many deaths."""
    node.last_end, node.next_look = time.monotonic(), 0.0
    over = node.ending or run_has_ended(node.context)
    note = slot.note.take()
    if over or note == slot.note.RETIRED or (code == 0 and not node.members.writes_notes):
        slot.done = True
        slot.retired = not over
        if slot.retired:  # by the script: that is no loss
            node.mark("workers")
        return
    if note == slot.note.AGAIN:
        slot.start_at = 0.0
        return
    if note == slot.note.NO_GPU:
        slot.cause = slot.cause or _NO_GPU
    plain = f"killed by {signal_name(-code)}" if code < 0 else f"exit status {code}"
    how = slot.cause or _memory_kill(node, slot, code) or plain
    way = _BY_SIGNAL.get(code, "") if code < 0 else "" if slot.cause else "exit"
    way = _BY_LIMIT.get(slot.memory_limit, way)
    slot.cause = ""
    age = time.monotonic() - slot.started
    slot.deaths += 1
    times = f"; it ended {slot.deaths} times" if slot.deaths > 1 else ""
    slot.last_end = f"{how} after {'' if age > LIVED else 'only '}{age:.1f} s{times}"
    noun, status = node.members.noun, 128 - code if code < 0 else code
    log_size = size_of(node.context.run.log(noun, node.context.node))
    node.ends.append(ProcessEnd(slot.name, slot.last_end, f"{noun}-{way}", status, time.time(), log_size))
    _tell(f"{noun} {slot.name} ended: {slot.last_end}.")
    if slot.deaths > node.members.restarts:
        slot.done = slot.failed = True
    slot.start_at = time.monotonic() + min(0.25 * 2 ** (slot.deaths - 1), 8.0)
    node.mark("workers")


def _tell(message: str) -> None:
    """Print what happened to a process, with its time as Dask's lines have it: it may be the first of a failure."""
    now = time.time()
    stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(now))
    print(f"{stamp},{int(now % 1 * 1000):03d} - hpcml: {message}", file=sys.stderr)


def _check_memory(node: Node, limit: int) -> None:
    """End a process that is about to take the whole node down, as Dask's Nanny does at the same fraction."""
    if not limit:
        return
    for slot in node.slots:
        if slot.pid and not slot.cause and (size := resident(slot.pid)) > MEMORY_TERMINATE * limit:
            slot.cause = f"over its memory limit: {in_mib(size)} of {in_mib(limit)}"
            slot.memory_limit = MemoryLimit.PROCESS
            node.memory = node.memory or f"hpcml ended {node.members.noun} {slot.name}, which was {slot.cause}"
            _tell(f"{node.members.noun} {slot.name} is {slot.cause}. hpcml ends the {node.members.noun}.")
            end(slot, wait=False)


def _keep_going(node: Node) -> None:
    """Continue a process that somebody stopped alone (SIGSTOP): the others would wait for it."""
    for slot in node.slots:
        slot.stopped = slot.stopped + 1 if slot.pid and process_helpers.Process.named(slot.pid).state == "T" else 0
        if slot.stopped == STOPPED:
            os.kill(slot.pid, signal.SIGCONT)
            _tell(f"{node.members.noun} {slot.name} was stopped (SIGSTOP). hpcml continued the {node.members.noun}.")


def _memory_kill(node: Node, slot: Slot, code: int) -> str:
    """Return a sentence if the kernel says that it killed a process when memory ran out, else nothing."""
    before, node.oom_kills = node.oom_kills, oom_kills()
    if code != -signal.SIGKILL or node.oom_kills <= before:
        return ""
    slot.memory_limit = MemoryLimit.NODE
    local = node.context.settings.job.one_machine
    why = of_machine(f"killed because {NODE_MEMORY} (out of memory)", one_machine=local)
    node.memory = node.memory or f"a {node.members.noun} was {why}"
    return why


def resident(pid: int) -> int:
    """Return the resident memory of a process in bytes, 0 if it has ended."""
    import psutil

    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.NoSuchProcess:
        return 0


def end(slot: Slot, *, wait: bool = True) -> None:
    """Kill the process of a slot."""
    if not slot.pid:
        return
    os.kill(slot.pid, signal.SIGKILL)
    if wait:
        os.waitpid(slot.pid, 0)
        slot.pid = 0
