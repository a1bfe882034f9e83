"""The stacks of a run's processes on this node, written where ``hpcml stacks`` asks for them.

The Pythons of a run answer a signal by faulthandler (``kinds/dask/node/script/sitecustomize_of_run.py``): each writes
into its own file in /dev/shm, which never has a name: only its entry in /proc leads to it. py-spy is used where the
run's environment has it.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from hpcml.node import prestarted_role, process_helpers, shared_files
from hpcml.node.context import Context

SIGNAL = signal.SIGRTMIN + 5
FILE = "/dev/shm/#"  # how Linux shows a file without a name
HEAD = b"hpcml-stacks %d\n"  # the first line of such a file: the process's pid
EVERY = 1.0  # seconds between two looks of a node for a request
LOOKS = 20  # a second, of all nodes together at the shared file system: the run lasts longer than its start
ANSWER = 2.0  # seconds for all processes of a node together
YOUNGEST = 0.5  # seconds; a younger process may be about to become another program, which the signal would end
BEFORE_END = 4.0  # seconds by which a run ends later whose stacks are wanted
_STEADY = 3  # looks in a row after which a dump that does not grow is whole
_LOOK = 0.01  # seconds between them
_MOST = 1024  # processes of a node
_LONGEST = 200  # characters of a command line
_FRAME = re.compile(r'  File "(.*)", line (\d+|\?\?\?) in (.*)')

Frame = tuple[str, int, str]  # file, line, function
Threads = list[list[Frame]]  # the main thread last, each with its innermost frame first


class Requests:
    """The requests for stacks in the file of the attempt, as one of ``lookers`` processes looks for them."""

    def __init__(self, context: Context, lookers: int) -> None:
        self.context, self.next_look, self.answered = context, 0.0, ""
        self.every = max(EVERY, lookers / LOOKS)

    def look(self) -> dict[str, Any] | None:
        """Return a request that was not answered yet, None if there is none."""
        if time.monotonic() < self.next_look:
            return None
        self.next_look = time.monotonic() + self.every
        path = self.context.attempt.stacks_request
        request = shared_files.read_json(path) if path.name in shared_files.listed(path.parent) else None
        return request if request and self.is_new(request["id"]) else None

    def is_new(self, request: str) -> bool:
        """Take note of a request that is answered now; return False if it was answered before."""
        before, self.answered = self.answered, request
        return request != before


def ask(context: Context, script: int) -> str:
    """Ask all nodes for the stacks of their processes; return the number of the request."""
    request = os.urandom(8).hex()
    shared_files.write_json(context.attempt.stacks_request, {"id": request, "script": script})
    return request


def are_all_written(context: Context, request: str, answered: Mapping[str, str]) -> bool:
    """Whether all nodes have answered a request; ``answered`` has by node the last one of its agent."""
    left = [node for node in context.node_names if answered.get(node) != request]
    answers = [shared_files.read_json(context.attempt.stacks / f"{node}.json") for node in left]
    return all(answer and answer["id"] == request for answer in answers)


def write(context: Context, request: Mapping[str, Any], members: Mapping[int, str], agent: int) -> int:
    """In a fork of the agent: write the stacks of this node's processes; ``members`` are the agent's, with names."""
    process_helpers.end_with(agent)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    script = {int(request["script"]): "script"} if request["script"] and context.node == context.node_names[0] else {}
    dumps = _dumped(list(_of_run({**script, **members, **_scheduler(context)})))
    context.attempt.stacks.mkdir(mode=0o700, exist_ok=True)
    answer = {"id": request["id"], "node": context.node, "processes": dumps}
    shared_files.write_json(context.attempt.stacks / f"{context.node}.json", answer)
    return 0


def _scheduler(context: Context) -> dict[int, str]:
    """Return the scheduler of the run by its pid, if it is on this node."""
    started = [b"-m", b"hpcml.kinds", b"scheduler"]
    runs = {f"HPCML_RUN_DIR={directory}".encode() for directory in (context.run.directory, prestarted_role.before)}
    return {
        pid: "scheduler"
        for pid in process_helpers.pids()
        if _bytes(pid, "cmdline").split(b"\0")[-4:-1] == started
        and _is_python(pid)
        and runs & {*_bytes(pid, "environ").split(b"\0")}
    }


def _bytes(pid: int, name: str) -> bytes:
    try:
        return Path("/proc", str(pid), name).read_bytes()
    except OSError:
        return b""  # it has ended, or belongs to another user


def _of_run(members: Mapping[int, str]) -> Iterator[dict[str, Any]]:
    """Return the known facts of the named processes and of all that they started, without their stacks."""
    children: dict[int, list[int]] = {}
    for pid in process_helpers.pids():
        with contextlib.suppress(ValueError, IndexError):
            children.setdefault(int(_bytes(pid, "stat").rpartition(b")")[2].split()[1]), []).append(pid)
    waiting = [(pid, name, False) for pid, name in members.items()]
    for _ in range(_MOST):
        if not waiting:
            return
        pid, name, is_child = waiting.pop(0)
        waiting += [(child, name, True) for child in sorted(children.get(pid, ())) if child not in members]
        if not (state := process_helpers.Process.named(pid).state):
            continue
        command = _bytes(pid, "cmdline").replace(b"\0", b" ").decode(errors="replace").strip()
        about = {"pid": pid, "name": name, "child": is_child, "command": command[:_LONGEST], "state": state}
        yield {**about, "wait": _bytes(pid, "wchan").decode().strip("0"), "by": "kernel", "threads": []}


def _dumped(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Add the stacks: those of py-spy, and of faulthandler where it has none."""
    deadline = time.monotonic() + ANSWER
    by_pid = {process["pid"]: process for process in found}
    program = shutil.which("py-spy", path=f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}")
    for by, dumps in (("py-spy", of_py_spy(program, by_pid, deadline)), ("faulthandler", of_signal(by_pid, deadline))):
        for pid, threads in dumps:
            if threads and not by_pid[pid]["threads"]:
                by_pid[pid] |= {"by": by, "threads": threads}
    return found


def of_py_spy(program: str | None, pids: Iterable[int], deadline: float) -> Iterator[tuple[int, Threads]]:
    """Return the stacks that py-spy finds, by pid; it may lack the right to look."""
    started = {
        pid: subprocess.Popen(
            [program, "dump", "--json", "--pid", str(pid)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        for pid in (pids if program else ())
        if program and _is_python(pid)
    }
    for pid, process in started.items():
        try:
            output, _ = process.communicate(timeout=max(0.0, (deadline - time.monotonic()) / 2))
        except subprocess.TimeoutExpired:
            process.kill()
            continue
        if process.returncode == 0:
            threads = sorted(json.loads(output), key=lambda one: one.get("os_thread_id") == one["pid"])
            yield pid, [[(call["filename"], call["line"], call["name"]) for call in each["frames"]] for each in threads]


def of_signal(pids: Iterable[int], deadline: float) -> Iterator[tuple[int, Threads]]:
    """Return the stacks that the processes write themselves, by pid; one that hangs in the kernel writes none."""
    asked = {pid: path for pid in pids if (path := _answers(pid))}
    sizes: dict[int, list[int]] = {}
    for pid, path in asked.items():
        with contextlib.suppress(OSError):  # it has ended
            os.truncate(path, len(HEAD % pid))
            os.kill(pid, SIGNAL)
            sizes[pid] = []
    while any(not _is_whole(size) for size in sizes.values()) and time.monotonic() < deadline:
        time.sleep(_LOOK)
        for pid in list(sizes):
            try:
                size = os.stat(asked[pid]).st_size  # noqa: PTH116 - a descriptor of another process
                sizes[pid].append(size - len(HEAD % pid))
            except OSError:
                del sizes[pid]
    for pid in sizes:
        with contextlib.suppress(OSError):
            yield pid, parsed(Path(asked[pid]).read_text(errors="replace"))


def _is_whole(sizes: list[int]) -> bool:
    last = sizes[-_STEADY:]
    return len(last) == _STEADY and last[0] > 0 and len({*last}) == 1


def _answers(pid: int) -> str:
    """Return the file to which a process writes its stacks at the signal, empty if that ends or changes it."""
    caught = re.search(rb"^SigCgt:\s*([0-9a-f]+)$", _bytes(pid, "status"), re.MULTILINE)
    if not caught or not int(caught[1], 16) >> (SIGNAL - 1) & 1 or process_helpers.Process.named(pid).age < YOUNGEST:
        return ""
    with contextlib.suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd"):
            path = f"/proc/{pid}/fd/{name}"
            if _link(pid, f"fd/{name}").startswith(FILE) and _head(path, len(HEAD % pid)) == HEAD % pid:
                return path
    return ""


def _head(path: str, size: int) -> bytes:
    with open(path, "rb", buffering=0) as file:  # a descriptor; the script's own file may hold gigabytes
        return file.read(size)


def _is_python(pid: int) -> bool:
    return "python" in _link(pid, "exe").rpartition("/")[2]


def _link(pid: int, name: str) -> str:
    try:
        return os.readlink(f"/proc/{pid}/{name}")  # noqa: PTH115 - its text is no path
    except OSError:
        return ""


def parsed(text: str) -> Threads:
    """Return the stacks that faulthandler wrote."""
    threads: Threads = []
    for line in text.splitlines():
        if match := _FRAME.fullmatch(line):
            if threads:
                threads[-1].append((match[1], int(match[2]) if match[2].isdigit() else 0, match[3]))
        elif "hread 0x" in line:
            threads.append([])
    return [thread for thread in threads if thread]
