"""Where hpcml's programs listen: a table of all listeners, and the only functions that open one.

A row says what listens, who gets in and what another account gets. ``make reference`` writes the rows into the pages on
security. The tests attack each row, and find every socket of a run that has no row.
"""

from __future__ import annotations

import socket
import socketserver
from pathlib import Path
from typing import Any, NamedTuple

EVERYWHERE = ""  # all addresses of this machine
ABSTRACT = "\0"  # how the name of a unix socket begins that is not in a folder


class Listener(NamedTuple):
    """A row of the table: something that accepts connections."""

    what: str  # what listens
    where: str  # its addresses, and for a unix socket its mode
    access: str  # who gets in, and by what
    stranger: str  # what another account that connects gets
    opener: str = "hpcml"  # the program or library that opens it


DASHBOARD = Listener(
    "Dask's dashboard and metrics",
    "a unix socket, 0600 in a 0700 folder",
    "the user",
    "nothing: the kernel refuses the connection",
)
KERNEL_OUTPUT = Listener(
    "the output of Jupyter's kernels and their forks",
    "unix sockets, 0700 in a 0700 folder",
    "the user",
    "nothing: the kernel refuses the connection",
)
AGENTS = Listener(
    "hpcml's supervisor, for the nodes' agents and Dask's scheduler",
    "a TCP port on each IPv4 address of the first node, or on `network.interface` (loopback if the run has one node)",
    "holders of the attempt's key (HMAC-SHA256); lines are authenticated, **not encrypted**",
    "16 random bytes to sign; closed after 5 s; at most 1,024 such connections, then the oldest is closed",
)
RAPIDSMPF = Listener(
    "the meeting point of rapidsmpf, in runs of ranks with GPUs",
    "a TCP port of the first node",
    "holders of the attempt's token; the token is **not encrypted**",
    "nothing; closed after 5 s; at most 1,024 such connections, then the oldest is closed",
)
MASTER_PORT = Listener(
    "`MASTER_PORT` of a run of ranks: torch's TCPStore in rank 0",
    "a TCP port of the first node; hpcml binds the port and does not listen",
    "everybody who reaches the port",
    "the store's values, and may change them",
)
JAX_PORT = Listener(
    "`JAX_COORDINATOR_ADDRESS` of a run of ranks: JAX's coordinator in rank 0",
    "a TCP port of the first node; hpcml binds the port and does not listen",
    "everybody who reaches the port",
    "the coordinator's values, and may change them",
)
MPI_TASKS = Listener(
    "the agent of a node, for the tasks of `--mpi`",
    "an abstract unix socket",
    "processes of the user (the kernel names the account)",
    "nothing: the connection is closed",
)
TUNNEL = Listener(
    "`hpcml tunnel` on the laptop",
    "a TCP port of loopback (127.0.0.1)",
    "on Linux the user's programs, through a bridge; else each user of the laptop",
    "on Linux nothing: the connection is closed",
)
DASK = Listener(
    "Dask's scheduler and workers (TLS)",
    "TCP ports that the operating system chooses, on one interface (loopback if the run has one node)",
    "holders of the attempt's certificate (mutual TLS)",
    "an unfinished handshake: at most 2,048, at most 10 s each",
    "Dask",
)
DASK_TCP = Listener(
    'Dask\'s workers with `network.protocol = "tcp"`',
    "TCP ports that the operating system chooses, on one interface (loopback if the run has one node)",
    "holders of the attempt's key; data is **not encrypted**",
    "an unfinished handshake: at most 2,048, at most 10 s each",
    "Dask",
)
UCX = Listener(
    "GPU workers with UCX: UCX's connection manager",
    "a TCP port on all addresses of the node",
    "holders of the attempt's key; data is **not encrypted**",
    "an unfinished handshake (at most 256, 10 s each) if UCX uses that network device; else a refusal",
    "UCX",
)
UCX_TCP = Listener(
    "GPU workers with UCX: UCX's TCP transport",
    "a TCP port on each network device (only loopback if the run has one node, none if UCX uses RDMA)",
    'everybody who reaches the port; `network.protocol = "auto"` opens it only where no other user does',
    "may write to the process's memory",
    "UCX",
)
ELASTIC = Listener(
    "`hpcml.ElasticCluster`",
    "TCP ports on all addresses of the node; no HTTP port",
    "holders of the cluster's certificate (mutual TLS)",
    "an unfinished handshake, as above",
    "Dask",
)
CONNECT = Listener(
    "`hpcml.connect()` outside a run",
    "TCP ports of loopback; no HTTP port",
    "holders of the cluster's certificate (mutual TLS)",
    "an unfinished handshake, as above",
    "Dask",
)
JUPYTER = Listener(
    "JupyterLab and its kernels",
    "unix sockets, 0600 or 0700 in a 0700 folder",
    "the user, with a token",
    "nothing: the kernel refuses the connection",
    "Jupyter",
)
SERVICE = Listener(
    "the bridge to a service of the run (`hpcml tunnel --to`, `--service`)",
    "a unix socket, 0600 in a 0700 folder",
    "the user",
    "nothing: the kernel refuses the connection",
)
UCX_WAKE = Listener(
    "GPU workers with UCX: the shared memory of one node",
    "an abstract unix socket for datagrams",
    "nobody: UCX does not read the content",
    "wakes the process",
    "UCX",
)
SRUN = Listener(
    "`srun`",
    "its own TCP ports, on all addresses of the first node",
    "Slurm's processes, authenticated by Slurm",
    "what Slurm gives ([`srun`'s ports](security.md#what-is-not-protected))",
    "Slurm",
)
PMIX = Listener(
    "Slurm's PMIx plugin, in runs of ranks with `--mpi pmix`",
    "a TCP port on all addresses of each node",
    "Slurm's processes",
    "what Slurm gives",
    "Slurm",
)
SSH = Listener(
    "ssh: its shared connection on the laptop, and a tunnel's last hop on a login node",
    "unix sockets, 0600 in a 0700 folder",
    "the user",
    "nothing: the kernel refuses the connection",
    "ssh",
)
LIBRARIES = Listener(
    "NCCL, Gloo, MPI, raft-dask, cuDF-Polars and XGBoost, while a script uses them",
    "TCP ports of their own, most of them on all addresses of the node",
    "everybody who reaches the ports",
    "what the library gives ([what is not protected](security.md#what-is-not-protected))",
    "the library",
)
TABLE = (
    DASHBOARD, JUPYTER, SERVICE, KERNEL_OUTPUT, DASK, DASK_TCP, UCX, UCX_TCP, UCX_WAKE, AGENTS, MPI_TASKS, RAPIDSMPF,
    MASTER_PORT, JAX_PORT, LIBRARIES, ELASTIC, CONNECT, TUNNEL, SSH, SRUN, PMIX,
)  # fmt: skip


def listen_tcp(_row: Listener, address: str, port: int = 0, *, backlog: int = 128) -> socket.socket:
    """Return a socket that listens at a port of an IPv4 address; port 0 is any free one.

    Raises
    ------
    OSError
        If the address is not this machine's, or the port is taken.
    """
    return socket.create_server((address, port), backlog=backlog)


def listen_unix(
    _row: Listener, path: Path | str, *, kind: socket.SocketKind = socket.SOCK_STREAM, backlog: int = 128
) -> socket.socket:
    """Return a socket that listens at a path (mode 0600), or at an abstract name, which every account may connect to.

    Nobody connects before the mode is set: only ``listen`` lets them.
    """
    listener = socket.socket(socket.AF_UNIX, kind)
    try:
        listener.bind(str(path))
        if not str(path).startswith(ABSTRACT):
            Path(path).chmod(0o600)
        listener.listen(backlog)
    except OSError:
        listener.close()
        raise
    return listener


def reserve_tcp(_row: Listener) -> socket.socket:
    """Return a socket that is bound to a free port and does not listen: a connection is refused.

    No program is given this port by chance. Any account may still choose it: Linux lets programs share a port that both
    bind with SO_REUSEADDR, so that rank 0 can listen beside this socket.
    """
    return _bind(EVERYWHERE, 0)


def try_tcp(address: str, port: int = 0) -> None:
    """Raise OSError if this program could not listen there now; nothing stays open."""
    _bind(address, port).close()


def _bind(address: str, port: int) -> socket.socket:
    """Return a socket that is bound with SO_REUSEADDR; everywhere is each IPv4 and IPv6 address of this machine."""
    both = address == EVERYWHERE and socket.has_dualstack_ipv6()
    bound = socket.socket(socket.AF_INET6 if both else socket.AF_INET, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if both:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        bound.bind((address, port))
    except OSError:
        bound.close()
        raise
    return bound


class ThreadingServer(socketserver.ThreadingTCPServer):
    """A server of a row with a thread for each connection; its handler decides who gets in."""

    daemon_threads = True

    def __init__(
        self, row: Listener, address: str, port: int, handler: type[socketserver.BaseRequestHandler], **options: int
    ) -> None:
        super().__init__((address, port), handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listen_tcp(row, address, port, **options)
        self.server_address = self.socket.getsockname()


def http_server(application: Any) -> Any:
    """Return tornado's HTTP server for an application: it listens nowhere until :func:`serve_at` is called.

    Dask gives a server more routes, asks for its port and stops it.
    """
    from tornado.httpserver import HTTPServer

    server = HTTPServer(application)
    server.port = 0
    return server


def serve_at(row: Listener, server: Any, path: Path) -> None:
    """Have an HTTP server listen at the path of a unix socket (mode 0600)."""
    listener = listen_unix(row, path)
    listener.setblocking(False)
    server.add_socket(listener)


def bind_zmq(_row: Listener, zmq_socket: Any, path: str) -> None:
    """Have a socket of ZeroMQ listen at a path, in a folder that only the user reaches."""
    zmq_socket.bind(f"ipc://{path}")
