"""The cause of a failure: every recorded text by its rule, and which of several is the first."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from failure_texts import HARMLESS, TEXTS
from hpcml import errors
from hpcml.failures import evidence, judgement, last_output, rules
from hpcml.failures.cause import Case, Cause, with_run
from hpcml.failures.end import End, ProcessEnd
from hpcml.failures.evidence import Hit, Line, Piece
from hpcml.failures.note import script_error
from hpcml.failures.rule import Role, Where
from hpcml.failures.rules import BY_NAME, COLOURS, OWN, RULES, meaning
from hpcml.kinds.dask import KIND
from hpcml.kinds.dask.node import workers
from hpcml.kinds.dask.node.clock import measure_clock
from hpcml.node import oom_and_hangs
from hpcml.paths import RunPaths
from hpcml.workload_forms import Form
from tests.said import says

LAUNCH = "from hpcml.node.script.launcher import main; main()"
KILLED_WORKER = {"type": "KilledWorker", "message": "Attempted to run task 'f' on 4 different workers, but all died"}


def ended(status: int, by: str, state: str, message: str, *, quote: tuple[str, ...] = (), **shown: Any) -> Case:
    """Return a run that has ended so; ``shown`` is what its files show."""
    return Case(End(status, "script", by, message, quote=quote, ended_as=state), KIND, **shown)


CASCADE = ended(1, "script", "FAILED", "the script exited with status 1", error={"chain": [KILLED_WORKER]})
BASE = time.mktime((2026, 11, 22, 23, 40, 12, 0, 0, -1))


def hits(*texts: str, source: str = "worker", node: str = "n1") -> list[Hit]:
    return evidence.hits_in(Piece("\n".join(texts), 1), source, node, f"logs/worker-{node}.log")


def cause(end: Case, found: list[Hit]) -> Cause:
    judged = judgement.judge(end, found)
    assert judged is not None
    return judged


def raised(*chain: tuple[str, str], **facts: Any) -> Case:
    links = [{"type": kind, "message": text} for kind, text in chain]
    return CASCADE._replace(error={"file": "/home/me/a b.py", "line": 7, "chain": links}, **facts)


def test_every_rule_has_its_recorded_text_and_no_other_rule_knows_it() -> None:
    assert set(TEXTS) == {rule.name for rule in RULES}
    assert len(RULES) == len(TEXTS) >= 60
    assert len(BY_NAME) == len(RULES) + len(OWN)
    also = {
        ("comm-closed", "ucx-reset"), ("no-module", "import-name"), ("image-room", "quota"), ("lost-tasks", "lost-scattered"),
        ("prolog", "requeue-limit"), ("nccl-shm", "disk-full"), ("disk-full", "abort"), ("open-files", "comm-closed"),
    }  # fmt: skip
    also |= {(name, "task-error") for name in TEXTS}  # which says that a task raised an error, whatever it was
    for name, text in ((name, text) for name, texts in TEXTS.items() for text in texts):
        places = BY_NAME[name].where
        for place in places & ~Where.LOG:
            known = meaning(text, place)
            assert known, (name, text, place)
            assert known.rule.name == name, (text, place)
        if Where.LOG in places:
            found = {hit.rule.name for hit in hits(COLOURS.sub("", text))}
            assert name in found, (name, text)
            extra = {other for other in found - {name} if (name, other) not in also and (other, name) not in also}
            assert not extra, (text, extra)


def test_no_rule_quotes_the_line_before_its_text(subtests: pytest.Subtests) -> None:
    for name, text in ((name, text) for name, texts in TEXTS.items() for text in texts):
        with subtests.test(name, text=text):
            quoted = [hit.line for hit in hits("    ^^^^^^", COLOURS.sub("", text)) if hit.rule.name == name]
            assert all(line.number > 1 for line in quoted)


def test_what_the_site_says_of_a_refusal_goes_before_slurm_s_general_word() -> None:
    last = "sbatch: error: Batch job submission failed: Invalid feature specification"
    known = meaning(last, Where.SUBMISSION)
    assert known
    assert known.rule.name == "feature"
    assert meaning(f"sbatch: error: Request one of the projects of your group\n{last}", Where.SUBMISSION) is None
    for text, rule in (
        ("memory limit must be provided for shared jobs", "memory-required"),
        ("QOSMinGRES", "policy-minimum"),
    ):
        refused = meaning(f"--> Verifying ... OK\nsbatch: error: {text}\n{last}", Where.SUBMISSION)
        assert refused
        assert refused.rule.name == rule


def test_a_root_has_words_for_the_next_step_and_for_a_table() -> None:
    for rule in RULES:
        assert len(rule.short.split()) <= 6
        if rule.role in (Role.ROOT, Role.CONFIRMATION):
            assert rule.short or rule.where is Where.BUILD
            assert rule.remedy[-1] in ".?"


def test_what_tells_nothing_is_known_by_no_rule() -> None:
    assert hits(*HARMLESS) == []


CASCADES = [rule.name for rule in RULES if rule.role is not Role.ROOT]
ROOTS = [rule.name for rule in RULES if rule.role is Role.ROOT and Where.LOG in rule.where]
OTHERS = [TEXTS[name][0] for name in CASCADES]


@pytest.mark.parametrize(
    ("root", "others"), [(root, OTHERS) for root in ROOTS] + [("disk-full", [other]) for other in OTHERS]
)
def test_what_follows_is_never_the_cause_wherever_it_stands(root: str, others: list[str]) -> None:
    text = COLOURS.sub("", TEXTS[root][0])
    for texts in ((*others, text), (text, *others)):
        assert cause(CASCADE, hits(*texts)).rule == root, texts


STEP_CANCELLED = "slurmstepd-n1: error: *** STEP 7.1 ON n1 CANCELLED AT 2026-11-22T23:40:15 DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***"


@pytest.mark.parametrize(("told", "node", "nodes"), [
    (["srun: error: Node failure on n2"], "", ("n2",)),
    ([], "n2", ("n2",)),
    ([], "", ()),
])  # fmt: skip
def test_the_node_that_failed_is_never_the_one_whose_log_tells_it(
    told: list[str], node: str, nodes: tuple[str, ...]
) -> None:
    end = ended(errors.ROLE_LOST, "hpcml", "FAILED", "the scheduler was lost")
    end = end._replace(end=end.end._replace(lost_nodes=(node,) if node else ()))
    found = cause(end, [*hits(STEP_CANCELLED), *hits(*told, source="job", node="")])
    assert (found.rule, found.nodes) == ("node-failure", nodes)


def test_without_a_beginning_the_cause_is_not_known() -> None:
    for name in CASCADES:
        found = cause(CASCADE, hits(TEXTS[name][0]))
        assert found.known is (BY_NAME[name].role is Role.CONFIRMATION), name
    assert "the run's logs do not show why" in cause(CASCADE, []).what


def at(seconds: float, text: str) -> str:
    stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(BASE + seconds))
    return f"{stamp},001 - distributed.worker - ERROR - {text}"


def test_the_same_on_many_nodes_is_one_cause_with_its_nodes() -> None:
    found = cause(CASCADE, [hit for node in ("n1", "n2", "n3") for hit in hits(TEXTS["ecc"][0], node=node)])
    assert (found.rule, found.occurrences, found.nodes, found.retry) == ("ecc", 3, ("n1", "n2", "n3"), "exclude")


def test_the_script_s_own_error_is_the_cause_though_a_worker_had_trouble_before() -> None:
    found = cause(raised(("ValueError", "bad \x1b[31mword")), hits(TEXTS["worker-memory"][0]))
    assert found.rule == "script-error"
    assert found.short == "ValueError in a_b.py:7"


FULL = ("OSError", "[Errno 28] No space left on device")


@pytest.mark.parametrize(
    ("chain", "handled", "rule", "words"),
    [
        ((FULL, ("ValueError", "first")), True, "script-error", "ValueError: first"),  # cleaning up failed too
        ((("RuntimeError", "no result"), FULL), False, "disk-full", "disk"),
        ((("RuntimeError", "no result"), ("ValueError", "of it"), FULL), False, "disk-full", "disk"),
        ((("ConfigError", "no x"), ("KeyError", "'x'")), False, "script-error", "KeyError: 'x'"),
        ((("SystemExit", "no data"), ("FileNotFoundError", "x.csv")), True, "script-error", "exited: no data"),
        ((("ValueError", "Input  X\n\n  contains NaN."), ("_RemoteTraceback", "\n''\n")), False, "script-error",
         "ValueError: Input  X contains NaN."),
        ((("TimeoutError", "Only 3/4 workers arrived after 60"), ("CancelledError", "")), False, "wait-workers", "workers"),
        ((("RuntimeError", "DataLoader worker (pid 2353) is killed by signal: Killed. "),  # torch 2.11, a worker killed
          ("ConnectionResetError", "[Errno 104] Connection reset by peer")), True, "loader-killed", "DataLoader worker"),
        ((("ValueError", "first"), ("ConnectionResetError", "[Errno 104]")), True, "script-error", "ConnectionReset"),
        ((("RuntimeError", "P2P 5fd1 failed during transfer phase"), ("RuntimeError", "")), False, "shuffle", "shuffle"),
    ],
)  # fmt: skip
def test_the_first_of_a_chain_of_errors_is_the_cause(
    chain: tuple[tuple[str, str], ...], handled: bool, rule: str, words: str
) -> None:
    end = raised(*chain)
    end.error["chain"][1]["handled"] = handled
    found = cause(end, [])
    assert (found.rule, words in found.what) == (rule, True), found


@pytest.mark.parametrize("kind", ["ConnectionResetError", "ConnectionRefusedError", "BrokenPipeError", "EOFError"])
def test_a_connection_that_pytorch_s_loader_lost_is_a_worker_of_it_that_died(kind: str) -> None:
    end = raised((kind, "[Errno 104] Connection reset by peer"))
    assert cause(end, []).rule == "script-error"
    end.error["chain"][0]["loader"] = True
    found = cause(end, [])
    assert (found.rule, found.retry) == ("loader-killed", "memory")
    assert "num_workers" in found.remedy
    assert kind in found.evidence[0].text
    other = raised(("ValueError", "bad"))
    other.error["chain"][0]["loader"] = True
    assert cause(other, []).rule == "script-error"


def test_an_error_that_came_through_pytorch_s_loader_is_written_down_so(tmp_path: Path) -> None:
    """By a module of that name beside the script: PyTorch is in no environment of the tests."""
    package = tmp_path / "torch/utils/data"
    package.mkdir(parents=True)
    (package / "dataloader.py").write_text("def get(path):\n    open(path)\n")
    script, note = tmp_path / "job.py", tmp_path / "note.json"
    script.write_text("import torch.utils.data.dataloader as loader\ntry: loader.get('/no/such')\nfinally: int('x')\n")
    subprocess.run([sys.executable, "-c", LAUNCH, script], check=False,
                   capture_output=True, env=os.environ | {"HPCML_SCRIPT_ERROR": str(note)})  # fmt: skip
    chain = script_error(note)["chain"]
    assert [(one["type"], one["loader"]) for one in chain] == [("ValueError", False), ("FileNotFoundError", True)]


def test_the_error_of_a_task_is_the_cause_and_not_the_group_that_carries_it(tmp_path: Path) -> None:
    script, note = tmp_path / "job.py", tmp_path / "note.json"
    script.write_text(
        "import asyncio\nasync def get():\n    raise LookupError('no labels')\nasync def main():\n"
        "    async with asyncio.TaskGroup() as group:\n        group.create_task(get())\nasyncio.run(main())\n"
    )
    subprocess.run([sys.executable, "-c", LAUNCH, script], check=False,
                   capture_output=True, env=os.environ | {"HPCML_SCRIPT_ERROR": str(note)})  # fmt: skip
    found = cause(CASCADE._replace(error=script_error(note)), [])
    assert "raised LookupError: no labels" in found.what
    assert found.followed[0].text.startswith("ExceptionGroup: unhandled errors in a TaskGroup")


def test_the_words_that_a_script_ends_with_are_written_down(tmp_path: Path) -> None:
    """``sys.exit("words")`` leaves them as the cause, and Python's status and output; a number leaves nothing."""
    script, note = tmp_path / "job.py", tmp_path / "note.json"
    start = LAUNCH
    for end, status, said in (("3", 3, ""), ('"no\\ndata"', 1, "no\ndata\n")):
        assert not note.exists()
        script.write_text(f"import sys\nsys.exit({end})\n")
        done = subprocess.run([sys.executable, "-c", start, script], capture_output=True, text=True, check=False,
                              env=os.environ | {"HPCML_SCRIPT_ERROR": str(note)})  # fmt: skip
        assert (done.returncode, done.stderr, done.stdout) == (status, said, "")
    error = script_error(note)
    assert (error["chain"][0]["message"], error["line"]) == ("no\ndata", 2)


IN_A_TASK = """
from dask.utils import apply
from distributed.protocol.pickle import dumps, loads
def divide():
    return 1 / 0
def from_worker():
    try:
        divide()
    except ZeroDivisionError as error:
        sent = dumps((error, error.__traceback__))
    error, trace = loads(sent)
    raise error.with_traceback(trace)
"""


@pytest.mark.parametrize(
    ("code", "task"), [("apply(from_worker, ())", "divide at job.py:5"), ("apply(divide, ())", ""), ("from_worker()", "")]
)  # fmt: skip
def test_an_error_of_a_dask_task_has_the_task_s_function(tmp_path: Path, code: str, task: str) -> None:
    """Only frames that Dask has rebuilt are of a task: the script may call the same function itself."""
    script, note = tmp_path / "job.py", tmp_path / "note.json"
    script.write_text(f"{IN_A_TASK}{code}\n")
    subprocess.run([sys.executable, "-c", LAUNCH, script], capture_output=True, check=False, timeout=240,
                   env=os.environ | {"HPCML_SCRIPT_ERROR": str(note)})  # fmt: skip
    error = script_error(note)
    assert [row["task"] for row in error["chain"]][:1] == [task]
    found = cause(CASCADE._replace(error=error), [])
    expected = ("a Dask task of the script", task) if task else ("the script",)
    assert found.what == says(*expected, "raised ZeroDivisionError")


def test_an_error_at_the_interpreter_s_end_is_printed_as_python_does(tmp_path: Path) -> None:
    """Objects of compiled modules, as CuPy's, report errors when they are deleted, after sys.path and its like."""
    script, note = tmp_path / "job.py", tmp_path / "note.json"
    script.write_text(
        "import builtins, sys\nclass Late:\n    def __del__(self):\n        try: raise ValueError('late')\n"
        "        except ValueError: sys.excepthook(*sys.exc_info())\nbuiltins.kept = Late()\n"
    )
    done = subprocess.run([sys.executable, "-c", LAUNCH, script], capture_output=True,
                          text=True, check=False, env=os.environ | {"HPCML_SCRIPT_ERROR": str(note)})  # fmt: skip
    assert (done.returncode, done.stderr.splitlines()[-1]) == (0, "ValueError: late"), done.stderr
    assert "launcher.py" not in done.stderr
    assert not note.exists()  # it is no error that ended the script


@pytest.mark.parametrize(("kind", "message", "words"), [
    ("KeyError", "'SCALE'", "--env SCALE=VALUE"),
    ("KeyError", "'column a'", "traceback"),
    ("FileNotFoundError", "[Errno 2] No such file or directory: 'data/x.csv'", "whether data/x.csv exists"),
    ("FileNotFoundError", "[Errno 2] No such file or directory: '/data/x.csv'", "traceback"),
])  # fmt: skip
def test_errors_that_a_user_can_mend_have_a_next_step(kind: str, message: str, words: str) -> None:
    assert words in cause(raised((kind, message)), []).remedy


def test_a_script_that_ends_with_a_status_is_told_by_its_last_line() -> None:
    said = ("usage: a.py [-h] [--k K]", "a.py: error: unrecognized arguments: --x 3")
    found = cause(ended(2, "script", "FAILED", "the script exited with status 2", quote=said), [])
    assert found.what == f"the script exited with status 2; the last line of its output: {said[1]}"


@pytest.mark.parametrize(
    ("form", "short"), [(Form.SCRIPT, "script exited with status 127"), (Form.PROGRAM, "program cannot be started")]
)
def test_status_127_is_a_missing_program_only_where_a_program_was_submitted(form: Form, short: str) -> None:
    assert cause(ended(127, "script", "FAILED", "it exited with status 127", form=form), []).short == short


def test_an_error_that_speaks_for_another_gives_it_the_word() -> None:
    end = raised(("RuntimeError", "NCCL_ERROR: b'unhandled system error'"))
    assert cause(end, []).rule == "nccl-system"
    assert cause(end, hits(TEXTS["nccl-shm"][0], source="library")).rule in ("nccl-shm", "disk-full")


def test_a_kill_is_out_of_memory_only_where_that_is_confirmed() -> None:
    killed = ended(137, "script", "FAILED", "the script was killed by SIGKILL")
    assert not cause(killed, []).known
    found = cause(killed, hits(TEXTS["oom-kill"][0], source="job"))
    assert (found.known, found.short, found.retry) == (True, "out of memory", "memory")


def test_slurm_s_word_in_the_scheduler_s_log_names_the_scheduler() -> None:
    lost = ended(errors.ROLE_LOST, "hpcml", "FAILED", "the Dask scheduler on n1 was lost")
    own, task = (hits(TEXTS["oom-kill"][0], source="scheduler", node=""), hits(TEXTS["oom-kill"][-1], source="job", node=""))  # fmt: skip
    assert cause(lost, [*task, *own]).what.startswith("the scheduler was killed because the node's memory limit")


@pytest.mark.parametrize(("number", "rule"), [(139, "segfault"), (135, "bus-error"), (134, "abort"), (132, "illegal")])
def test_a_signal_has_its_meaning(number: int, rule: str) -> None:
    end = ended(number, "script", "FAILED", "the script was killed")
    assert cause(end, []).rule == rule


def test_the_place_of_a_crash_is_told() -> None:
    log = 'Fatal Python error: Segmentation fault\n\nCurrent thread 0x1 (most recent call first):\n  File "/a/job.py", line 9 in f\n'
    end = ended(139, "script", "FAILED", "the script was killed by SIGSEGV")
    assert "/a/job.py, line 9, in f" in cause(end, hits(log, source="script")).what


def test_a_run_that_ended_well_has_no_cause() -> None:
    end = ended(0, "script", "COMPLETED", "the script exited with status 0")
    assert judgement.judge(end, hits(*(texts[0] for texts in TEXTS.values()))) is None


def test_the_time_limit_says_in_which_phase() -> None:
    end = ended(errors.TIME_LIMIT, "scheduler", "TIMEOUT", "the time limit was reached")
    words = {
        (): "before the run began",
        ("allocated", "scheduler-up"): "before all workers had started",
        ("allocated", "scheduler-up", "workers-ready"): "while the interconnect was checked",
        ("allocated", "scheduler-up", "workers-ready", "script-started"): "while the script ran",
    }
    for events, phase in words.items():
        assert cause(end._replace(times=dict.fromkeys(events, 1.0)), []).what.endswith(phase)


def test_what_the_script_printed_does_not_begin_a_failure_that_others_began() -> None:
    assert not cause(CASCADE, hits(TEXTS["disk-full"][0], source="script")).known


# -- files -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    (tmp_path / "logs").mkdir()
    return RunPaths(tmp_path)


def test_the_begin_and_the_end_of_a_long_log_are_read_with_their_lines(paths: RunPaths) -> None:
    body = ("x" * 40 + "\n") * 100_000
    paths.log("worker", "n1").write_text(f"{TEXTS['memlock'][0]}\n{body}{TEXTS['ecc'][0]}\n")
    found = [(hit.rule.name, hit.line.number, hit.line.node) for hit in evidence.hits(paths, paths.attempt(0), 8)]
    assert found == [("memlock", 1, "n1"), ("ecc", 100_002, "n1")]


def test_of_very_many_logs_the_smaller_are_read(paths: RunPaths) -> None:
    """A worker that failed wrote nothing after that."""
    for node, text in (("n1", "x\n" * 10_000), ("n2", TEXTS["ecc"][0]), ("n3", "x\n" * 10_000)):
        paths.log("worker", node).write_text(text)
    assert [hit.line.node for hit in evidence.hits(paths, paths.attempt(0), 1)] == ["n2"]


def test_links_pipes_and_folders_are_no_evidence(paths: RunPaths, tmp_path: Path) -> None:
    (tmp_path / "foreign").write_text(TEXTS["ecc"][0])
    paths.log("worker", "n1").symlink_to(tmp_path / "foreign")
    os.mkfifo(paths.log("worker", "n2"))
    paths.log("worker", "n3").mkdir()
    assert evidence.hits(paths, paths.attempt(0), 8) == []


def test_the_note_of_the_script_s_error_is_read(paths: RunPaths) -> None:
    path = paths.directory / "script-error.json"
    whole = json.dumps({"file": "a.py", "line": 3, "chain": [{"type": "KeyError", "message": "'x'"}]})
    for text, short in (("{", ""), ('{"chain": [3]}', ""), (whole, "KeyError in a.py:3")):
        path.write_text(text)
        found = cause(CASCADE._replace(error=script_error(path)), [])
        assert found.short == short if short else found.rule == "exit"


def test_an_error_that_the_script_s_own_hook_printed_is_told(paths: RunPaths) -> None:
    paths.script_log.write_text('Traceback (most recent call last):\n  File "a.py", line 1\nmy.OddError: words\n\n')
    line = evidence.last_error(paths.script_log)
    assert line == Line("my.OddError: words", "script", "logs/script.log", 3)
    end = ended(1, "script", "FAILED", "the script exited with status 1", last_error=line)
    assert cause(end, []).short == "OddError"


def test_what_nccl_and_ucx_wrote_beside_a_worker_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "n1-0").mkdir()
    shm, ib = TEXTS["nccl-shm"][0], TEXTS["ib-retry"][0]
    (tmp_path / "n1-0/nccl-71.log").write_text(f"n1:71:71 [0] NCCL INFO Channel 00/02\n{shm}\n")
    (tmp_path / "n1-0/ucx-71.log").write_text(f"[n1:71:0] ucp.c:1 UCX  INFO  tcp\n{ib}\n")
    workers._keep_troubles(tmp_path)
    assert capsys.readouterr().err.splitlines() == [shm, ib]


# -- clocks ------------------------------------------------------------------------------------------------------------


def on_two_nodes(shift: float, *, apart: float, texts: tuple[str, str]) -> list[Hit]:
    """Return what n1 wrote, and n2 so many seconds later; n2's clock is ahead by ``shift`` seconds."""
    stamps = (0, apart + shift)
    lines = {f"n{node}": at(stamp, text) for node, stamp, text in zip((1, 2), stamps, texts, strict=True)}
    return [hit for node, line in lines.items() for hit in hits(line, node=node)]


@pytest.mark.parametrize("shift", [-90, 0, 90])
@pytest.mark.parametrize("apart", [-5, 5])
def test_the_clocks_of_nodes_are_taken_into_account(shift: int, apart: int) -> None:
    found = on_two_nodes(shift, apart=apart, texts=(TEXTS["disk-full"][0], TEXTS["memory-error"][0]))
    end = CASCADE._replace(times={"allocated": BASE - 60}, clocks={"n2": (shift, 0.01)})
    first = "disk-full" if apart > 0 else "memory-error"
    judged = cause(end, found)
    assert judged.rule == first
    assert abs(judged.evidence[0].time - (BASE + min(0, apart))) < 0.1  # shown by the first node's clock


def test_lines_of_a_node_far_behind_are_of_this_attempt() -> None:
    late = hits(at(-500, TEXTS["disk-full"][0]), node="n2")
    end = CASCADE._replace(times={"allocated": BASE})
    assert not cause(end, late).known
    assert cause(end._replace(clocks={"n2": (-520, 0.01)}), late).rule == "disk-full"


@pytest.mark.parametrize("apart", [-1.0, 1.0])
def test_what_the_clocks_cannot_order_is_ordered_by_what_it_is(apart: float) -> None:
    """A fault of a node goes before what a program says of it, and that before the end of a process."""
    end = CASCADE._replace(clocks={"n1": (0, 0), "n2": (0, 2.0)})
    names = ("stale-handle", "disk-full", "worker-segfault")
    for first, second in itertools.combinations(names, 2):
        for texts in ((first, second), (second, first)):
            one, other = (TEXTS[name][0] for name in texts)
            assert cause(end, on_two_nodes(0, apart=apart, texts=(one, other))).rule == first
            certain = cause(end, on_two_nodes(0, apart=5, texts=(one, other))).rule
            assert certain == texts[0]


def test_in_one_log_the_order_of_the_lines_counts_whatever_they_are() -> None:
    texts = (TEXTS["worker-segfault"][0], TEXTS["stale-handle"][0])
    for first, second in itertools.permutations(texts):
        assert cause(CASCADE, hits(first, second)).evidence[0].text == first


def test_a_line_without_a_time_was_written_between_those_around_it() -> None:
    (hit,) = hits(at(0, "a"), TEXTS["disk-full"][0], at(60, "b"))
    assert hit.line.time == pytest.approx(BASE, abs=0.1)
    assert hit.when[:2] == (hit.line.time, hit.line.time + 60)
    (hit,) = hits(at(0, "a"), "Fatal Python error: Segmentation fault", at(60, "b"))
    assert hit.line.time == pytest.approx(BASE + 60, abs=0.1)


def test_the_shortest_exchange_tells_another_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """The way there and the way back take so long; this clock is 90 s ahead, and the shortest exchange lies by 0.1 s."""
    now, ways = BASE, iter([(0.5, 2.0), (0.3, 0.1), (3.0, 0.0), (1.0, 1.0), (0.0, 4.0)])
    monkeypatch.setattr(time, "time", lambda: now + 90)
    monkeypatch.setattr(time, "monotonic", lambda: now)

    async def ask() -> float:
        nonlocal now
        there, back = next(ways)
        now += there + back
        return now - back

    ahead, within = asyncio.run(measure_clock(ask))
    assert ahead == pytest.approx(89.9, abs=1e-3)
    assert within == pytest.approx(0.2, abs=1e-3)


# -- a file system that does not answer --------------------------------------------------------------------------------

FROZEN = ended(errors.TIME_LIMIT, "scheduler", "TIMEOUT", "the time limit was reached", times={"script-started": 1.0})


def test_a_file_system_that_does_not_answer_is_the_cause_of_a_time_limit() -> None:
    limit = hits(TEXTS["time-limit"][0], source="job", node="")
    times = {"script-started": 1.0, "script-blocked": 2.0}
    blocked = FROZEN._replace(times=times, first_node=("n3",), blocked_on="/data/a.npy, request_wait_answer")
    found = cause(blocked, limit)
    assert (found.rule, found.nodes, found.retry) == ("frozen", ("n3",), "exclude")
    assert "/data/a.npy" in found.what
    assert cause(blocked._replace(times={**times, "script-unblocked": 3.0}), limit).rule == "time-limit"
    assert "()" not in cause(FROZEN._replace(times=times), limit).what  # as the supervisor asks: by times alone


class Process:
    """A folder like that of a process in /proc, with one thread."""

    def __init__(self, folder: Path) -> None:
        self.thread = folder / "task/7"
        (folder / "fd").mkdir()
        (folder / "fd/5").symlink_to("/data/a.npy")
        self.thread.mkdir(parents=True)
        (self.thread / "syscall").write_text("0 0x5 0x7f 0x10 0 0 0 0x7 0x7\n")
        self.sleeps("request_wait_answer", 3)

    def sleeps(self, function: str, times: int) -> None:
        (self.thread / "wchan").write_text(function)
        (self.thread / "status").write_text(
            f"State:\tS\nvoluntary_ctxt_switches:\t{times}\nnonvoluntary_ctxt_switches:\t0\n"
        )


def test_one_long_wait_for_a_file_system_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    process = Process(tmp_path)
    monkeypatch.setattr(oom_and_hangs, "_READS", {"0"})
    look = oom_and_hangs.FileSystemHang(1)
    look.place = tmp_path
    assert [look.look(now) for now in (0, 10, 19)] == ["", "", ""]
    assert look.look(21) == "/data/a.npy, request_wait_answer"
    process.sleeps("request_wait_answer", 4)  # it was woken in between: the file system is slow
    assert look.look(22) == ""
    process.sleeps("futex_wait_queue", 5)
    assert [look.look(now) for now in (30, 60)] == ["", ""]


def test_a_process_that_has_gone_waits_for_nothing(tmp_path: Path) -> None:
    look = oom_and_hangs.FileSystemHang(1)
    look.place = tmp_path / "gone"
    assert [look.look(now) for now in (0, 60)] == ["", ""]


def test_the_condition_of_a_gpu_assertion_is_in_the_cause() -> None:
    """The error itself does not name it: the line that the GPU printed before does."""
    message = "CUDA error: device-side assert triggered\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1\n"
    printed = hits(TEXTS["device-assert"][0], source="script")
    found = cause(raised(("AcceleratorError", message)), printed)
    assert (found.rule, "`srcIndex < srcSelectDimSize`" in found.what) == ("device-assert", True), found
    assert "CUDA_LAUNCH_BLOCKING=1" in found.remedy
    assert "assertion: usually" in cause(raised(("AcceleratorError", message)), []).what


def write_end(paths: RunPaths, reason: str, *, what: str = "any clause", after: float = 0.0) -> None:
    """Have the agent of n1 write down that a worker ended, where its log ends now."""
    size = paths.log("worker", "n1").stat().st_size
    end = ProcessEnd("n1-0", what, reason, 5, BASE + after, size)
    mark = paths.attempt(0).mark_of("n1")
    mark.parent.mkdir(parents=True, exist_ok=True)
    mark.write_text(json.dumps({"ends": [end._asdict()]}))


LOST = ended(errors.ROLE_LOST, "hpcml", "FAILED", "the workers were lost")


def test_a_worker_that_exited_is_told_with_the_error_in_its_log(paths: RunPaths) -> None:
    """os._exit is proposed only where the log shows no error."""
    log = paths.log("worker", "n1")

    def found(*lines: str) -> Cause:
        log.write_text("".join(f"{line}\n" for line in lines))
        write_end(paths, "worker-exit", what="exit status 5 after only 3.1 s")
        with log.open("a") as file:
            file.write("hpcml: the worker ended, in any words\nRuntimeError: later\n")
        return cause(LOST, evidence.hits(paths, paths.attempt(0), 8))

    exited = found("RuntimeError: PrivateWorker failed to start.", "")
    assert exited.what == "a worker exited with status 5 (RuntimeError: PrivateWorker failed to start.)"
    assert exited.evidence == (
        Line("worker n1-0 ended: exit status 5 after only 3.1 s", "worker", "logs/worker-n1.log", 3, BASE, "n1"),
    )
    assert found("a").what == "a worker exited with status 5"
    # What a program said above it is the cause; what it says below it is not.
    assert found(TEXTS["stub-library"][0], "RuntimeError: PrivateWorker failed to start.").rule == "stub-library"
    with log.open("a") as file:
        file.write(TEXTS["disk-full"][0])
    assert cause(LOST, evidence.hits(paths, paths.attempt(0), 8)).rule == "stub-library"


@pytest.mark.parametrize(("reason", "rule"), [
    ("worker-memory", "worker-memory"), ("worker-oom", "worker-oom"), ("worker-segfault", "worker-segfault"),
    ("worker-abort", "worker-abort"), ("worker-bus", "worker-bus"), ("worker-killed", ""), ("worker-", ""),
    ("rank-exit", ""), ("disk-full", ""), ("of a newer version", ""),
])  # fmt: skip
def test_the_end_of_a_worker_is_a_cause_by_its_fields(paths: RunPaths, reason: str, rule: str) -> None:
    paths.log("worker", "n1").write_text("hpcml: worker n1-0 ended: exit status 5.\n")  # a text of hpcml's is none
    assert evidence.hits(paths, paths.attempt(0), 8) == []
    write_end(paths, reason)
    assert cause(LOST, evidence.hits(paths, paths.attempt(0), 8)).rule == rule
    for damaged in ("", "[]", '{"ends": 5}', '{"ends": [5, {}, {"reason": 3}]}'):
        paths.attempt(0).mark_of("n1").write_text(damaged)
        assert evidence.hits(paths, paths.attempt(0), 8) == []


def test_the_end_of_a_worker_has_the_time_of_the_first_node_s_clock(paths: RunPaths) -> None:
    """By its own clock, which is 20 s ahead, the worker of n1 ended after the disk of n2 was full."""
    paths.log("worker", "n1").write_text("a\n")
    paths.log("worker", "n2").write_text(f"{at(0, TEXTS['disk-full'][0])}\n")
    write_end(paths, "worker-exit", after=15)
    found = evidence.hits(paths, paths.attempt(0), 8)
    assert cause(LOST._replace(clocks={"n1": (0, 0.1), "n2": (0, 0.1)}), found).rule == "disk-full"
    assert cause(LOST._replace(clocks={"n1": (20, 0.1), "n2": (0, 0.1)}), found).rule == "worker-exit"


def test_a_warning_of_hpcml_itself_is_never_the_cause() -> None:
    sampler = "hpcml: warning: n1: the GPUs are not sampled: ModuleNotFoundError: No module named 'pynvml'."
    lost = ended(errors.WORKERS_NEVER_CAME, "hpcml", "FAILED", "n1: GPU workers need dask-cuda, which is not installed")
    assert "n1: GPU workers need dask-cuda" in cause(lost, hits(sampler)).what


def test_a_script_without_its_arguments_is_told_to_get_some() -> None:
    error = raised(("IndexError", "list index out of range"))
    found = cause(error._replace(error={**error.error, "code": "data = sys.argv[1]"}), [])
    assert (found.short, "-- ARGUMENTS" in found.remedy) == ("arguments missing", True), found
    assert "too few arguments" not in cause(error, []).what
    assert with_run(found.remedy, "r1") == "Write the arguments after the script: hpcml rerun r1 -- ARGUMENTS."


def test_an_xid_has_words_where_a_rule_knows_it() -> None:
    """43 is what NVIDIA's driver reports after an error of a program, and 1 is no rule's."""
    assert rules.of_xid(79) == "a GPU stopped responding"
    assert "the GPU driver stopped a program" in rules.of_xid(43)
    assert rules.of_xid(1) == ""


_SLOW = (  # texts of one line, and of short lines, for which a pattern without limits takes a minute
    "GurobiError: ", "gloo/transport/tcp/x", "PMIX ERROR: a in file acli", "OPAL ERROR: a in file ",
    "fusermount: anot permit", "could not open image a: a", "error: execve(): a: No such file or direct",
    ".cu:1: block: [a] Assertion `a", "DO NOT MATCH THE HASHES\n aa:a",
    "hpcml: the module a comes from a, by PYTHONPATH, and has", "[rank0]: a\n",
)  # fmt: skip


@pytest.mark.parametrize("text", _SLOW)
def test_a_text_that_is_made_to_be_slow_is_not(text: str) -> None:
    text = (text * (evidence.HEAD // len(text) * 6))[: evidence.HEAD + evidence.TAIL]
    text = f"[rank0]: Traceback (most recent call last):\n[rank0]: aError: a\n{text}"
    began = time.process_time()
    evidence.hits_in(evidence.Piece(text, 1), "script")
    last_output.child_error(evidence.Piece(text, 1))
    for rule in rules.RULES:
        re.findall(rule.pattern, text, re.MULTILINE)
    assert time.process_time() - began < 20


@pytest.mark.parametrize("rank", ["", "[rank0]: "])
def test_an_error_in_a_line_without_an_end_is_told_in_some_words(rank: str) -> None:
    long = "x" * 100_000
    lines = ["Traceback (most recent call last):", f'  File "/{long}.py", line 3, in f', f"lib.{long}.OddError: {long}"]
    piece = evidence.Piece("".join(f"{rank}{line}\n" for line in [*lines, "the end"]), 1)
    error = last_output.child_error(piece) if rank else last_output.printed_error(piece)
    assert error is None or len(error.words.text) + len(error.place) < 1000
    lines[2] = f"OddError: {long}"
    piece = evidence.Piece("".join(f"{rank}{line}\n" for line in [*lines, "the end"]), 1)
    error = last_output.child_error(piece) if rank else last_output.printed_error(piece)
    assert error
    assert len(error.words.text) + len(error.place) < 1000
