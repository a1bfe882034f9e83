"""What `hpcml why` makes of a program's own output: of ranks that fail, of crashes, of what torchrun prints."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from failure_texts import TEXTS
from hpcml import errors
from hpcml.failures import evidence, judgement
from hpcml.failures.cause import Case, Cause
from hpcml.failures.end import End, parse
from hpcml.kind import Kind
from hpcml.kinds.dask import KIND as DASK
from hpcml.kinds.ranks import KIND
from hpcml.paths import RunPaths
from hpcml.typed_json import DamagedError
from hpcml.workload_forms import Form
from tests.said import in_order, says

OWN = "rank-n2-2.log"  # of the rank that failed first
PYTHON_ABORTS = (
    'Fatal Python error: Aborted\n\nCurrent thread 0x1 (most recent call first):\n  File "/x/train.py", line 9 in f\n'
)
WATCHDOG = (
    "[rank2]:[E1129 01:12:52.8 ProcessGroupNCCL.cpp:689] [Rank 2] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=2, OpType=ALLREDUCE, NumelIn=4, Timeout(ms)=8000) ran for 8009 milliseconds before timing out."
)
SLURM_OOM = (
    "slurmstepd-n2: error: Detected 1 oom_kill event in StepId=7.1. Some of the step tasks have been OOM Killed."
)


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    (tmp_path / "logs").mkdir()
    for name in ("script.log", "job.log", "rank-n1.log", "rank-n2.log"):
        (tmp_path / "logs" / name).touch()
    return RunPaths(tmp_path)


def end_of(status: int, message: str = "", **facts: Any) -> End:
    return End(status, "script", "script", message, rank=2, node="n2", log=OWN, **facts)


def why(paths: RunPaths, end: End, *chain: tuple[str, str], form: Form = Form.SCRIPT, most: int = 128) -> Cause:
    error = {"chain": [{"type": name, "message": text} for name, text in chain]} if chain else {}
    case = judgement.with_files(paths, paths.attempt(0), Case(end, KIND, form=form))
    judged = judgement.judge(
        case._replace(error=error), evidence.hits(paths, paths.attempt(0), most, end.log, end.log_begin)
    )
    assert judged is not None
    return judged


def printed(paths: RunPaths, status: int, text: str, form: Form = Form.SCRIPT) -> Cause:
    """Return the cause where the rank that failed first printed a text and ended with a status."""
    (paths.logs / OWN).write_text(text)
    return why(paths, end_of(status), form=form)


# -- which rank --------------------------------------------------------------------------------------------------------


def test_the_rank_its_node_and_its_log_are_named(paths: RunPaths, subtests: pytest.Subtests) -> None:
    (paths.logs / OWN).write_text("Traceback (most recent call last):\nValueError: bad batch 17\n")
    for end, chain, words in (
        (end_of(1), (("ValueError", "bad batch 17"),), "rank 2 on n2 raised ValueError: bad batch 17"),
        (end_of(1), (), "rank 2 on n2 printed ValueError: bad batch 17"),
        (end_of(137), (), says("rank 2 on n2 was killed by SIGKILL")),
        (end_of(5), (("SystemExit", "no data"),), "rank 2 on n2 exited: no data"),
    ):
        with subtests.test(str(words)):
            found = why(paths, end, *chain)
            assert (found.what, found.ranks, found.nodes) == (words, (2,), ("n2",))
            assert {line.file for line in found.evidence} <= {f"logs/{OWN}"}
            assert "hpcml logs RUN rank:2" in found.remedy or "hpcml logs" not in found.remedy


def test_a_known_error_of_a_rank_counts_once(paths: RunPaths) -> None:
    (paths.logs / OWN).write_text(f"{TEXTS['gpu-memory'][1]}\n{TEXTS['gpu-memory'][1]}\n")
    found = why(paths, end_of(1), ("OutOfMemoryError", TEXTS["gpu-memory"][1].partition(": ")[2]))
    assert (found.rule, found.occurrences) == ("gpu-memory", 1)
    assert found.sentence == "A GPU's memory is full (rank 2 on n2)."


def test_of_many_ranks_three_are_named_and_the_rest_counted(paths: RunPaths) -> None:
    for rank in range(1, 1000):
        (paths.logs / f"rank-n{2 - rank % 2}-{rank}.log").write_text(TEXTS["gpu-memory"][1])
    found = why(paths, end_of(1))
    assert (found.ranks, found.occurrences) == ((2, 1, 3), 999)
    assert found.sentence.endswith("a GPU's memory is full (also ranks 1, 3 and 996 more).")
    (paths.logs / OWN).write_text("")
    found = why(
        paths, end_of(1), ("DistBackendError", "ncclRemoteError: remote process exited or there was a network error")
    )
    assert found.sentence == "A GPU's memory is full (ranks 1, 3, 4 and 995 more)."


def test_the_log_of_the_rank_that_failed_is_read_among_very_many(paths: RunPaths) -> None:
    for rank in range(3, 40):  # together they are too long
        (paths.logs / f"rank-n1-{rank}.log").write_text("x\n" * 1200)
    (paths.logs / OWN).write_text(f"{WATCHDOG}\n" + "y\n" * 10_000 + PYTHON_ABORTS)
    assert why(paths, end_of(134), most=1).rule == "collective-timeout"


def test_another_rank_began_it(paths: RunPaths) -> None:
    (paths.logs / "script.log").write_text(f"{TEXTS['ecc'][0]}\n")
    found = why(
        paths, end_of(1), ("DistBackendError", "ncclRemoteError: remote process exited or there was a network error")
    )
    assert (found.rule, found.ranks) == ("ecc", (0,))
    assert found.sentence == "A GPU's memory is faulty (ECC) (rank 0)."


def test_the_error_of_another_rank_is_the_cause_of_a_lost_connection(paths: RunPaths) -> None:
    """The rank that loses its connection may have ended before the one that raised."""
    lost = ("RuntimeError", "[gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.1]:7")
    assert not why(paths, end_of(1), lost).known
    folder = paths.attempt(0).directory
    folder.mkdir(parents=True)
    (paths.logs / "rank-n1-1.log").touch()
    for rank, (name, text), when in ((3, lost, 5), (1, ("ValueError", "bad batch 17"), 7), (0, ("KeyError", "'x'"), 9)):
        path = folder / f"script-error-{rank}.json"
        path.write_text(json.dumps({"file": "/x/a.py", "line": 7, "chain": [{"type": name, "message": text}]}))
        os.utime(path, (when, when))
    found = why(paths, end_of(1), lost)
    assert (found.what, found.ranks, found.known) == ("rank 1 on n1 raised ValueError: bad batch 17", (1,), True)
    assert found.evidence[0][:3] == ("ValueError: bad batch 17 (/x/a.py, line 7)", "rank", "logs/rank-n1-1.log")
    assert "Connection closed by peer" in found.followed[0].text
    assert why(paths, end_of(1), ("TypeError", "own")).what == "rank 2 on n2 raised TypeError: own"
    (folder / "script-error-1.json").write_text("{")
    assert why(paths, end_of(1), lost).what == "rank 0 raised KeyError: 'x'"


def test_a_rank_that_ended_well_before_the_others_is_the_cause_of_a_lost_connection(paths: RunPaths) -> None:
    lost = ("RuntimeError", "[gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.3.12]:41873")
    nodes = paths.attempt(0).nodes
    nodes.mkdir(parents=True)
    (nodes / "n2.json").write_text(json.dumps({"retired": []}))
    (nodes / "n1.json").write_text(json.dumps({"retired": 1}))
    assert not why(paths, end_of(1), lost).known
    (paths.logs / "rank-n1-1.log").write_text("epoch 1\nno more batches\n")
    (nodes / "n1.json").write_text(json.dumps({"retired": ["1", "x"]}))
    found = why(paths, end_of(1), lost)
    assert "rank 1 on n1 ended with status 0 while" in found.what
    assert (found.rule, found.known, found.ranks, found.nodes) == ("rank-left", True, (1,), ("n1",))
    assert found.evidence[0][:4] == ("no more batches", "rank", "logs/rank-n1-1.log", 2)
    assert found.remedy.endswith("hpcml logs RUN rank:1.")
    assert "Connection closed by peer" in found.followed[0].text
    (nodes / "n2.json").write_text(json.dumps({"retired": ["3"]}))
    assert "ranks 1, 3 ended with status 0 while" in why(paths, end_of(1), lost).what
    assert why(paths, end_of(1), lost).evidence[1].text == "(no output)"
    assert why(paths, end_of(1), ("TypeError", "own")).what == "rank 2 on n2 raised TypeError: own"


def test_a_crash_that_another_rank_began_is_told_by_that_rank(paths: RunPaths) -> None:
    assert "task:0" in printed(paths, 134, f"{JAX}\n{PYTHON_ABORTS}").what
    (paths.logs / "script.log").write_text(f"{TEXTS['ecc'][0]}\n")
    assert printed(paths, 134, f"{JAX}\n{PYTHON_ABORTS}").rule == "ecc"


def test_no_line_of_hpcml_is_told_as_the_program_s(paths: RunPaths) -> None:
    found = printed(paths, 5, "step 3\nhpcml: /runs/r/attempts/0/script-error-2.json cannot be written\n")
    assert re.search(in_order("2 on n2 exited with status 5", "step 3"), found.what)
    assert printed(paths, 5, "hpcml: x\n").what == "rank 2 on n2 exited with status 5"


def test_the_end_keeps_rank_node_and_log() -> None:
    end = end_of(1, ended_as="FAILED")
    assert parse(end.as_json()) == end
    assert parse({**end.as_json(), "rank": None}).rank is None
    assert parse({name: value for name, value in end.as_json().items() if name != "rank"}).rank is None
    for wrong in ("2", 2.0, True):
        with pytest.raises(DamagedError):
            parse({**end.as_json(), "rank": wrong})


@pytest.mark.parametrize("kind", [KIND, DASK])
def test_a_lost_node_is_left_out_of_the_next_run(kind: Kind) -> None:
    line = TEXTS["stale-handle"][0]  # which the end quotes, and no log has
    end = End(errors.ROLE_LOST, "script", "hpcml", "n3 has not answered for 600 s", quote=(line,), node="n3")
    found = judgement.judge(Case(end, kind), [])
    assert found is not None
    assert (found.nodes, found.retry) == (("n3",), "exclude")


# -- what it said before -----------------------------------------------------------------------------------------------


NCCL_HANG = "[rank1]:[F ProcessGroupNCCL.cpp:1417] Terminating the process after attempting to dump debug info, due to ProcessGroupNCCL watchdog hang."
JAX = (
    "E client.h:77] Terminating process because the JAX distributed service detected fatal errors. The following tasks are "
    "unhealthy (stopped sending heartbeats): /job:jax_worker/replica:0/task:0"
)
OPENBLAS = "OpenBLAS blas_thread_init: pthread_create failed for thread 31 of 64: Resource temporarily unavailable"
CRASHES = [
    (134, f"step 3\n{NCCL_HANG}\n{PYTHON_ABORTS}", "watchdog hang"),
    (134, f"{JAX}\n{PYTHON_ABORTS}", "task:0"),
    (139, f"{OPENBLAS}\n{PYTHON_ABORTS.replace('Aborted', 'Segmentation fault')}", "Resource temporarily unavailable"),
    (134, "/src/Loss.cu:250: kernel: block: [0,0,0], thread: [3,0,0] Assertion `t >= 0 && t < n_classes` failed.\nterminate "
     f"called after throwing an instance of 'c10::Error'\n  what():  CUDA error: device-side assert triggered\n{PYTHON_ABORTS}",
     "Assertion `t >= 0 && t < n_classes` failed"),
    (134, f"terminate called after throwing an instance of 'std::runtime_error'\n  what():  no such mesh\n{PYTHON_ABORTS}", "no such mesh"),
    (139, "[n1:71:0:71] ucp_worker.c:12 Fatal: endpoint lost\n[n1:71:0:71] Caught signal 11 (Segmentation fault)\n==== backtrace ====\n",
     "endpoint lost"),
    (136, "error: division of a mesh by zero\n", "division of a mesh by zero"),
    (134, f"step 2\ndouble free or corruption (!prev)\n{PYTHON_ABORTS}", "double free"),
    (134, "F1129 01:12:52.1 812 trainer.cc:77] Check failed: n == m (3 vs. 4)\n*** Check failure stack trace: ***\n    @ 0x7f f()\n",
     "n == m"),
    (139, "Fatal Python error: _Py_CheckRecursiveCall: Cannot recover from stack overflow.\nPython runtime state: initialized\n",
     "stack overflow"),
]  # fmt: skip


@pytest.mark.parametrize(("status", "text", "words"), CRASHES)
def test_what_a_program_said_before_it_crashed_is_quoted(paths: RunPaths, status: int, text: str, words: str) -> None:
    found = printed(paths, status, text)
    assert found.what.startswith("rank 2 on n2 was killed by SIG")
    assert words in found.what or found.rule != "signal", "a rule has a sentence of its own"
    assert words in found.evidence[0].text
    assert (found.known, found.occurrences) == (True, 1)
    assert "Try another version" not in found.remedy


def test_a_crash_that_nothing_explains_is_told_by_its_place(paths: RunPaths) -> None:
    found = printed(paths, 134, f"step 3\n{PYTHON_ABORTS}")
    assert found.what.startswith(
        "rank 2 on n2 was killed by SIGABRT: compiled code aborted the process (/x/train.py, line 9"
    )
    assert (found.rule, found.occurrences) == ("abort", 1)


def test_the_watchdog_s_line_is_the_cause_and_not_the_signal(paths: RunPaths) -> None:
    frames = "".join(f"frame #{number}: c10d::run() + 0x1 (0x7f in libtorch_cuda.so)\n" for number in range(80))
    found = printed(paths, 134, f"{WATCHDOG}\n{frames}terminate called after throwing an instance of 'c10::DistBackendError'\n"
                    f"  what():  [PG ID 0] {WATCHDOG}\n{PYTHON_ABORTS}")  # fmt: skip
    assert found.rule == "collective-timeout"
    assert "2 on n2 waited for it (ALLREDUCE, SeqNum=2)" in found.what
    assert (found.occurrences, found.evidence[0].number) == (1, 1)


def test_a_rank_that_waits_is_named_while_the_run_lives(paths: RunPaths) -> None:
    assert judgement.waited(evidence.hits(paths, paths.attempt(0), 8)) is None
    (paths.logs / OWN).write_text(f"{WATCHDOG}\n")
    found = judgement.waited(evidence.hits(paths, paths.attempt(0), 8))
    assert found is not None
    assert "rank 2 on n2 waited for it (ALLREDUCE, SeqNum=2)" in found.what


# -- programs that end by a status -------------------------------------------------------------------------------------


def test_a_known_message_near_the_end_is_the_cause_of_a_status(paths: RunPaths, subtests: pytest.Subtests) -> None:
    missing = (
        "./prog: error while loading shared libraries: libcudart.so.12: cannot open shared object file: No such file"
    )
    for status, text, rule in (
        (1, f"{TEXTS['no-pmi'][0]}\n[n1:00856] Local abort before MPI_INIT completed\n", "no-pmi"),
        (1, "CUDA error: no kernel image is available for execution on the device\n", "no-kernel"),
        (127, f"{missing}\n", "shared-library"),
        (1, f"{TEXTS['glibcxx'][0]}\n", "glibcxx"),
    ):
        for form in (Form.SCRIPT, Form.PROGRAM):
            with subtests.test(rule, form=form.name):
                found = printed(paths, status, text, form)
                assert found.rule == rule
                assert found.what.startswith(f"rank 2 on n2 exited with status {status}: ")


MPI_ERROR = (
    "[n1:812] *** An error occurred in MPI_Recv\n[n1:812] *** reported by process [123,2]\n[n1:812] *** on communicator "
    "MPI_COMM_WORLD\n[n1:812] *** MPI_ERR_TRUNCATE: message truncated\n[n1:812] *** MPI_ERRORS_ARE_FATAL (processes in this "
    "communicator will now abort,\n[n1:812] ***    and potentially your MPI job)\n"
)
TRACEBACK = 'Traceback (most recent call last):\n  File "/x/t.py", line 5, in <module>\n    f()\n'
EXITS = [
    (15, MPI_ERROR, "the last line of its output: [n1:812] *** MPI_ERR_TRUNCATE: message truncated"),
    (1, f"{TRACEBACK}ZeroDivisionError: by zero\n\nSet the environment variable HYDRA_FULL_ERROR=1 for a complete stack trace.\n",
     "printed ZeroDivisionError: by zero (/x/t.py, line 5)"),
    (1, f"{TRACEBACK}ValueError: bad\n[W1129 ProcessGroupNCCL.cpp:1496] Warning: destroy_process_group() was not called\n",
     "printed ValueError: bad (/x/t.py, line 5)"),
    (2, "Fortran runtime error: Cannot open file 'in.dat'\n\nError termination. Backtrace:\n#0  0x7f in ???\n\tat s.f90:12\n",
     "it printed: Fortran runtime error: Cannot open file 'in.dat'"),
    (1, "ERROR: LoadError: UndefVarError: `foo` not defined\nStacktrace:\n [1] top-level scope\n   @ ~/a.jl:3\n",
     "it printed: ERROR: LoadError: UndefVarError"),
    (1, "[rank2]: " + TRACEBACK.replace("\n", "\n[rank2]: ") + "ValueError: bad\n", "rank 2 on n2 raised ValueError: bad (/x/t.py, line 5)"),
    (127, "./x.sh: line 3: gmx_mpi: command not found\n", "exited with status 127: ./x.sh: line 3: gmx_mpi: command not found"),
]  # fmt: skip


@pytest.mark.parametrize(("status", "text", "words"), EXITS)
def test_the_line_that_says_why_is_told_of_a_status(paths: RunPaths, status: int, text: str, words: str) -> None:
    found = printed(paths, status, text, Form.PROGRAM)
    assert words in found.what
    assert found.what.startswith("rank 2 on n2 ")


def test_a_signal_of_the_process_itself_has_no_sender(paths: RunPaths) -> None:
    found = printed(paths, 136, "\nProgram received signal SIGFPE\n\nBacktrace for this error:\n#0 0x7f\n")
    assert (found.known, found.what) == (
        True,
        says("rank 2 on n2 was killed by SIGFPE"),
    )
    assert not printed(paths, 143, "step 3\n").known


def test_no_next_step_speaks_of_lines_that_are_not_there(paths: RunPaths, subtests: pytest.Subtests) -> None:
    """A program of the user's own has no library that Python's stack would name."""
    for status in (139, 134):
        with subtests.test(str(status)):
            found = printed(
                paths, status, "begin\nrun.sh: line 2: 26317 Segmentation fault      ./prog\n", Form.PROGRAM
            )
            assert "before the crash: hpcml logs RUN rank:2." in found.remedy


def test_the_status_of_timeout_is_explained_for_a_program(paths: RunPaths) -> None:
    words = "The command timeout ends with status 124 when its time is over. "
    assert printed(paths, 124, "iteration 1\n", Form.PROGRAM).remedy.startswith(words)
    assert not printed(paths, 124, "iteration 1\n").remedy.startswith(words)


def test_a_message_long_before_the_end_is_no_cause(paths: RunPaths) -> None:
    text = f"{TEXTS['disk-full'][0]}\n" + "step\n" * 60 + "usage: x\n"
    assert printed(paths, 2, text).what.endswith("the last line of its output: usage: x")


def test_the_error_of_a_thread_is_told_with_the_one_that_ended_the_script(paths: RunPaths) -> None:
    thread = f"Exception in thread prefetch:\n{TRACEBACK}OSError: [Errno 5] Input/output error: '/scratch/7.tar'\n"
    (paths.logs / OWN).write_text(f"step 1\n{thread}{TRACEBACK}_queue.Empty\n")
    found = why(paths, end_of(1), ("Empty", ""))
    told = "OSError: [Errno 5] Input/output error: '/scratch/7.tar'"
    assert found.what == f"rank 2 on n2 raised Empty; before, its thread prefetch raised {told}"
    assert [(line.text, line.number) for line in found.evidence] == [("Empty", 0), (told, 6)]
    (paths.logs / OWN).write_text(f"{thread}" + "step\n" * 60 + f"{TRACEBACK}_queue.Empty\n")
    assert why(paths, end_of(1), ("Empty", "")).what == "rank 2 on n2 raised Empty"


def test_a_module_command_that_failed_is_told_with_the_package_that_is_missing(paths: RunPaths) -> None:
    command = "run.sh: line 1: module: command not found"
    found = printed(paths, 1, f"{command}\n{TRACEBACK}ModuleNotFoundError: No module named 'mpi4py'\n", Form.PROGRAM)
    assert found.rule == "no-module"
    assert found.what.endswith(f"could not import mpi4py; before, a command failed: {command}")
    assert found.remedy.startswith("Correct that command first. If the module is")
    assert found.evidence[1].text == command
    found = printed(paths, 1, f"{command}\n{TRACEBACK}MemoryError\n", Form.PROGRAM)
    assert "module" not in found.what


def test_a_script_that_was_a_notebook(paths: RunPaths) -> None:
    found = why(paths, end_of(1), ("NameError", "name 'get_ipython' is not defined"))
    assert ".ipynb" in found.remedy


LINKED = "\nThe above exception was the direct cause of the following exception:\n\n"  # as Python prints it


def test_what_a_command_printed_is_told_with_the_error_that_it_failed(paths: RunPaths) -> None:
    error = "Command '['samtools']' returned non-zero exit status 1."
    said = "[E::hts_open_format] Failed to open file sample7.bam : No such file or directory"
    text = f"{said}\n{TRACEBACK}subprocess.CalledProcessError: {error}\n"
    (paths.logs / OWN).write_text(text)
    for found in (why(paths, end_of(1), ("CalledProcessError", error)), printed(paths, 1, text, Form.PROGRAM)):
        assert found.what.endswith(f"CalledProcessError: {error[:-1]}; before that it printed: {said}")
        assert (found.evidence[1].text, found.evidence[1].number) == (said, 1)
    (paths.logs / OWN).write_text(f"{text}{LINKED}{TRACEBACK}ValueError: no table\n")
    found = why(paths, end_of(1), ("ValueError", "no table"), ("CalledProcessError", error))
    assert found.what.endswith(f"before that it printed: {said}")
    (paths.logs / OWN).write_text(text.replace(said, "step 3"))
    assert "step 3" not in why(paths, end_of(1), ("CalledProcessError", error)).what
    (paths.logs / OWN).write_text(text)
    assert said not in why(paths, end_of(1), ("ValueError", "bad")).what


def test_what_an_earlier_attempt_printed_is_no_cause(paths: RunPaths, subtests: pytest.Subtests) -> None:
    before = f"{WATCHDOG}\n{TEXTS['disk-full'][0]}\n{TRACEBACK}ValueError: bad\n"
    for status, words in (
        (5, "rank 2 on n2 exited with status 5"),
        (134, "SIGABRT: compiled code aborted the process"),
    ):
        with subtests.test(str(words)):
            (paths.logs / OWN).write_text(before)
            found = why(paths, end_of(status, log_begin=len(before)))
            assert words in found.what
            assert found.what.endswith(words)
            (paths.logs / OWN).write_text(f"{before}usage: x\n")
            found = why(paths, end_of(2, log_begin=len(before)))
            assert found.what.endswith("the last line of its output: usage: x")
    (paths.logs / OWN).write_text(f"{before}{TEXTS['no-pmi'][0]}\n")
    found = why(paths, end_of(1, log_begin=len(before)))
    assert (found.rule, found.evidence[0].number) == ("no-pmi", before.count("\n") + 1)


def test_a_program_that_is_not_there(paths: RunPaths) -> None:
    assert printed(paths, 127, "sh: 1: ./prog: not found\n", Form.PROGRAM).short == "program cannot be started"
    for said, words in (("./x.sh: line 2: gmx: command not found", "PATH"), ("x: line 3: exec: gmx: not found", "PATH"),
                        ("sh: 1: ./prog: not found", "file system"), ("config: run.toml: not found", "file system")):  # fmt: skip
        assert words in printed(paths, 127, f"{said}\n", Form.PROGRAM).remedy


def test_why_a_rank_could_not_be_started_is_told(paths: RunPaths) -> None:
    """Its own record says it, though the status is that of a program that is not there."""
    attempt = paths.attempt(0)
    attempt.directory.mkdir(parents=True)
    hindered = {"reason": "Exec format error: /x/prog", "hint": "Build it."}
    for path in (attempt.script_error, attempt.directory / "script-error-1.json"):
        path.write_text(json.dumps({"chain": [], "not_started": hindered}))
    (paths.logs / OWN).write_text("hpcml: rank 2 could not be started: Exec format error: /x/prog\n")
    case = judgement.with_files(paths, attempt, Case(end_of(127), KIND, form=Form.PROGRAM))
    assert case.others == []
    found = judgement.judge(case, [])
    assert found is not None
    assert (found.what, found.remedy) == (says("rank 2 on n2", "be started: Exec format error: /x/prog"), "Build it.")


@pytest.mark.parametrize("text", [
    "no mesh\n" + "=" * 60 + "\n", "no mesh\nCompile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n\n",
    "no mesh\n*** MPI_ERRORS_ARE_FATAL (processes in this communicator will now abort,\n***    and potentially your MPI job)\n",
    "no mesh\nNOTE: invoking MPI_ABORT causes Open MPI to kill all MPI processes.\nYou may or may not see output from other\n----\n",
])  # fmt: skip
def test_a_last_line_that_says_nothing_is_passed_over(paths: RunPaths, text: str) -> None:
    assert printed(paths, 1, text).what.endswith("the last line of its output: no mesh")


def test_the_status_of_an_mpirun_that_starts_nothing_is_no_signal(paths: RunPaths) -> None:
    found = printed(paths, 132, f"{TEXTS['mpi-start'][0]}\n2 total processes failed to start\n", Form.PROGRAM)
    assert (found.rule, "SIGILL" in found.what) == ("mpi-start", False)


NO_MPI4PY = ("/env/bin/python: No module named mpi4py", f"{TRACEBACK}ModuleNotFoundError: No module named 'mpi4py'")
FOOTER = "mpirun detected that one or more processes exited with non-zero status:\n\n  Exit code:    1\n"
NO_MAIN = "/env/bin/python: No module named tools.__main__; 'tools' is a package and cannot be directly executed\n"


def test_a_module_that_python_lacks_is_the_cause_of_what_mpirun_ends_with(paths: RunPaths) -> None:
    for said in NO_MPI4PY:
        found = printed(paths, 1, f"{said}\n" * 4 + FOOTER, Form.PROGRAM)
        assert (found.rule, found.short) == ("no-module", "module mpi4py missing")
    assert printed(paths, 1, NO_MAIN, Form.PROGRAM).rule != "no-module"


def test_a_traceback_before_mpi_abort_is_the_cause(paths: RunPaths) -> None:
    """mpi4py calls MPI_Abort after an uncaught error; a program that calls it has no traceback."""
    abort = "MPI_ABORT was invoked on rank 1 in communicator MPI_COMM_WORLD\nwith errorcode 1.\n"
    found = printed(paths, 1, f"{TRACEBACK}RuntimeError: bad cell\n{abort}", Form.PROGRAM)
    assert (found.short, [line.text for line in found.followed]) == ("RuntimeError", [abort.partition("\n")[0]])
    assert printed(paths, 1, f"bad cell\n{abort}", Form.PROGRAM).rule == "mpi-abort"


# -- torchrun ----------------------------------------------------------------------------------------------------------


def torchrun(children: str, root: str = "rank      : 0 (local_rank: 0)\n  exitcode  : 1 (pid: 2674)") -> str:
    line = "=" * 60
    return (
        f"{children}Traceback (most recent call last):\n  File \"/env/bin/torchrun\", line 10, in <module>\n    sys.exit(main())\n"
        f"torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n{line}\n/x/train.py FAILED\n{'-' * 60}\n"
        f"Failures:\n  <NO_OTHER_FAILURES>\nRoot Cause (first observed failure):\n[0]:\n  time      : now\n  {root}\n"
        f"  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html\n{line}\n"
    )  # fmt: skip


def traceback(rank: int, *error: str) -> str:
    text = f'Traceback (most recent call last):\n  File "/x/train.py", line {rank + 7}, in <module>\n    work()\n'
    return "".join(f"[rank{rank}]: {line}\n" for line in (text + "\n".join(error)).splitlines())


def test_what_torchrun_s_ranks_raised_is_the_cause(paths: RunPaths) -> None:
    found = printed(
        paths, 1, torchrun(traceback(1, "ConnectionError: lost") + traceback(0, "ValueError: empty")), Form.PROGRAM
    )
    assert found.what == "torchrun's rank 0 (in rank 2 on n2) raised ValueError: empty (/x/train.py, line 7)"
    assert found.evidence[0].number == 8
    duplicate = traceback(1, "torch.distributed.DistBackendError: NCCL error in: NCCLUtils.cpp:93, invalid usage",
                          "ncclInvalidUsage: This usually reflects invalid usage of NCCL library.", "Last error:",
                          "Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 60")  # fmt: skip
    found = printed(paths, 1, torchrun(duplicate), Form.PROGRAM)
    assert (found.rule, found.what) == (
        "nccl-same-gpu", says("torchrun's rank 1 (in rank 2 on n2)", "failed: two ranks use the same GPU"))  # fmt: skip
    assert found.evidence[0].text.startswith("Duplicate GPU detected")


def test_torchrun_s_rank_without_a_traceback(paths: RunPaths) -> None:
    plain = traceback(0, "ValueError: empty").replace("[rank0]: ", "")
    assert "rank 0 (in rank 2 on n2) raised ValueError: empty" in printed(paths, 1, torchrun(plain)).what
    killed = torchrun("", "rank      : 3 (local_rank: 1)\n  exitcode  : -9 (pid: 7)").replace(
        "To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html",
        "Signal 9 (SIGKILL) received by PID 7",
    )
    assert printed(paths, 1, killed).what == "torchrun's rank 3 (in rank 2 on n2) was ended by Signal 9 (SIGKILL)"
    (paths.logs / "rank-n2.log").write_text(SLURM_OOM)
    assert printed(paths, 1, killed).rule == "oom-kill"


# -- memory ------------------------------------------------------------------------------------------------------------


CHILDREN = [
    ("CalledProcessError", "Command '['./tool']' died with <Signals.SIGKILL: 9>."),
    ("RuntimeError", "DataLoader worker (pid 71) is killed by signal: Killed. "),
    (
        "BrokenProcessPool",
        "A process in the process pool was terminated abruptly while the future was running or pending.",
    ),
    ("ProcessExitedException", "process 1 terminated with signal SIGKILL"),
    ("TerminatedWorkerError", "A worker process managed by the executor was unexpectedly terminated."),
]


@pytest.mark.parametrize(("name", "message"), CHILDREN)
def test_a_child_that_the_kernel_killed_is_out_of_memory(paths: RunPaths, name: str, message: str) -> None:
    assert why(paths, end_of(1), (name, message)).rule != "oom-kill"
    (paths.logs / "job.log").write_text(f"{SLURM_OOM}\nsrun: error: n2: task 0: Out Of Memory\n")
    found = why(paths, end_of(1), (name, message))
    assert (found.rule, found.retry, found.known) == ("oom-kill", "memory", True)
    assert "a process that rank 2 on n2 started" in found.what
    assert message[:20] in found.evidence[0].text
    assert found.evidence[1].file == "logs/job.log"
    assert why(paths, end_of(1), ("ValueError", "bad")).rule == "script-error"


def test_a_shell_s_child_that_the_kernel_killed_is_out_of_memory(paths: RunPaths) -> None:
    (paths.logs / "job.log").write_text(SLURM_OOM)
    assert printed(paths, 1, "./x.sh: line 3:  812 Killed                  ./tool\n", Form.PROGRAM).rule == "oom-kill"
    assert printed(paths, 1, "usage: x\n", Form.PROGRAM).rule == "exit"


def test_a_rank_s_memory_needs_fewer_ranks_and_not_more_nodes(paths: RunPaths) -> None:
    end = end_of(137, "rank 2 on n2 was killed", ended_as="OUT_OF_MEMORY")
    (paths.logs / "job.log").write_text(f"{SLURM_OOM}\nsrun: error: n2: task 0: Out Of Memory\n")
    found = why(paths, end)
    assert "rank 2 on n2 was killed" in found.what
    assert (found.ranks, found.nodes, found.occurrences) == ((2,), ("n2",), 1)
    assert found.evidence
    assert not any("task 0" in line.text for line in found.evidence), "Slurm's task is a node, and no rank"
    assert "fewer ranks on each node (--ranks)." in found.remedy
    assert "fewer ranks" in why(paths, end_of(1), ("MemoryError", "Unable to allocate 7 GiB")).remedy


def test_the_memory_is_a_fact_and_no_words() -> None:
    for words in ("limit was reached (out of memory)", "killed"):
        end = End(137, "script", "script", f"rank 3 on n2 was killed: the node's memory {words}", rank=3, node="n2")
        found = judgement.judge(Case(end, KIND), [])
        assert found is not None
        assert found.rule == "signal"
    assert errors.signal_of_status(137) == 9
