#!/usr/bin/env python3
"""Where the time of an encrypted transfer goes: processor seconds a GiB of each end, and GiB a second.

    .venv/bin/python bench/encrypted.py --rounds 5 --json docs/benchmarks/encrypted.json

Each case runs between new processes of this machine, over loopback, in rounds. ``socket`` and ``ssl`` are loops of
Python over a socket. ``dask`` is Dask's own comm with the certificate and the limits of a run: the receiver requests
arrays of 64 MiB. ``both ways``: each end also sends. ``busy``: a thread of the receiver computes in Python, as a task
does; the thread's own time does not count. ``repaired``: with hpcml.repairs.switching. The bounds use no socket. The table has the least processor time and the
greatest rate of all rounds. If others use the machine, only the processor time counts. With ``perf`` (root) the
profile has the parts of a receiver's processor time.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import datetime
import errno
import json
import multiprocessing
import os
import platform
import re
import shutil
import signal
import socket
import ssl
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import distributed

from encrypted_ends import MESSAGE, Case, end, security_of

GIB = 1 << 30
SPAWN = multiprocessing.get_context("spawn")
AES_128, CHACHA = "TLS_AES_128_GCM_SHA256", "TLS_CHACHA20_POLY1305_SHA256"
CASES = (
    Case("socket", "socket"), Case("ssl", "ssl"), Case("ssl, AES-128", "ssl", suite=AES_128),
    Case("ssl, ChaCha20", "ssl", suite=CHACHA), Case("socket, new memory", "socket", fresh=True),
    Case("ssl, new memory", "ssl", fresh=True), Case("ssl, 2 threads", "ssl", 2), Case("ssl, 4 threads", "ssl", 4),
    Case("ssl, 2 processes", "ssl", 1, 2), Case("ssl, 4 processes", "ssl", 1, 4), Case("dask, tcp", "tcp"),
    Case("dask, tls", "tls"), Case("dask, tls, AES-128", "tls", suite=AES_128),
    Case("dask, tcp, both ways", "tcp", both=True), Case("dask, tls, both ways", "tls", both=True),
    Case("dask, tcp, busy", "tcp", busy=True), Case("dask, tcp, busy, repaired", "tcp", busy=True, repaired=True),
    Case("dask, tls, busy", "tls", busy=True), Case("dask, tls, busy, repaired", "tls", busy=True, repaired=True),
)  # fmt: skip
PROFILED = ("ssl", "dask, tls", "dask, tcp")
KERNEL = {"page faults of new memory": "exc_page_fault", "kernel: read the socket": "sys_read|recvfrom|sock_read",
          "kernel: wait (epoll)": "epoll", "kernel: other": ""}  # fmt: skip
LIBRARIES = {"decrypt (libcrypto)": "libcrypto", "TLS records (libssl)": "libssl", "copy (libc)": "libc",
             "Python and its modules": ""}  # fmt: skip


def once(case: Case, folder: Path, size: int, perf: str = "") -> dict[str, Any]:
    """Run a case; return processor seconds a GiB that moved to each receiver, and GiB a second."""
    os.environ["OPENSSL_CONF"] = str(folder / f"{case.suite}.cnf")
    size = 2 * MESSAGE if case.busy else size // case.processes
    pipes, processes = [], []
    for _ in range(case.processes):
        pairs = [SPAWN.Pipe(), SPAWN.Pipe()]
        for (_, there), sends in zip(pairs, (True, False), strict=True):
            processes.append(SPAWN.Process(target=end, args=(case, folder, size, sends, there)))
            processes[-1].start()
            there.close()
        pipes += [here for here, _ in pairs]
        addresses = [one.recv() for one in pipes[-2:]]
        pipes[-2].send(addresses[1])
        pipes[-1].send(addresses[0])
    assert [one.recv() for one in pipes] == ["ready"] * len(pipes)
    command = [perf, "record", "-q", "-F", "499", "-e", "cpu-clock", "-g", "-o", f"{folder}/perf", "-p"]
    profiler = subprocess.Popen([*command, str(processes[1].pid)]) if perf else None
    time.sleep(1 if profiler else 0)  # a later start of perf loses samples, no more
    for one in pipes:
        one.send("start")
    results = [one.recv() for one in pipes]
    if profiler:
        profiler.send_signal(signal.SIGINT)
        profiler.wait()
    for one, process in zip(pipes, processes, strict=True):
        one.send("end")
        process.join()
    gib = size * case.processes / GIB
    figures = {
        "sender": sum(one["processor"] for one in results[0::2]) / gib,
        "receiver": sum(one["processor"] for one in results[1::2]) / gib,
        "deserialize": sum(one["deserialize"] for one in results[1::2]) / gib,
        "rate": gib * (1 + case.both) / max(one["wall"] for one in results[1::2]),
    }
    return {"case": case.name, **{name: round(value, 3) for name, value in figures.items()}}


def parts(perf: str, folder: Path) -> dict[str, float]:
    """Return the share of each part in the samples of a receiver."""
    command = [perf, "script", "-i", f"{folder}/perf", "-F", "ip,sym,dso"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    counts: collections.Counter[str] = collections.Counter()
    for stack in filter(None, map(str.strip, text.split("\n\n"))):
        library = stack.splitlines()[0].rpartition("(")[2]
        names, where = (KERNEL, stack) if "kernel" in library else (LIBRARIES, library)
        counts[next(part for part, pattern in names.items() if re.search(pattern, where))] += 1
    return {part: round(count / counts.total(), 3) for part, count in counts.most_common()}


def bounds(folder: Path) -> dict[str, float]:
    """Return processor seconds a GiB of TLS between two objects of Python's ssl, and of AES alone."""
    security, wires = security_of(folder), (ssl.MemoryBIO(), ssl.MemoryBIO())
    client = security.get_connection_args("client")["ssl_context"].wrap_bio(*wires)
    server = security.get_listen_args("worker")["ssl_context"].wrap_bio(*reversed(wires), server_side=True)
    for one in (client, server, client, server):
        with contextlib.suppress(ssl.SSLWantReadError):
            one.do_handshake()
    data, buffer, spent = bytes(1 << 20), bytearray(16384), [0.0, 0.0]
    for _ in range(GIB >> 20):
        began = time.thread_time()
        client.write(data)
        sent = time.thread_time()
        collections.deque((server.read(16384, buffer) for _ in range(64)), 0)
        spent = [spent[0] + sent - began, spent[1] + time.thread_time() - sent]
    seconds = dict(zip(("ssl in memory, sender", "ssl in memory, receiver"), spent, strict=True))
    if program := shutil.which("openssl"):
        command = [program, "speed", "-mr", "-seconds", "2", "-bytes", "16384", "-decrypt", "-evp", "aes-256-gcm"]
        speed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        seconds["openssl speed, AES-256-GCM"] = GIB / float(speed.split(":")[-1])
    return {name: round(value, 3) for name, value in seconds.items()}


def kernel_tls() -> str:
    """Return the kernel's answer to a request for kernel TLS: ENOENT without its module, ENOTCONN with it."""
    with socket.socket() as one:
        try:
            one.setsockopt(socket.IPPROTO_TCP, 31, b"tls")  # TCP_ULP
        except OSError as error:
            return errno.errorcode[error.errno or 0]
    return ""


def table(document: dict[str, Any]) -> str:
    """Return the figures as Markdown."""
    lines = ["| case | sender, s/GiB | receiver, s/GiB | GiB/s |", "|---|---|---|---|"]
    runs = collections.defaultdict(list)
    for run in document["runs"]:
        runs[run["case"]].append(run)
    for name, of_case in runs.items():
        sender, receiver = (min(run[role] for run in of_case) for role in ("sender", "receiver"))
        lines.append(f"| {name} | {sender:.2f} | {receiver:.2f} | {max(run['rate'] for run in of_case):.2f} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--gib", type=float, default=1, help="GiB of each case")
    parser.add_argument("--only", default="", help="only cases whose name contains this")
    parser.add_argument("--json", type=Path, help="also write all figures to this file")
    options = parser.parse_args()
    size, perf = int(options.gib * GIB), shutil.which("perf") or ""
    machine = {"system": platform.release(), "cores": os.cpu_count(), "load": round(os.getloadavg()[0], 1)}
    machine |= {"kernel TLS": kernel_tls(), "python": platform.python_version(), "ssl": ssl.OPENSSL_VERSION}
    command = f"bench/encrypted.py --rounds {options.rounds} --gib {options.gib:g}"
    document: dict[str, Any] = {
        "date": datetime.date.today().isoformat(),  # noqa: DTZ011 - the day here
        "command": command,
        "machine": machine | {"distributed": distributed.__version__},
        "runs": [],
        "profile": {},
    }
    cases = [case for case in CASES if options.only in case.name]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        security_of(folder)
        for suite in ("", AES_128, CHACHA):
            choice = f"Ciphersuites = {suite}\n" if suite else ""
            text = f"openssl_conf = a\n[a]\nssl_conf = b\n[b]\nsystem_default = c\n[c]\n{choice}"
            (folder / f"{suite}.cnf").write_text(text)
        for _ in range(options.rounds):
            for case in cases:
                document["runs"].append(once(case, folder, size))
                print(document["runs"][-1], flush=True)
        for case in cases:
            if perf and case.name in PROFILED:
                once(case, folder, 2 * size, perf)
                document["profile"][case.name] = parts(perf, folder)
        document["bounds"] = bounds(folder)
    print(table(document))
    print(json.dumps({key: document[key] for key in ("machine", "profile", "bounds")}, indent=1))
    if options.json:
        options.json.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
