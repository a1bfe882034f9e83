"""Each kind of end of ``hpcml run``: the same as a submission's, and the nodes are the next line's at once."""

from __future__ import annotations

import json
import os
import select
import subprocess
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from conftest import ALL_NODES, Cluster
from hpcml import errors
from lab_state import PATIENCE, wait_for
from test_exit_status import CONNECT, WAIT
from test_never_comes import put

pytestmark = pytest.mark.lab

SALLOC = ("salloc", "--quiet", "--partition=boost", "--nodes=4", "--cpus-per-task=8", "--ntasks-per-node=1",
          "--mem=3000M", "--time=10")  # fmt: skip
SOON = 60.0  # seconds until the nodes are the next line's, also on a busy machine; scripts that wait do so for longer
PYTHON = "/tmp/hpcml-run-python"  # on each node another file


class End(NamedTuple):
    """A script, options, what is done when it runs, and the status; ``alike`` is whether a submission ends so too.

    ``mark`` is what of the message is the same whatever came first.
    """

    text: str
    status: int
    options: tuple[str, ...] = ()
    act: str = ""
    alike: bool = True
    mark: str = ""


PRELOAD = "environment.DASK_DISTRIBUTED__{}__PRELOAD=no_such_module"
ENDS = {
    "0": End(CONNECT + "print('sum', client.submit(sum, [1, 2, 3]).result())\n", 0),
    "3": End(CONNECT + "sys.exit(3)\n", 3),
    "raises": End(CONNECT + "raise ValueError('too few stars')\n", 1),
    "killed": End(CONNECT + "os.kill(os.getpid(), signal.SIGKILL)\n", 137),
    "no worker comes": End(
        CONNECT,
        errors.WORKERS_NEVER_CAME,
        ("--set", "deadlines.workers=8s", "--set", PRELOAD.format("WORKER")),
        mark="ended again and again (exit status 1",
    ),
    "no scheduler": End(CONNECT, errors.START_FAILED, ("--set", PRELOAD.format("SCHEDULER"))),
    "no interpreter": End(CONNECT, errors.START_FAILED, ("--set", "runtime.python=/opt/gone/python")),
    "broken on one node": End(
        CONNECT,
        errors.WORKERS_NEVER_CAME,
        ("--set", f"runtime.python={PYTHON}"),
        mark="n3: the worker task ended with exit status 127",
    ),
    "hpcml cancel": End(CONNECT + WAIT, errors.CANCELLED, act="hpcml cancel {name}"),
    # What a submission survives: its command only waits.
    "SIGINT": End(CONNECT + WAIT, errors.CANCELLED, act="kill -INT $run", alike=False),
    "SIGTERM": End(CONNECT + WAIT, errors.CANCELLED, act="kill -TERM $run", alike=False),
    "SIGKILL": End(CONNECT + WAIT, errors.CANCELLED, act="kill -KILL $run", alike=False),
}
# `next` is what the user's next line would be, with all CPUs of all nodes; it sets how many seconds that took.
BEGIN = """
until_it_runs() { for _ in {1..300}; do hpcml status "$1" 2>/dev/null | grep -q 'the script runs' && return; sleep 0.1; done; }
seconds_since() { echo "$EPOCHREALTIME $1" | awk '{print $1 - $2}'; }
next() { local began=$EPOCHREALTIME; srun hostname >/dev/null; took=$(seconds_since $began); }
processes() { ps -o args= -u $USER | grep -q '[h]pcml[.]node'; }  # on all nodes
"""
RUN = """
next; before=$took
hpcml run --name {name} {words} & run=$!
{act}
wait $run; status=$? returned=$EPOCHREALTIME; next
for _ in {{1..600}}; do processes || break; sleep 0.1; done
processes && left=some || left=none
echo "ended {name} $status $before $took $left $(seconds_since $returned)"
"""
SUBMIT = """
hpcml submit --wait --nodes 4 --cpus-per-node 8 --name {name} {words} & run=$!
{act}
wait $run
echo "ended {name} $?"
"""
RECORDED = ("state", "exit_status", "by", "phase", "message", "hint", "nodes", "expected", "warnings")


@pytest.fixture(scope="module")
def broken(cluster: Cluster) -> Iterator[None]:
    """An interpreter that n3 does not have."""
    for node in ALL_NODES:
        put(cluster, node, PYTHON, 'exec "$(command -v python)" "$@"' if node != "n3" else "exit 127")
    yield
    for node in ALL_NODES:
        cluster.run("rm", "-f", PYTHON, node=node)


def all_ended(cluster: Cluster, template: str, ends: dict[str, End], *before: str) -> dict[str, list[str]]:
    """Let all end one after another in one shell; return of each kind the run's name and what was measured."""
    cluster.wait_idle(30)
    stamp, lines, names = time.time_ns(), [BEGIN], {}
    for number, (kind, end) in enumerate(ends.items()):
        words = " ".join(cluster.command(end.text, *end.options)[2:])
        name = names[kind] = f"end{number}-{stamp}"
        act = f"until_it_runs {name}; {end.act.format(name=name)}" if end.act else ""
        lines.append(template.format(name=name, words=words, act=act))
    script = cluster.write("ends.sh", "".join(lines))
    done = cluster.run(*before, "bash", str(script), timeout=400)
    rows = {(row := line.split()[1:])[0]: row for line in done.stdout.splitlines() if line.startswith("ended ")}
    assert set(rows) == set(names.values()), done.stdout + done.stderr
    return {kind: rows[name] for kind, name in names.items()}


@pytest.fixture(scope="module")
def in_allocation(cluster: Cluster, broken: None) -> dict[str, list[str]]:
    """All ends in one allocation."""
    ended = all_ended(cluster, RUN, ENDS, *SALLOC)
    for kind, (_, status, before, after, left, gone) in ended.items():
        print(f"{kind:20} status {status:>3}, srun before {before} s, after {after} s; {left} left after {gone} s")
    return ended


@pytest.fixture(scope="module")
def submitted(cluster: Cluster, broken: None) -> dict[str, list[str]]:
    """The same as submissions."""
    return all_ended(cluster, SUBMIT, {kind: end for kind, end in ENDS.items() if end.alike})


def recorded(cluster: Cluster, name: str, mark: str = "") -> dict[str, Any]:
    """Return what is recorded of a run's end, its own names left out, and of the message only a mark if there is one."""
    facts: dict[str, Any] = {}

    def over() -> bool:
        answer = cluster.run("hpcml", "status", name, "--json")
        if answer.returncode == 0:
            facts.update(json.loads(answer.stdout))
        return facts.get("phase") == "ended"

    assert wait_for(over, 30), facts
    if mark:
        assert mark in facts["message"]
        facts["message"] = mark
    plain = json.dumps({key: facts[key] for key in RECORDED}).replace(facts["run"], "RUN")
    return dict(json.loads(plain))


@pytest.mark.parametrize("kind", ENDS)
def test_an_end(cluster: Cluster, in_allocation: dict[str, list[str]], kind: str) -> None:
    name, status, before, after, left, _ = in_allocation[kind]
    assert int(status) == (137 if kind == "SIGKILL" else ENDS[kind].status)
    assert recorded(cluster, name)["exit_status"] == ENDS[kind].status
    assert float(after) - float(before) < SOON
    assert left == "none", "processes of the run"


@pytest.mark.parametrize("kind", [kind for kind, end in ENDS.items() if end.alike])
def test_an_end_is_a_submission_s(
    cluster: Cluster, in_allocation: dict[str, list[str]], submitted: dict[str, list[str]], kind: str
) -> None:
    own, other = in_allocation[kind], submitted[kind]
    assert own[1] == other[1]
    assert recorded(cluster, own[0], ENDS[kind].mark) == recorded(cluster, other[0], ENDS[kind].mark)


def test_ctrl_c_on_a_terminal(cluster: Cluster) -> None:
    """It ends the run and not the allocation: the shell's next line runs."""
    words = " ".join(cluster.command(CONNECT + WAIT)[2:])
    salloc = " ".join(SALLOC)
    process = cluster.lab.popen(
        ["script", "-qec", f"{salloc} bash --norc -i", "/dev/null"],
        cwd=cluster.work,
        stdin=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert process.stdout
    screen = process.stdout.fileno()
    text = ""

    def type_(keys: str) -> None:
        assert process.stdin
        process.stdin.write(keys)
        process.stdin.flush()

    def shown(mark: str, seconds: float) -> None:
        nonlocal text
        deadline = time.monotonic() + PATIENCE * seconds
        while mark not in text:
            assert time.monotonic() < deadline, text
            if select.select([screen], [], [], 0.2)[0]:
                text += os.read(screen, 65536).decode(errors="replace")

    try:
        type_(f"hpcml run {words}\n")
        shown("waiting\r\n", 60)
        type_("\x03")
        shown("is told to end (SIGINT)", 10)
        type_("echo status $?; srun hostname; exit\n")
        shown(f"status {errors.CANCELLED}", 30)
        shown("n4", 30)
        assert process.wait(PATIENCE * 30) == 0
    finally:
        process.kill()
        process.communicate()
