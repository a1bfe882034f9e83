"""Each kind of end of a run, by ``hpcml run`` and submitted: the same record, its words, and nothing that is left."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from beside import SMALL
from conftest import Cluster
from hpcml import errors
from lab_state import wait_for
from terminals import Terminal
from test_exit_status import CONNECT, WAIT
from tests.looks import without_late_report

pytestmark = pytest.mark.lab

SALLOC = ("salloc", "--quiet", "--partition=boost", "--nodes=2", "--nodelist=n1,n2", "--cpus-per-task=2", "--ntasks-per-node=1",
          "--mem=900M", "--time=10")  # fmt: skip
PYTHON = "/tmp/hpcml-run-python"  # n2 has none


class End(NamedTuple):
    """A script, options, what is done when it runs, and the status.

    ``ways``: by ``hpcml run`` in an allocation, or as a submission. ``mark`` is what of the message is the same whatever
    came first; ``says`` is what the submission's command says, and ``why`` how `hpcml why` calls it, in part.
    """

    text: str
    status: int
    options: tuple[str, ...] = ()
    act: str = ""
    ways: tuple[str, ...] = ("run", "submit")
    mark: str = ""
    says: tuple[str, ...] = ()
    why: str = ""


def setting(*words: str) -> tuple[str, ...]:
    return tuple(option for word in words for option in ("--set", word))


RAN = "print('the script ran')\n"
STAYS = "import signal, time\nsignal.signal(signal.SIGTERM, lambda *_: time.sleep(300))\ntime.sleep(300)\n"
ENDS = {
    "0": End(CONNECT + "print('sum', client.submit(sum, [1, 2, 3]).result())\n", 0),
    "no interpreter": End(CONNECT + RAN, errors.START_FAILED, setting("runtime.python=/opt/gone/python"),
                          says=("/opt/gone/python: not found", "runtime.python")),
    "broken on one node": End(  # what is known at once does not wait for the deadline
        CONNECT + RAN, errors.WORKERS_NEVER_CAME, setting("deadlines.workers=200s", f"runtime.python={PYTHON}"), ways=("submit",),
        mark="n2: the workers' parent process exited with status 127", says=("not found",),
    ),
    "hpcml cancel": End(CONNECT + WAIT, errors.CANCELLED, act="hpcml ls --name {name} >{name}.cancel; hpcml cancel {name} >>{name}.cancel", why="cancelled"),
    "KillWait": End(STAYS, errors.CANCELLED, setting("deadlines.script_grace=25s"), act="scancel --name={name}", ways=("submit",),
                    why="cancelled"),
    # What a submission survives: its command only waits.
    "SIGTERM": End(CONNECT + WAIT, errors.CANCELLED, act="kill -TERM $run", ways=("run",)),
    "SIGKILL": End(CONNECT + WAIT, errors.CANCELLED, act="kill -KILL $run", ways=("run",)),
}  # fmt: skip
BEGIN = """
until_it_runs() { for _ in {1..900}; do hpcml status "$1" 2>/dev/null | grep -q 'the script runs' && return; sleep 0.1; done; }
processes() { ps -o args= -u $USER | grep -q '[h]pcml[.]node'; }  # on all nodes
"""
# What is left when the command returns, and in the end; the user's next line has all nodes.
RUN = """
hpcml run --name {name} {words} & run=$!
{act}
wait $run; status=$?
processes && at_once=some || at_once=none
srun hostname >/dev/null || at_once=nodes
for _ in {{1..900}}; do processes || break; sleep 0.1; done
processes && left=some || left=none
echo "ended {name} $status $at_once $left"
"""
SUBMIT = """
(
hpcml submit --wait {small} --name {name} {words} >{name}.said 2>&1 & run=$!
{act}
wait $run
echo "ended {name} $?"
) &
"""
RECORDED = ("state", "exit_status", "by", "phase", "message", "hint", "nodes", "expected", "warnings")


def all_ended(cluster: Cluster, template: str, way: str, *before: str) -> dict[str, list[str]]:
    """Let all end that end this way, in one shell; return of each kind the run's name and what was measured."""
    cluster.wait_idle(30)
    stamp, lines, names = time.time_ns(), [BEGIN], {}
    for number, (kind, end) in enumerate(ENDS.items()):
        if way in end.ways:
            words = shlex.join(cluster.command(end.text, *end.options)[2:])
            name = names[kind] = f"end{number}-{stamp}"
            act = f"until_it_runs {name}; {end.act.format(name=name)}" if end.act else ""
            lines.append(template.format(name=name, words=words, act=act, small=" ".join(SMALL)))
    script = cluster.write("ends.sh", "".join([*lines, "wait\n"]))
    done = cluster.run(*before, "bash", str(script), timeout=400)
    rows = {(row := line.split()[1:])[0]: row for line in done.stdout.splitlines() if line.startswith("ended ")}
    assert set(rows) == set(names.values()), done.stdout + done.stderr
    return {kind: rows[name] for kind, name in names.items()}


@pytest.fixture(scope="module")
def in_allocation(cluster: Cluster) -> dict[str, list[str]]:
    """All ends of `hpcml run`, one after another in one allocation."""
    return all_ended(cluster, RUN, "run", *SALLOC)


@pytest.fixture(scope="module")
def submitted(cluster: Cluster) -> Iterator[dict[str, list[str]]]:
    """All ends of submissions, as many beside each other as have room."""
    cluster.program("n1", PYTHON, 'exec "$(command -v python)" "$@"')
    yield all_ended(cluster, SUBMIT, "submit")
    cluster.run("rm", "-f", PYTHON, node="n1")


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
    facts["warnings"] = without_late_report(facts["warnings"])
    plain = json.dumps({key: facts[key] for key in RECORDED}).replace(facts["run"], "RUN")
    return dict(json.loads(plain))


@pytest.mark.parametrize("kind", [kind for kind, end in ENDS.items() if "run" in end.ways])
def test_an_end(cluster: Cluster, in_allocation: dict[str, list[str]], kind: str) -> None:
    name, status, at_once, left = in_allocation[kind]
    assert int(status) == (137 if kind == "SIGKILL" else ENDS[kind].status)
    assert recorded(cluster, name, ENDS[kind].mark)["exit_status"] == ENDS[kind].status
    assert at_once == "none" or kind == "SIGKILL", "processes of the run when its command has returned"
    assert left == "none", "processes of the run"
    if kind == "hpcml cancel":
        said = (cluster.work / f"{name}.cancel").read_text()
        assert "RUNNING" in said
        assert "the allocation remains" in said


@pytest.mark.parametrize("kind", [kind for kind, end in ENDS.items() if "submit" in end.ways])
def test_an_end_is_a_submission_s(
    cluster: Cluster, in_allocation: dict[str, list[str]], submitted: dict[str, list[str]], kind: str
) -> None:
    """What never came is known at once, and no deadline is named."""
    end, (name, status) = ENDS[kind], submitted[kind]
    said = (cluster.work / f"{name}.said").read_text()
    facts = recorded(cluster, name, end.mark)
    assert int(status) == facts["exit_status"] == end.status, said
    assert "the script ran" not in said
    assert all(words in said for words in end.says), said
    if kind == "broken on one node":
        written = json.loads((cluster.directory(name) / "status.json").read_text())
        assert (written["phase"], written["by"]) == ("workers", "hpcml")
        assert " within " not in written["message"]
    if end.why:
        assert json.loads(cluster.run("hpcml", "why", name, "--json").stdout)["short"].startswith(end.why)
    if kind == "KillWait":  # the lab's
        assert json.loads(cluster.run("hpcml", "why", name, "--json").stdout)["kill_wait"] == 10
    if "run" in end.ways:
        assert facts == recorded(cluster, in_allocation[kind][0], end.mark)


def test_ctrl_c_on_a_terminal(cluster: Cluster) -> None:
    """SIGINT ends the run and not the allocation: the shell's next line runs."""
    words = shlex.join(cluster.command(CONNECT + WAIT)[2:])
    with Terminal(cluster.lab, f"{shlex.join(SALLOC)} bash --norc -i", cwd=cluster.work) as terminal:
        terminal.type(f"hpcml run {words}\n")
        terminal.shown("waiting\n")
        terminal.type("\x03")
        terminal.shown("stopping the run (SIGINT)")
        terminal.type("echo status $?; srun hostname | sort | tail -n 1 | sed s/^/last-/; exit\n")
        terminal.shown(f"status {errors.CANCELLED}")
        terminal.shown("last-n2")
        assert terminal.ended() == 0
