"""The tasks of ``srun --mpi``: each gives its PMI variables and socket to the agent of its node, and waits.

The agent starts the ranks, as without MPI. Slurm kills all tasks of a step in which an MPI program fails: the ranks are
processes of another step, so hpcml still sees which of them failed first, and how.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Mapping
from typing import NamedTuple

from hpcml import listeners, socket_relay
from hpcml.errors import WORKERS_NEVER_CAME
from hpcml.kinds.ranks.roles import MPI
from hpcml.node import job, shared_files
from hpcml.node.context import Context, load
from hpcml.node.events_and_end import leave_note

_PASSED = "PMI"  # begins the names of all variables by which PMI-1, PMI-2 and PMIx find Slurm
_SOCKET = "PMI_FD"  # the number of an open socket, for PMI-1 and PMI-2
_LOOK = 0.05  # seconds between two calls of an agent that has not begun to listen
_AT_ONCE = 1024  # calls that are taken between two looks at the supervisor
_LONGEST = 1 << 17  # bytes of the variables


def main() -> int:
    """Give this task's connection with Slurm to the agent, and wait for the agent's end."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)  # the ranks answer them, and need Slurm until they have ended
    context = load()
    deadline = time.monotonic() + context.settings.deadlines.workers
    if not shared_files.wait_for(context.attempt.link, deadline, shared_files.interval(context.settings.worker_count)):
        leave_note(context, MPI.name, "the run's supervisor did not write its address (link.json) in time")
        return WORKERS_NEVER_CAME
    agent = _call(_place(context), deadline)
    if agent is None:
        sentence = f"this MPI task could not connect in time to the process that starts the ranks on {context.node}"
        leave_note(context, MPI.name, sentence)
        return WORKERS_NEVER_CAME
    variables = {name: value for name, value in os.environ.items() if name.startswith(_PASSED)}
    # PMIx's other ways of storage are files of slurmd: an image does not show them, and clients have crashed on them.
    variables.setdefault("PMIX_MCA_gds", "hash")
    message = json.dumps({"rank": job.task_rank(), "variables": variables}).encode()
    with agent, contextlib.suppress(ConnectionError):  # it has ended, which the supervisor notices
        socket.send_fds(agent, [message], [int(variables[_SOCKET])] if _SOCKET in variables else [])
        agent.recv(1)
    return 0


def _call(place: str, deadline: float) -> socket.socket | None:
    """Return a connection to a node's agent, None if it does not listen until ``deadline`` (of time.monotonic)."""
    while time.monotonic() < deadline:
        connection = _socket()
        connection.setblocking(False)  # others may have filled its queue
        try:
            connection.connect(place)
        except (ConnectionRefusedError, BlockingIOError):
            pass
        else:
            if socket_relay.peer(connection) == os.geteuid():
                connection.setblocking(True)
                return connection
        connection.close()
        time.sleep(_LOOK)
    return None


def _socket() -> socket.socket:
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def _place(context: Context) -> str:
    """Return the name of the agent's socket: abstract, so that no file names it.

    Linux shows the name to everybody on the node (/proc/net/unix). What keeps others out is the check of the user.
    """
    name = hmac.new(context.attempt.link_key.read_bytes(), f"tasks {context.node}".encode(), hashlib.sha256)
    return f"\0hpcml-{name.hexdigest()}"


class Task(NamedTuple):
    """A task of srun that waits."""

    connection: socket.socket  # its other end; the task ends when it is closed
    variables: dict[str, str]
    sockets: list[int]  # of PMI-1 and PMI-2 one


class Tasks:
    """The tasks on this node, by rank, as its agent has them; ``ranks`` are the node's."""

    def __init__(self, context: Context, ranks: range) -> None:
        self.ranks = ranks
        self.by_rank: dict[int, Task] = {}
        self.listener = listeners.listen_unix(
            listeners.MPI_TASKS, _place(context), kind=socket.SOCK_SEQPACKET, backlog=1024
        )
        self.listener.setblocking(False)
        self.callers: list[socket.socket] = []  # connections without a message

    def are_complete(self) -> bool:
        """Take in what has arrived, and return True if there is a task for each rank of the node."""
        for _ in range(_AT_ONCE):
            try:
                caller = self.listener.accept()[0]
            except BlockingIOError:  # nobody else calls now
                break
            except OSError as error:  # as no room for another file: it is tried again
                print(f"hpcml: an MPI task was not accepted: {error.strerror}.", file=sys.stderr)
                break
            if socket_relay.peer(caller) == os.geteuid():
                caller.setblocking(False)
                self.callers.append(caller)
            else:
                caller.close()
        self.callers = [caller for caller in self.callers if not self._take(caller)]
        return self.by_rank.keys() == {*self.ranks}

    def _take(self, caller: socket.socket) -> bool:
        """Take in a task's message; return False if it has not arrived."""
        try:
            data, sockets, _, _ = socket.recv_fds(caller, _LONGEST, 1)
        except BlockingIOError:
            return False
        except ConnectionError:  # the task has ended, which srun reports
            caller.close()
            return True
        for number in sockets:
            os.set_inheritable(number, False)  # by the other ranks
        try:
            message = json.loads(data)
            task = Task(caller, dict(message["variables"]), sockets)
            self.by_rank[int(message["rank"])] = task
        except (ValueError, TypeError, KeyError) as error:
            if data:
                print(f"hpcml: an MPI task sent no message of a task: {error!r}.", file=sys.stderr)
            for number in sockets:
                os.close(number)
            caller.close()
        return True

    def connected(self, rank: int, environment: Mapping[str, str]) -> dict[str, str]:
        """In a rank's process: return its environment with the connection of its task with Slurm."""
        task = self.by_rank[rank]
        others = {name: value for name, value in environment.items() if not name.startswith(_PASSED)}
        made = others | task.variables
        for number in task.sockets:
            os.set_inheritable(number, True)
            made[_SOCKET] = str(number)
        return made
