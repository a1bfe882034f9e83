"""The scheduler role: Dask's scheduler behind mutual TLS, its HTTP server on a unix socket, under a supervisor."""

from __future__ import annotations

import asyncio
import functools
import importlib
import os
import time
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import dask.config
from distributed import Scheduler
from distributed.diagnostics.plugin import SchedulerPlugin
from distributed.scheduler import heartbeat_interval

from hpcml import listeners
from hpcml.errors import START_FAILED
from hpcml.failures.end import Reason
from hpcml.kinds.dask.node import dashboard, interconnect, lost_workers, main_in_workers, script_imports, state_samples
from hpcml.kinds.dask.node.activity import Activity, TaskEnds, task_remarks
from hpcml.kinds.dask.node.clock import time_here
from hpcml.kinds.dask.node.messages import CLOCK_QUESTION, IMPORT, NO_GPU, START, TASK_OUTPUT, TOPIC
from hpcml.kinds.dask.node.performance_report import PerformanceReport
from hpcml.kinds.dask.node.security import connection_limits, tcp_auth, tls, ucx_auth
from hpcml.kinds.dask.roles import SCHEDULER
from hpcml.node import scratch, script_environment, shared_files
from hpcml.node.context import Context
from hpcml.node.events_and_end import leave_note
from hpcml.node.hardware.dask_protocol import (
    NoAddressError,
    NoProtocolError,
    choose_address,
    choose_protocol,
    nodes_without_rdma,
    ucx_environment,
)
from hpcml.node.link.uplink import Uplink
from hpcml.repairs import closing, dead_worker_memory, file_names

RECORDS = 0.5  # of the scheduler's deadline, for the nodes' hardware records
_IN_HOST_MEMORY = ["dask", "pickle", "error"]  # Dask's families of serializers, without "cuda"


class PrivateScheduler(connection_limits.Guarded, closing.QuietClose, Scheduler):  # type: ignore[misc]
    """Dask's scheduler whose HTTP server (health, metrics, dashboard) listens on a unix socket of mode 0600 only.

    Dask has no such option yet (dask/distributed#9363); ``start_http_server`` is the one place that opens the port.
    """

    socket_path: Path
    polls = 0
    joined = 0  # clients in all
    cleaned = -1  # how many had joined when a sweep last cleaned

    def __init__(self, *arguments: Any, **options: Any) -> None:
        file_names.keep()  # it unpickles a graph, and pickles its tasks again
        super().__init__(*arguments, **options)

    async def add_client(self, comm: Any, *arguments: Any, **options: Any) -> None:
        """Let a client in as Dask does, and count it: what none has used since, need not be cleaned."""
        self.joined += 1
        await super().add_client(comm, *arguments, **options)

    async def remove_worker(self, address: str, *, stimulus_id: str, close: bool = True, **options: Any) -> Any:
        """Remove a worker as Dask does; one that is retired hears so, and does not come back."""
        if close and stimulus_id.startswith("retire-workers"):
            self.close_worker(self.coerce_address(address))
            close = False
        return await super().remove_worker(address, stimulus_id=stimulus_id, close=close, **options)

    def identity(self, *arguments: Any, **options: Any) -> Any:
        """Answer as Dask does, counting who asks for all workers: Client.wait_for_workers does, again and again."""
        self.polls += options.get("n_workers") == -1
        return super().identity(*arguments, **options)

    async def check_worker_ttl(self) -> None:
        """Look for silent workers as Dask does, but let those that were suspended with this process beat first."""
        await asyncio.sleep(max(15.0, 3 * float(heartbeat_interval(len(self.workers)))))
        await super().check_worker_ttl()

    def start_http_server(self, routes: Any, *_: Any, **__: Any) -> None:
        """Serve the routes on ``socket_path`` instead of a TCP port."""
        self.http_application = dashboard.Application(routes, self)
        self.http_server = listeners.http_server(self.http_application)
        self.services["dashboard"] = self.http_server  # or a client's link to it would raise KeyError, in notebooks too
        listeners.serve_at(listeners.DASHBOARD, self.http_server, self.socket_path)

    async def register_nanny_plugin(self, *_: Any, **__: Any) -> Any:
        """Raise RuntimeError: hpcml's workers have no Nanny, and Dask would silently do nothing."""
        raise RuntimeError("workers of an hpcml run have no Nanny; use a WorkerPlugin, or [environment] in the profile")


class HostMemoryScheduler(PrivateScheduler):
    """A scheduler that has workers answer in the host's memory: what it passes on, TLS cannot take from a GPU."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.rpc.serializers = self.rpc.deserializers = _IN_HOST_MEMORY

    async def broadcast(self, *, serializers: Any = None, **options: Any) -> Any:
        """Ask workers as Dask does, for answers in the host's memory."""
        return await super().broadcast(serializers=serializers or _IN_HOST_MEMORY, **options)


class Reporter(SchedulerPlugin):  # type: ignore[misc]
    """Tell the supervisor which workers come and go."""

    name = "hpcml-reporter"

    def __init__(self, send: Callable[..., None]) -> None:
        self.send = send
        self.names: dict[str, str] = {}
        self.neighbours = dead_worker_memory.Neighbours()
        self.tasks_print = False

    def add_worker(self, scheduler: Scheduler, worker: str) -> None:
        """Dask's hook: a worker has registered."""
        self.names[worker] = str(scheduler.workers[worker].name)
        self.send(event="worker-added", worker=self.names[worker], address=worker)

    def add_client(self, scheduler: Scheduler, client: str) -> None:  # noqa: ARG002 - Dask's hook
        """Dask's hook: a client has connected."""
        self.send(event="client-added")

    def remove_worker(self, scheduler: Scheduler, worker: str, *, stimulus_id: str = "", **_: Any) -> None:
        """Dask's hook: a worker has gone; ``stimulus_id`` begins with what removed it."""
        silent = {"silent": True} if stimulus_id.startswith("check-worker-ttl") else {}
        self.send(event="worker-removed", worker=self.names.pop(worker, worker), address=worker, **silent)
        self.neighbours.remove(scheduler, worker)

    def log_event(self, topic: str, msg: Any) -> None:
        """Dask's hook: a worker or a client has said something; what is meant for the supervisor is passed on."""
        event = msg.get("event") if topic == TOPIC and isinstance(msg, dict) else ""
        if event == "worker-task-stopped":
            self.send(event=event, node=str(msg.get("node", ""))[:200])
        elif event == NO_GPU:
            told = {name: str(msg.get(name, ""))[:200] for name in ("node", "error")}
            self.send(event=event, worker=self._worker_of(msg), **told)
        elif event == TASK_OUTPUT and not self.tasks_print:  # the first worker speaks for all
            self.tasks_print = True
            self.send(event=event)
        elif event == "clock":
            self.send(event=event, node=str(msg["node"])[:200], ahead=float(msg["ahead"]), within=float(msg["within"]))
        elif event == "gpu-memory":
            self.neighbours.add(msg)
            worker = self._worker_of(msg)
            pool, wanted = int(msg["pool"]), int(msg["wanted"])
            self.send(event="gpu-pool", worker=worker, node=str(msg["node"])[:200], pid=int(msg["pid"]), pool=pool)
            if pool < wanted:
                self.send(event="memory-reduced", worker=worker, pool=pool, wanted=wanted)

    def _worker_of(self, message: dict[str, Any]) -> str:
        """Return the name of the worker that said something: Dask puts its address there."""
        worker = str(message.get("worker", ""))[:200]
        return self.names.get(worker, worker)


def main(context: Context, link: Uplink) -> int:
    """Serve until the supervisor says close, or is gone."""
    settings = context.settings
    deadline = time.monotonic() + settings.deadlines.scheduler
    why, reason = "hpcml's supervisor process did not say in time that the keys are there", ""
    if too_few := connection_limits.too_few_files(settings.worker_count):
        leave_note(context, SCHEDULER.name, too_few)
        return START_FAILED
    try:
        host, interface = choose_address(settings.network.interface, single_node=settings.single_node)
        if settings.workers.late or link.wait_for(START, deadline):
            return asyncio.run(_serve(context, link, host, interface))
    except NoAddressError as error:
        why, reason = f"{error} (profile: network.interface)", Reason.NO_ADDRESS
    except NoProtocolError as error:
        why = f"{error} (network.protocol of the profile)"
    leave_note(context, SCHEDULER.name, why, reason)
    return START_FAILED


async def _serve(context: Context, link: Uplink, host: str, interface: str) -> int:
    settings = context.settings
    protocol, chosen = await _protocol(context)
    if protocol == "ucx":
        ucx_auth.install(context.attempt.data_key)
        os.environ.update(ucx_environment(single_node=settings.single_node, tcp=settings.ucx != "rdma"))
    else:
        if protocol == "tcp":  # by which it asks workers
            tcp_auth.install(context.attempt.data_key)
        script_environment.take_up(context)  # the scheduler unpickles task graphs too
        main_in_workers.install(settings)
    dashboard.configure()
    # Dask puts this folder first on sys.path; by default it is /tmp/dask-scratch-space, which anybody can make.
    folder = context.sockets
    scratch.live_in(folder)
    dask.config.set({"temporary-directory": str(folder)})
    schedulers: list[PrivateScheduler] = []
    try:
        for share in range(settings.points.at_once):
            schedulers.append(await _start(context, host, folder, share, ucx=protocol == "ucx"))
            schedulers[share].add_plugin(Reporter(link.send))
    except Exception as error:  # noqa: BLE001 - whatever Dask or UCX raised, its cause is the last word in the log
        traceback.print_exc()
        leave_note(context, SCHEDULER.name, f"the Dask scheduler could not start: {lost_workers.root_of(error)}")
        return START_FAILED
    scheduler = schedulers[0]
    gpus = settings.workers.gpu is not None
    security = "" if protocol == "ucx" else tls.explanation(protocol, set(), gpus=gpus)
    where = {"address": scheduler.address, "node": context.node, "pid": os.getpid(), "interface": interface}
    record = {**where, **chosen, "security": security, "shares": [other.address for other in schedulers[1:]]}
    shared_files.write_json(context.attempt.scheduler, record)
    service = context.attempt.service_of("dashboard")
    page = {"path": "/status", "probe": dashboard.IDENTITY, "token_file": None}
    shared_files.write_service(service, context.node, folder / "dashboard.sock", scheduler.id, **page)
    os.umask(settings.code.umask)  # for functions that the script runs here
    link.send(event="scheduler-up", **record)
    activity = Activity(context, schedulers, link.send)
    ended = [asyncio.create_task(scheduler_here.finished()) for scheduler_here in schedulers]
    early = functools.partial(_import_early, context, schedulers)
    orders = asyncio.create_task(_obey(link, lambda: interconnect.check(scheduler, context, protocol), early))
    beside = [asyncio.create_task(activity.watch()), asyncio.create_task(state_samples.watch(context, schedulers))]
    if protocol == "ucx":
        beside.append(asyncio.create_task(_open_ucx(context, link)))
    profile = PerformanceReport(context, scheduler, folder) if "dask" in settings.report.profilers else None
    await asyncio.wait({*ended, orders}, return_when=asyncio.FIRST_COMPLETED)
    if profile:
        await profile.write()
    for task in (orders, *beside):
        task.cancel()
    link.send(event="remarks", sentences=task_remarks(scheduler))
    if any(task.done() for task in ended):  # the script closed it itself (client.shutdown()): its right, and no loss
        link.send(event="scheduler-closed")
    await asyncio.gather(*(scheduler_here.close(reason="the run has ended") for scheduler_here in schedulers))
    link.close()
    return 0


async def _protocol(context: Context) -> tuple[str, dict[str, Any]]:
    """Return the protocol of the workers' data, and what the run's records say of it."""
    settings = context.settings
    protocol, because = choose_protocol(settings)
    without_rdma: tuple[str, ...] = ()
    if protocol == "ucx" and settings.ucx == "rdma":
        deadline = time.monotonic() + settings.deadlines.scheduler * RECORDS
        without_rdma = await asyncio.to_thread(nodes_without_rdma, context, deadline)
        protocol, because = choose_protocol(settings, without_rdma)
    used = settings.ucx if protocol == "ucx" else ""
    return protocol, {"protocol": protocol, "because": because, "ucx": used, "without_rdma": list(without_rdma)}


async def _start(context: Context, host: str, folder: Path, share: int, *, ucx: bool) -> PrivateScheduler:
    """Start the scheduler of a share of the workers; the first has the dashboard that tunnels lead to.

    With points of a sweep side by side each has a scheduler of its own: what a point computes, publishes or asks of all
    workers is its own then, and a shuffle stays on its workers.
    """
    PrivateScheduler.socket_path = folder / (f"dashboard-{share}.sock" if share else "dashboard.sock")
    # Messages go over TLS also where data goes over UCX: Dask waits for UCX by asking again and again, which keeps a
    # core busy here and in the script, and UCX takes seconds to start.
    scheduler = (HostMemoryScheduler if ucx else PrivateScheduler)(
        protocol="tls",
        host=host,
        port=0,
        dashboard=False,
        local_directory=str(folder),
        security=tls.security(context.attempt),
    )
    await scheduler
    scheduler.add_plugin(TaskEnds(scheduler))
    scheduler.handlers[CLOCK_QUESTION] = time_here
    return scheduler


async def _open_ucx(context: Context, link: Uplink) -> None:
    """Start UCX while the workers do the same: for what the scheduler asks of workers, whose addresses are UCX's."""
    gpu = context.settings.workers.gpu is not None
    try:
        try:
            await asyncio.to_thread(importlib.import_module, "ucxx")  # half of the time, and the event loop goes on
        finally:
            script_environment.take_up(context)  # after the last import of its own, and before there is a script
            main_in_workers.install(context.settings)
        ucx_auth.start_ucx()
    except Exception as error:  # noqa: BLE001 - whatever UCX raised, the first question to a worker will say it again
        traceback.print_exc()
        link.send(event="ucx-failed", problem=lost_workers.root_of(error))
        return
    tcp, rdma = ucx_auth.tcp_devices(), ucx_auth.rdma_devices()
    reached = tcp - {"lo"} if context.settings.job.whole_nodes else tcp
    security = tls.explanation("ucx", reached, gpus=gpu, rdma=rdma, group_memory=ucx_auth.group_memory())
    link.send(event="ucx-up", security=security, tcp=sorted(tcp), rdma=sorted(rdma))


async def _import_early(context: Context, schedulers: Sequence[Scheduler]) -> None:
    """Import what the script's graphs need here and on GPU workers, while the script itself imports it.

    In the loop's own thread, which unpickles graphs: two threads that import the same could wait for one another.
    """
    names = script_imports.of_script(context.settings)
    late = script_imports.late(names)
    for scheduler in schedulers if late else ():
        for worker in [*scheduler.stream_comms]:
            scheduler.worker_send(worker, {"op": IMPORT, "modules": late})
    os.environ.setdefault("RAPIDS_NO_INITIALIZE", "1")  # no CUDA context here
    for name in (*script_imports.early(names), *late):
        await asyncio.sleep(0)  # let messages in
        script_imports.import_all([name], "while the script started")


async def _obey(
    link: Uplink, check: Callable[[], Awaitable[dict[str, Any]]], early: Callable[[], Awaitable[None]]
) -> None:
    """Do what the supervisor says, until it says close, or the line is lost."""
    begun: list[asyncio.Future[None]] = []

    async def answer() -> None:
        try:
            result = await check()
        except Exception as error:  # noqa: BLE001 - the run's policy decides what a failed check means
            traceback.print_exc()
            result = {
                "line": "",
                "ok": False,
                "problem": f"the interconnect check failed: {type(error).__name__}: {error}",
            }
        link.send(event="interconnect-checked", **result)

    async for order in _orders(link):
        if order == "close":
            break
        if order == "check-interconnect":
            begun.append(asyncio.ensure_future(answer()))
        if order == IMPORT:
            begun.append(asyncio.ensure_future(early()))
    for task in begun:
        task.cancel()


async def _orders(link: Uplink) -> AsyncIterator[str]:
    """Return the orders of the supervisor, one after another, until the line is lost."""
    loop, arrived = asyncio.get_running_loop(), asyncio.Event()
    assert link.line  # it brought the order to start
    descriptor = link.line.connection.socket.fileno()
    loop.add_reader(descriptor, arrived.set)
    try:
        while not link.lost:
            await arrived.wait()
            arrived.clear()
            for order in link.receive():
                yield str(order.get("do"))
    finally:
        loop.remove_reader(descriptor)
