"""Forks of the process that starts the points: one becomes the script for each point, one resets each worker group.

The next point's fork is made while a point runs, so that a point need not wait for it: to fork a process that has
imported the kind's libraries, and to touch its first pages, takes longer than all else between two points. The fork
that resets has the client of the kind, because the process that starts the points must have no threads.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import io
import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from multiprocessing import Pipe
from typing import TYPE_CHECKING, NoReturn, Protocol, TypedDict

from hpcml.node import process_helpers

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from hpcml.node.context import Context

ANSWER = 120.0  # seconds for all of a reset, with a restart of the workers


class ResetError(Exception):
    """A worker group could not be reset: it does not answer, or its workers did not come back."""


class Group(Protocol):
    """The processes of the kind that one point at a time uses."""

    def reset(self) -> str:
        """Reset the group, and return the reason why its workers were restarted, empty if they were not."""


class Resets(Protocol):
    """What the module has that a kind names for resets (:class:`hpcml.kind.Kind`).

    An address names a worker group. The script's environment as it is leads to the group whose address is empty.
    """

    def preload(self) -> None:
        """Import what every point needs, before the first is forked."""

    def worker_groups(self, context: Context) -> list[str]:
        """Return the address of each worker group, the empty one first."""

    def use(self, address: str) -> None:
        """Have this process, which has used no group yet, use that of an address."""

    def WorkerGroup(self, context: Context) -> Group:  # noqa: N802 - a class
        """Return the group that this process uses."""


class Resetter:
    """The process that resets a worker group; it is asked once before the first point and after each."""

    def __init__(self, context: Context, kind: Resets, address: str, own: Sequence[Connection | socket.socket]) -> None:
        """Fork; the new process closes the ends of connections that are the parent's ``own``."""
        self.connection, theirs = Pipe()
        self.asked = 0.0
        parent = os.getpid()
        self.pid = os.fork()  # safe: this process has one thread
        if not self.pid:
            for end in (self.connection, *own):
                end.close()
            _answer_resets(theirs, parent, context, kind, address)
        theirs.close()

    def ask(self) -> None:
        """Have the group reset; the connection has something to read when it is."""
        self.asked = time.monotonic()
        with contextlib.suppress(OSError):  # it has ended, and the answer says so
            self.connection.send("reset")

    @property
    def late(self) -> bool:
        """Whether there should have been an answer."""
        return time.monotonic() - self.asked > ANSWER

    def answer(self) -> str:
        """Return the reason why workers were restarted, empty if they were not.

        Raises
        ------
        ResetError
            If the group is not reset.
        """
        try:
            if not self.connection.poll():
                raise ResetError(f"the Dask cluster could not be reset within {ANSWER:g} s")
            answer: dict[str, str] = self.connection.recv()
        except (OSError, EOFError) as error:
            raise ResetError("the process that resets the Dask cluster ended") from error
        if problem := answer.get("problem"):
            raise ResetError(f"the Dask cluster could not be reset: {problem}")
        return answer["restarted"]

    def end(self) -> None:
        """End the process."""
        self.connection.close()
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


def _answer_resets(connection: Connection, parent: int, context: Context, kind: Resets, address: str) -> NoReturn:
    try:
        process_helpers.end_with(parent)
        signal.set_wakeup_fd(-1)
        if address:
            kind.use(address)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(number, signal.SIG_IGN)  # its parent ends it
        group: Group | None = None
        while connection.recv():
            try:
                group = group or kind.WorkerGroup(context)
                answer = {"restarted": group.reset()}
            except Exception as error:  # noqa: BLE001 - the parent says it
                answer = {"problem": f"{type(error).__name__}: {error}"}
            connection.send(answer)
    except EOFError:
        pass  # the parent has ended
    finally:
        os._exit(0)


class Order(TypedDict):
    """The point that a fork becomes."""

    environment: dict[str, str]  # variables beside those that it has
    argv: list[str]  # the script and its arguments, after -c
    log: str  # the file for what it prints
    error: str  # the file for the error that it does not catch
    group: str  # the address of its worker group
    reports_answered: bool  # each of its reports is answered


class Fork:
    """A process in a group of its own, which waits for its order; ``pid`` is its process and its group.

    ``reports`` is this end of a socket by which it reports metrics and hears whether to stop.
    """

    def __init__(self, kind: Resets, own: Sequence[Connection | socket.socket]) -> None:
        """Fork, from the only thread; the new process closes the ends of connections that are its parent's ``own``."""
        order, self.pipe = os.pipe()
        self.reports, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
        sys.stdout.flush()
        sys.stderr.flush()
        parent = os.getpid()
        self.pid = os.fork()
        if not self.pid:
            os.close(self.pipe)
            for end in (self.reports, *own):
                end.close()
            _wait_for(order, parent, theirs.detach(), kind)
        os.close(order)
        theirs.close()
        with contextlib.suppress(PermissionError, ProcessLookupError):  # it has done so itself, or has ended
            os.setpgid(self.pid, self.pid)

    def begin(self, order: Order) -> bool:
        """Have it become the point; False if it has ended meanwhile, as the kernel may end any process.

        The caller waits for it in both cases.
        """
        try:
            with open(self.pipe, "w") as pipe:
                json.dump(order, pipe)
        except BrokenPipeError:
            return False
        return True

    def end(self) -> None:
        """End one that has no order."""
        os.close(self.pipe)
        self.reports.close()
        os.waitpid(self.pid, 0)


def _wait_for(pipe: int, parent: int, reports: int, kind: Resets) -> NoReturn:
    """In the fork: be as a script is to find its process, wait for the order, and become it."""
    os.setpgid(0, 0)
    process_helpers.end_with(parent)
    signal.set_wakeup_fd(-1)
    for other in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCHLD):
        signal.signal(other, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if random := sys.modules.get("numpy.random"):
        random.seed()  # a fork has its parent's
    with open(pipe) as file:
        text = file.read()
    if not text:
        os._exit(0)  # there was no further point
    _become(json.loads(text), reports, kind)


def _become(order: Order, reports: int, kind: Resets) -> NoReturn:
    from hpcml.node.script import launcher

    log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    if order["group"]:  # now, so that the log has its error, and no line of an earlier attempt
        kind.use(order["group"])
    os.environ.update(order["environment"])
    if order["reports_answered"]:
        os.environ["HPCML_REPORTS"] = f"{os.getpid()} {reports}"
    sys.argv = order["argv"]
    launcher.note_errors_in(order["error"])
    _be_script(launcher.main)


def _be_script(main: Callable[[], None]) -> NoReturn:
    """Be the script that the command line names, to its end.

    Python would take its whole heap apart then, which is the parent's for the most part and takes longer than many a
    point. Here threads are joined, what is to run at exit runs, and files that the script left open are written.
    """
    status = 0
    try:
        main()
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
        if status and not isinstance(end.code, int):
            print(end.code, file=sys.stderr)
    except BaseException as error:  # noqa: BLE001 - as the interpreter's own end
        status = 128 + signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
        frames = error.__traceback__.tb_next if error.__traceback__ else None
        sys.excepthook(type(error), error, frames)
    try:
        threading._shutdown()  # type: ignore[attr-defined] # noqa: SLF001 - as multiprocessing ends its children
        atexit._run_exitfuncs()  # noqa: SLF001 - as above
        vars(sys.modules["__main__"]).clear()
        for member in gc.get_objects():  # those from before the fork are not among them
            if isinstance(member, io.IOBase) and not member.closed:
                member.flush()
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(status & 0xFF)
