"""What a run opens on the nodes: sockets, names in folders that all users share, secrets in variables.

``SOCKETS`` says which processes open the rows of hpcml/listeners.py, and how. ``NAMES`` and ``VARIABLES`` are the only
names and variables that are allowed. ``LOOK`` is what root runs on a node to find all of them.
"""

from __future__ import annotations

import base64
import itertools
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from hpcml import listeners

UNIX, ABSTRACT, LOOPBACK, ONE, ALL = "unix", "abstract", "loopback", "one address", "all addresses"
# What the pages say of a kind of socket (Listener.where).
PAGE_WORDS = {
    UNIX: "unix socket",
    ABSTRACT: "abstract unix socket",
    LOOPBACK: "loopback",
    ONE: "TCP",
    ALL: "all addresses",
}
OURS = ("hpcml", "Dask", "UCX", "Jupyter")  # whose sockets are attacked, and must be seen
THE_SCRIPT_S = "a port that the script opens"  # security.md: access that you give to others


class Sockets(NamedTuple):
    """How a row of the table is recognized on a node."""

    roles: tuple[str, ...] = ()  # the processes that listen
    kinds: tuple[str, ...] = ()
    address: str = ""  # a regular expression for the name of a unix socket
    announced: bool = True  # the run says which port it is
    seen_by: str = ""  # the tests that show and attack it, if no run of test_inventory.py does


SOCKETS = {
    "DASHBOARD": Sockets(("scheduler",), (UNIX,), r"/dashboard\.sock$", announced=False),
    "JUPYTER": Sockets(("jupyter", "kernel"), (UNIX,), r"/jupyter\.sock$|/k/kernel-[-\w]+-ipc-\d$", announced=False),
    "SERVICE": Sockets(("worker", "agent"), (UNIX,), r"/hpcml_\w{8}/[0-9a-f]{8}\.sock$", announced=False),
    "KERNEL_OUTPUT": Sockets(("kernel",), (UNIX,), r"/k/out-\d+$", announced=False),
    "DASK": Sockets(("scheduler", "worker"), (ONE,)),
    "DASK_TCP": Sockets(("worker",), (ONE,)),
    "UCX": Sockets(("scheduler", "worker"), (ALL,), announced=False),
    "UCX_TCP": Sockets(("scheduler", "worker"), (ONE,), announced=False),
    "UCX_WAKE": Sockets(("scheduler", "worker"), (ABSTRACT,), r"^@[0-9a-f]{5}$", announced=False),
    "AGENTS": Sockets(("supervisor",), (ONE,)),
    "MPI_TASKS": Sockets(("agent",), (ABSTRACT,), r"^@hpcml-[0-9a-f]{64}$", announced=False),
    "RAPIDSMPF": Sockets(("supervisor",), (ONE,)),
    "MASTER_PORT": Sockets(("script",), (ONE,)),
    "JAX_PORT": Sockets(("script",), (ONE,)),
    "LIBRARIES": Sockets(("script", "worker"), (ONE, ALL), seen_by="docs/security.md"),
    "ELASTIC": Sockets(("program", "elastic worker"), (ALL, ONE)),
    "CONNECT": Sockets(("program",), (LOOPBACK,)),
    "TUNNEL": Sockets((), (LOOPBACK,), seen_by="tests/lab/test_tunnel.py"),
    "SSH": Sockets((), (UNIX,), seen_by="tests/lab/test_tunnel.py"),
    "SRUN": Sockets(("srun",), (ALL,), announced=False),
    "PMIX": Sockets(("MPI task",), (ALL,), announced=False),
}
ROWS = {name: row for name, row in vars(listeners).items() if isinstance(row, listeners.Listener)}
# The rows that another account can connect to: each is attacked.
REACHED = [
    name
    for name, row in ROWS.items()
    if {*SOCKETS[name].kinds} - {UNIX} and row.opener in OURS and not SOCKETS[name].seen_by
]


class Name(NamedTuple):
    """Names of hpcml's and its libraries' files in folders that all users share."""

    path: str  # a regular expression
    mode: int
    row: str  # the first column of the row in docs/security.md, "Paths and names"
    seen_by: str = ""


NAMES = (
    Name(r"/tmp/hpcml_[a-z0-9_]{8}", 0o700, "`$TMPDIR/hpcml_…`, a process's folder"),
    Name(r"/tmp/spmix_appdir_\d+_\d+\.\d+", 0o700, "`/tmp/spmix_appdir_…` with `--mpi pmix`"),
    Name(r"/tmp/hpcml-\d+-[0-9a-f]{16}", 0o700, "`runtime.stage_to/hpcml-JOB-…/`, an image's copy", "tests/lab/test_staging.py"),
    Name(r"/dev/shm/ucx_shm_posix_\w+", 0o600, "UCX's `/dev/shm/ucx_shm_posix_…`", "tests/lab/test_attacks_nodes.py"),
    Name(r"/dev/shm/(sem\.(hpcml_|mp-)|psm_|pymp-)[-\w]+", 0o600, "names of joblib and multiprocessing in `/tmp` and `/dev/shm`", "tests/local/test_stacks.py"),
)  # fmt: skip


class Variable(NamedTuple):
    """A secret in the variables of a process."""

    name: str
    secret: str  # as :func:`secrets_of` names it
    roles: tuple[str, ...]


VARIABLES = (Variable("RRUN_SOCKET_TOKEN", "the token of link.key", ("script",)),)


def forms(value: bytes) -> list[str]:
    """Return how a secret may be written in a variable."""
    text = value.decode(errors="replace").strip()
    if text.startswith("-----BEGIN"):
        return text.splitlines()[1:-1]
    encoded = [
        value.hex(),
        *(encode(value).decode().rstrip("=") for encode in (base64.b64encode, base64.urlsafe_b64encode)),
    ]
    return encoded + ([text] if text.isascii() and text.isprintable() else [])


def role(pid: int, processes: Mapping[int, Mapping[str, Any]]) -> str:
    """Return which part of a run a process is, by its command line, else by that of its nearest parent that has one."""
    process = processes.get(pid)
    if not process:
        return ""
    if process["name"] == "srun":
        return "srun"
    words: list[str] = process["words"]
    modules = [after for word, after in itertools.pairwise(words) if word == "-m" and after.startswith("hpcml.")]
    if modules and words[-2:-1] == ["hpcml.kinds"]:
        return {"rank": "agent", "mpi": "MPI task"}.get(words[-1], words[-1])
    if modules:
        short = modules[0].rpartition("hpcml.kinds.dask.node.")[2]
        return {
            "jupyter.server": "jupyter",
            "jupyter.private_kernel": "kernel",
            "elastic_worker": "elastic worker",
        }.get(short, modules[0])
    above = role(process["parent"], processes)
    return "script" if above in ("supervisor", "agent", "kernel") else above or ("program" if process["mine"] else "")


def kind(socket: Mapping[str, Any]) -> str:
    """Return who reaches a socket, as a kind."""
    if socket["kind"] in (UNIX, ABSTRACT):
        return str(socket["kind"])
    address = str(socket["address"])
    return ALL if address == "0.0.0.0" or not address.strip("0") else LOOPBACK if address.startswith("127.") else ONE


def judge(socket: Mapping[str, Any], roles: set[str], announced: str, *, ucx: bool) -> str:
    """Return the name of a socket's row, empty if it has none.

    Parameters
    ----------
    socket
        What LOOK says of it.
    roles
        Those of the processes that hold it.
    announced
        The row that the socket's run names for its port, if it names one.
    ucx
        Whether the processes are of a run with UCX.
    """
    names = [announced] if announced else [name for name, known in SOCKETS.items() if not known.announced]
    rows = []
    for name in names if socket["kind"] in ("tcp", "tcp6", UNIX, ABSTRACT) else ():
        known = SOCKETS[name]
        is_role = bool(roles) and roles <= {*known.roles}
        is_closed = kind(socket) != UNIX or not (socket["mode"] | socket["above"]) & 0o077
        kinds = {*known.kinds} | ({LOOPBACK} if ONE in known.kinds else set())  # of a run of one node
        is_kind = kind(socket) in kinds and bool(re.search(known.address, str(socket["address"])))
        if is_role and is_kind and is_closed and (ucx or not name.startswith("UCX")):
            rows.append(name)
    return rows[0] if len(rows) == 1 else ""


def judge_file(path: str, mode: int) -> Name | None:
    """Return the row of a name in a shared folder."""
    return next((one for one in NAMES if re.fullmatch(one.path, path) and mode == one.mode), None)


LOOK = r"""
import json, os, pwd, stat, sys
uid = pwd.getpwnam(sys.argv[1]).pw_uid
places, secrets = json.loads(sys.stdin.read())
here = os.stat("/proc/self/ns/net").st_ino

def read(path):
    try:
        with open(path, "rb") as file: return file.read()
    except OSError: return b""

def process(pid):
    fields = read(f"/proc/{pid}/stat").decode(errors="replace").rpartition(")")[2].split()
    run = [word for word in read(f"/proc/{pid}/environ").split(b"\0") if word.startswith(b"HPCML_RUN_DIR=")]
    return {"words": [word.decode(errors="replace") for word in read(f"/proc/{pid}/cmdline").split(b"\0")[:-1]],
            "name": read(f"/proc/{pid}/comm").decode(errors="replace").strip(), "parent": int(fields[1]) if fields else 0,
            "run": run[0].decode().partition("=")[2] if run else "", "mine": owner(f"/proc/{pid}") == uid}

def owner(path):
    try: return os.stat(path).st_uid
    except OSError: return -1

def mine():
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        try:
            if owner(f"/proc/{pid}") == uid and os.stat(f"/proc/{pid}/ns/net").st_ino == here: yield pid
        except OSError: pass

def holders():
    found = {}
    for pid in mine():
        try: numbers = os.listdir(f"/proc/{pid}/fd")
        except OSError: continue
        for number in numbers:
            try: link = os.readlink(f"/proc/{pid}/fd/{number}")
            except OSError: continue
            if link.startswith("socket:["): found.setdefault(int(link[8:-1]), set()).add(pid)
    return found

def mode(path):
    try: return stat.S_IMODE(os.lstat(path).st_mode)
    except OSError: return 0o777

def listening():
    # inode: socket
    found = {}
    for kind, state in (("tcp", "0A"), ("tcp6", "0A"), ("udp", "07"), ("udp6", "07")):
        for fields in map(str.split, read(f"/proc/net/{kind}").decode().splitlines()[1:]):
            place, port = fields[1].split(":")
            address = ".".join(str(byte) for byte in bytes.fromhex(place)[::-1]) if len(place) == 8 else place
            if fields[3] == state: found[int(fields[9])] = {"kind": kind, "address": address, "port": int(port, 16), "mine": int(fields[7]) == uid}
    for fields in (line.split(None, 7) for line in read("/proc/net/unix").decode(errors="replace").splitlines()[1:]):
        if len(fields) > 7 and (int(fields[3], 16) & 0x10000 or int(fields[4], 16) == 2):  # it listens, or takes datagrams
            path = fields[7]
            kind = {"kind": "abstract"} if path[0] == "@" else {"kind": "unix", "mode": mode(path), "above": mode(os.path.dirname(path))}
            found[int(fields[6])] = {"address": path, "port": 0, "mine": False, **kind, "type": int(fields[4], 16)}
    return found

def sockets():
    before, held, after = listening(), holders(), listening()
    for inode in before.keys() & after.keys():  # what is opened or closed in this moment has no holder yet, or none any more
        if inode in held or before[inode]["mine"]: yield {**before[inode], "pids": sorted(held.get(inode, ()))}

def files():
    for place in places:
        try: entries = list(os.scandir(place))
        except OSError: continue
        for entry in entries:
            if not entry.is_symlink() and owner(entry.path) == uid: yield {"path": entry.path, "mode": mode(entry.path)}

def leaks():
    for pid in mine():
        for file in ("environ", "cmdline"):
            for word in read(f"/proc/{pid}/{file}").split(b"\0"):
                for label, values in secrets.items():
                    if any(value.encode() in word for value in values):
                        yield {"pid": pid, "secret": label, "place": word.partition(b"=")[0].decode(errors="replace") if file == "environ" else "the command line"}

found = {"sockets": list(sockets()), "files": list(files()), "leaks": list(leaks())}
found["processes"] = {pid: process(pid) for pid in map(int, filter(str.isdigit, os.listdir("/proc")))}
print(json.dumps(found))
"""
