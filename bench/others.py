#!/usr/bin/env python3
"""Try what docs/ranks.md states on PyTorch, JAX and mpi4py, on this machine's CPUs and loopback addresses.

    PYTHON bench/others.py --json docs/benchmarks/others.json

PYTHON has torch, jax and mpi4py; `mpiexec` starts MPI. It takes some minutes. It exits with 1 if a statement is not true.
"""

from __future__ import annotations

import argparse
import base64
import datetime
import importlib.metadata
import json
import os
import pickle
import shlex
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]
LONGEST = 120.0  # seconds, for any command
AGAIN = 60.0  # seconds after which ranks that restarted have not found each other
RESTARTS = """
import datetime, pathlib, sys
import torch.distributed as dist
failed = pathlib.Path(sys.argv[1])
print("start", flush=True)
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=20))
if dist.get_rank() == 1 and not failed.exists():
    failed.touch()
    sys.exit(3)
dist.barrier()
"""
OBJECTS = """
import sys
import torch.distributed as dist
from others import Writes
dist.init_process_group("gloo")
dist.broadcast_object_list([Writes(sys.argv[1])] if dist.get_rank() == 0 else [None], weights_only=sys.argv[2] == "1")
"""
RPC = """
import sys
import torch.distributed.rpc as rpc
rank = int(sys.argv[1])
rpc.init_rpc(str(rank), rank=rank, world_size=2)
if rank == 0:
    rpc.rpc_sync("1", eval, args=(f"open({sys.argv[2]!r}, 'w').close()",))
rpc.shutdown()
"""
MPI = """
import sys
from mpi4py import MPI
from others import Writes
if MPI.COMM_WORLD.rank == 0:
    MPI.COMM_WORLD.send(Writes(sys.argv[1]), 1)
else:
    MPI.COMM_WORLD.recv(None, 0)
"""
JAX = """
import sys, time
import jax
port, rank, bind = sys.argv[1:]
address = {"coordinator_bind_address": f"127.0.0.1:{port}"} if bind else {}
jax.distributed.initialize(f"127.0.0.1:{port}", 2, int(rank), **address)
print("joined", flush=True)
time.sleep(600)
"""


class Writes:
    """An object whose unpickling runs code: it writes a file."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return eval, (f"open({self.path!r}, 'w').close()",)


def a_client_without_a_password_changes_the_store(_: Path) -> bool:
    """A second client of a TCPStore reads, changes and deletes a value."""
    from torch.distributed import TCPStore

    own = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    own.set("key", "own")
    other = TCPStore("127.0.0.1", own.port, is_master=False)
    read = other.get("key") == b"own"
    other.set("key", "other")
    changed = own.get("key") == b"other"
    return read and changed and other.delete_key("key") and not own.check(["key"])


def c10d_unpickles_the_store(folder: Path) -> bool:
    """With the rendezvous c10d, torchrun unpickles the state in the store."""
    words = ["--rdzv-backend=c10d", "--rdzv-conf=is_host=false,timeout=20"]
    return _in_store(folder, "torch.rendezvous.job", base64.b64encode, words)[0]


def static_reads_only_json(folder: Path) -> bool:
    """With the static rendezvous, torchrun reads JSON from the store: the same state ends it with an error."""
    words = ["--rdzv-backend=static", "--node-rank=1", "--rdzv-conf=timeout=20"]
    ran, errors = _in_store(folder, "job/torchelastic/assigned_ranks/1", bytes, words)
    return not ran and "json.loads" in errors


def _in_store(folder: Path, key: str, encode: Callable[[bytes], bytes], words: list[str]) -> tuple[bool, str]:
    """Start torchrun on a store with a pickle; return whether the pickle ran code, and torchrun's errors."""
    from torch.distributed import TCPStore

    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    store.set(key, encode(pickle.dumps(Writes(str(folder / "ran")))))
    address = f"--rdzv-endpoint=127.0.0.1:{store.port}"
    command = [*TORCHRUN, "--nnodes=2", "--rdzv-id=job", address, *words, str(folder / "none.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LONGEST)
    return (folder / "ran").exists(), done.stderr


def objects_run_code(folder: Path) -> bool:
    """broadcast_object_list unpickles: an object of another rank runs code."""
    return _objects(folder, "0") == 0 and (folder / "ran").exists()


def weights_only_runs_none(folder: Path) -> bool:
    """With weights_only=True, the same call refuses such an object."""
    return _objects(folder, "1") != 0 and not (folder / "ran").exists()


def _objects(folder: Path, only: str) -> int:
    script = _script(folder, OBJECTS)
    command = [*TORCHRUN, "--nproc-per-node=2", f"--master-port={_free()}", script, str(folder / "ran"), only]
    return subprocess.run(command, capture_output=True, check=False, timeout=LONGEST, env=_own()).returncode


def rpc_runs_code(folder: Path) -> bool:
    """torch.distributed.rpc calls any function in another process."""
    own = {**_own(), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free())}
    words = [sys.executable, _script(folder, RPC)]
    both = [subprocess.Popen([*words, str(rank), str(folder / "ran")], env=own) for rank in (0, 1)]
    return [each.wait(LONGEST) for each in both] == [0, 0] and (folder / "ran").exists()


def mpi4py_runs_code(folder: Path) -> bool:
    """mpi4py's recv unpickles: an object of another rank runs code."""
    mpiexec = ["mpiexec", "--allow-run-as-root", "--oversubscribe", "-n", "2"]
    command = [*mpiexec, sys.executable, _script(folder, MPI), str(folder / "ran")]
    done = subprocess.run(command, check=False, timeout=LONGEST, env=_own())
    return done.returncode == 0 and (folder / "ran").exists()


def jax_listens_on_all_addresses(folder: Path) -> bool:
    """JAX's coordinator listens on all addresses."""
    return _jax_listens(folder, "") == "*"


def jax_listens_on_one_address(folder: Path) -> bool:
    """With coordinator_bind_address, JAX's coordinator listens on one address."""
    return _jax_listens(folder, "1") == "[::ffff:127.0.0.1]"


def _jax_listens(folder: Path, bind: str) -> str:
    port = _free()
    with _Processes() as processes:
        processes.start(folder, JAX, str(port), "0", bind)
        ends = time.monotonic() + LONGEST
        while time.monotonic() < ends:
            found = subprocess.run(["ss", "-Hltn", f"sport = :{port}"], capture_output=True, text=True, check=True)
            if found.stdout:
                return found.stdout.split()[3].removesuffix(f":{port}")
            time.sleep(0.2)
    raise TimeoutError("JAX's coordinator did not listen")


def a_stranger_ends_jax(folder: Path) -> bool:
    """A process that connects to JAX's coordinator as a rank ends the other ranks."""
    port = str(_free())
    with _Processes() as processes:
        ranks = [processes.start(folder, JAX, port, rank, "") for rank in "01"]
        joined = [each.stdout.readline() for each in ranks if each.stdout]
        processes.start(folder, JAX, port, "1", "")
        return joined == [b"joined\n"] * 2 and all(each.wait(LONGEST) != 0 for each in ranks)


class _Processes:
    """Processes that end with this context."""

    def __init__(self) -> None:
        self.all: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for each in self.all:
            each.kill()
            each.wait()

    def start(self, folder: Path, script: str, *words: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, _script(folder, script), *words]
        own = {**os.environ, "JAX_PLATFORMS": "cpu"}
        self.all.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=own))
        return self.all[-1]


def recovered(folder: Path, backend: str) -> bool:
    """Let the rank of one of two nodes fail once, and return whether both nodes then end with status 0.

    Raises
    ------
    RuntimeError
        If torchrun started no rank again.
    """
    words = ["--nnodes=2", "--nproc-per-node=1", "--max-restarts=2", f"--rdzv-backend={backend}", "--rdzv-id=job"]
    words.append(f"--rdzv-endpoint=127.0.0.1:{_free()}")
    script, failed, nodes, outputs = _script(folder, RESTARTS), str(folder / "failed"), [], []
    for node in "01":
        rank = [f"--node-rank={node}"] if backend == "static" else []
        outputs.append((folder / f"node{node}.log").open("w+"))
        nodes.append(
            subprocess.Popen([*TORCHRUN, *words, *rank, script, failed], stdout=outputs[-1], stderr=subprocess.DEVNULL)
        )
    ends = time.monotonic() + AGAIN
    statuses: list[int | None] = []
    for each in nodes:
        try:
            statuses.append(each.wait(max(ends - time.monotonic(), 0)))
        except subprocess.TimeoutExpired:
            each.terminate()  # so torchrun ends its ranks too
            each.wait(LONGEST)
            statuses.append(None)
    texts = []
    for output in outputs:
        output.seek(0)
        texts.append(output.read())
        output.close()
    if not any(text.count("start") > 1 for text in texts):
        raise RuntimeError(f"torchrun restarted no rank: {texts}")
    return statuses == [0, 0]


def _script(folder: Path, text: str) -> str:
    path = folder / "script.py"
    path.write_text(text, encoding="utf-8")
    return str(path)


def _own() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}


def _free() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


STATEMENTS: tuple[Callable[[Path], bool], ...] = (
    a_client_without_a_password_changes_the_store, c10d_unpickles_the_store, static_reads_only_json, objects_run_code,
    weights_only_runs_none, rpc_runs_code, jax_listens_on_all_addresses, jax_listens_on_one_address,
    a_stranger_ends_jax, mpi4py_runs_code,
)  # fmt: skip


def table(document: dict[str, Any]) -> str:
    """Return the statements in Markdown, with the versions that they were tried with."""
    lines = ["| statement | tried |", "|---|---|"]
    lines += [f"| {text} | {'true' if true else 'not true'} |" for text, true in document["statements"].items()]
    for backend, tries in document["recovered"].items():
        text = (
            f"After the rank of one of two nodes failed, `--max-restarts 2` with `{backend}`: both nodes ended with 0"
        )
        lines.append(f"| {text} | {sum(tries)} of {len(tries)} times |")
    versions = ", ".join(f"{name} {version}" for name, version in document["versions"].items())
    return "\n".join([*lines, "", f"{document['date'][:10]}, {versions}; `{document['command']}`"])


def main() -> int:
    """Try all statements; return 1 if one is not true."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tries", type=int, default=5, help="of restarts, by each rendezvous")
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    options = parser.parse_args()
    statements, found = {}, dict[str, list[bool]]()
    for statement in STATEMENTS:
        with tempfile.TemporaryDirectory() as folder:
            statements[(statement.__doc__ or "").strip()] = statement(Path(folder))
    for backend in ("static", "c10d"):
        found[backend] = []
        for _ in range(options.tries):
            with tempfile.TemporaryDirectory() as folder:
                found[backend].append(recovered(Path(folder), backend))
    mpi = subprocess.run(["mpiexec", "--version"], capture_output=True, text=True, check=True).stdout.splitlines()[0]
    versions = {name: importlib.metadata.version(name) for name in ("torch", "jax", "mpi4py")}
    document = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": f"python3 {shlex.join(['bench/others.py', *sys.argv[1:]])}",
        "versions": {**versions, "Open MPI": mpi.split()[-1]},
        "statements": statements,
        "recovered": found,
    }
    print(table(document))
    if options.json:
        options.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return int(not all(statements.values()))


if __name__ == "__main__":
    sys.exit(main())
