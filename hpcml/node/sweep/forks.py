"""Forks of the process that starts the points: each waits for its point, and then becomes the script.

The next one is made while a point runs, so that a point need not wait for it: to fork a process that has imported
Dask, and to touch its first pages, takes longer than all else between two points.
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
from collections.abc import Callable, Sequence
from typing import NoReturn, TypedDict

from hpcml.node import processes
from hpcml.node.sweep.cleaning import Cleaner, use


class Order(TypedDict):
    """What a fork becomes: the variables, arguments and log of a point, and where it writes its error down.

    ``judged``: what it reports is answered.
    """

    environment: dict[str, str]
    argv: list[str]
    log: str
    error: str
    scheduler: str
    judged: bool


class Fork:
    """A process in a group of its own, which waits for its order; ``pid`` is its process and its group.

    ``reports`` is this end of a socket by which it reports metrics and hears whether to stop.
    """

    def __init__(self, cleaners: Sequence[Cleaner]) -> None:
        """Fork, from the only thread; the new process lets go of ``cleaners``, which are its parent's."""
        order, self.pipe = os.pipe()
        self.reports, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
        sys.stdout.flush()
        sys.stderr.flush()
        parent = os.getpid()
        self.pid = os.fork()
        if not self.pid:
            os.close(self.pipe)
            self.reports.close()
            for cleaner in cleaners:
                cleaner.let_go()
            _wait_for(order, parent, theirs.detach())
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


def _wait_for(pipe: int, parent: int, reports: int) -> NoReturn:
    """In the fork: be as a script is to find its process, wait for the order, and become it."""
    os.setpgid(0, 0)
    processes.end_with(parent)
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
    _become(json.loads(text), reports)


def _become(order: Order, reports: int) -> NoReturn:
    from hpcml.node.script import launcher

    if order["scheduler"]:
        use(order["scheduler"])
    log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    os.environ.update(order["environment"])
    if order["judged"]:
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
        for one in gc.get_objects():  # those from before the fork are not among them
            if isinstance(one, io.IOBase) and not one.closed:
                one.flush()
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(status & 0xFF)
