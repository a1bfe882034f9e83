"""Processes that start before their run: when they are a run's, and what they do when what they imported has changed."""

from __future__ import annotations

import fcntl
import os
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

from hpcml import assets, hold_queue
from hpcml.kinds.dask import KIND
from hpcml.kinds.hold import END
from hpcml.kinds.hold.node import prestarted_run
from hpcml.node.script import interpreter_state, launcher, prestarted_script
from hpcml.node.tasks import process as tasks
from hpcml.node.tasks.prestarted_interpreter import Ready
from hpcml.paths import RunPaths
from hpcml.settings import Code
from hpcml.workload_forms import Form

WAITS = """
import os, sys
sys.prefix = os.path.dirname(os.path.abspath(__file__))  # an installed module can be edited in place, too
import settled
print("imported", settled.VALUE, flush=True)
if os.environ.get("HPCML_AHEAD"):
    from hpcml.node import prestarted_role
    line = prestarted_role._line
    prestarted_role._line = lambda: print("waits", flush=True) or line()
    class Child:
        def end(self):
            print("ends its child", flush=True)
    prestarted_role.WAITING.append(Child())
    prestarted_role.wait()
print(os.environ["HPCML_RUN_DIR"], settled.VALUE, sys.stdin.read(), os.environ.get("HPCML_AHEAD"), flush=True)
"""

SINCE = "changed since the last run"


def made(folder: Path, text: str = "echo\n") -> RunPaths:
    folder.mkdir()
    run = RunPaths(folder)
    run.script.write_text(f"# run {folder.name}\nexport HPCML_RUN_DIR={folder}\n{text}")
    run.library.write_bytes(b"modules")
    return run


def parts(run: RunPaths, nodes: int = 1, **variables: str) -> dict[str, str]:
    return dict(prestarted_run.parts(run, hold_queue.Start(("bash",), {"PATH": "/bin", **variables}), nodes))


def test_two_runs_of_one_shell_start_in_the_same_way(tmp_path: Path) -> None:
    first, second = made(tmp_path / "a-20260101-000000-0000"), made(tmp_path / "b-20260101-000001-0000")
    assert (
        prestarted_run.difference(parts(first, _="/bin/ls", SHLVL="1"), parts(second, _="/bin/cat", OLDPWD="/")) == ""
    )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"variables": {"OMP_NUM_THREADS": "4"}}, f"the variable OMP_NUM_THREADS {SINCE}"),
        ({"text": "module load cuda\n"}, f"options or settings {SINCE}"),
        ({"nodes": 2, "variables": {"X": ""}}, f"number of nodes {SINCE} (and 1 more)"),
        ({"library": b"other"}, f"hpcml {SINCE}"),
    ],
)
def test_what_would_start_in_another_way_is_named(tmp_path: Path, change: dict[str, object], said: str) -> None:
    first = made(tmp_path / "a-20260101-000000-0000")
    second = made(tmp_path / "a-20260101-000001-0000", str(change.get("text", "echo\n")))
    second.library.write_bytes(change.get("library", b"modules"))  # type: ignore[arg-type]
    now = parts(second, change.get("nodes", 1), **change.get("variables", {}))  # type: ignore[arg-type]
    assert prestarted_run.difference(parts(first), now) == said


def test_a_variable_that_is_not_utf_8_is_compared_like_any_other(tmp_path: Path) -> None:
    """An error here would end the hold's supervisor, and with it all runs of the hold."""
    first, second, third = (made(tmp_path / f"a-20260101-00000{index}-0000") for index in range(3))
    for run, value in ((first, b"\xff"), (second, b"\xff"), (third, b"\xfe")):
        run.variables.write_bytes(b"export NAME='" + value + b"'\n")
    assert prestarted_run.difference(parts(first), parts(second)) == ""
    assert prestarted_run.difference(parts(first), parts(third)) == f"options or settings {SINCE}"


def test_a_batch_script_that_is_not_utf_8_starts_ahead_as_it_is(tmp_path: Path) -> None:
    run = made(tmp_path / "a-20260101-000000-0000")
    run.plan.touch()
    run.script.write_bytes(b"# \xff a-20260101-000000-0000\n")
    start = hold_queue.Start(("true",), {"PATH": os.environ["PATH"]})
    ready = prestarted_run.Ahead(tmp_path / "1", run, start, ("n1",))
    ready.end()
    assert ready.process.wait() == 0
    assert ready.paths.script.read_bytes() == b"# \xff 1\n"


@pytest.mark.parametrize("changes", [False, True])
def test_a_process_that_waits_gets_its_run_and_imports_again_what_has_changed(tmp_path: Path, changes: bool) -> None:
    """It reads one line alone."""
    module = tmp_path / "settled.py"
    module.write_text("VALUE = 'old'\n")
    (tmp_path / "waits.py").write_text(WAITS)
    environment = {**os.environ, "HPCML_RUN_DIR": "/before", "HPCML_AHEAD": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    with subprocess.Popen([sys.executable, tmp_path / "waits.py"], env=environment, stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE, text=True) as process:  # fmt: skip
        assert process.stdin
        assert process.stdout
        assert [process.stdout.readline() for _ in "ab"] == ["imported old\n", "waits\n"]
        if changes:
            module.write_text("VALUE = 'edited'\n")
        process.stdin.write("/runs/a\n/runs/a\n")
        process.stdin.flush()
        said = process.stdout.read()
    again = (
        "hpcml: a package or a file of settings has changed: this process imports all modules again.\n"
        "ends its child\nimported edited\n"
    )
    assert said == (f"{again}/runs/a edited  None\n" if changes else "/runs/a old  None\n")


def test_a_batch_script_that_waits_reads_its_run_whole() -> None:
    """It looks at its processes each second, also when that second ends within the line."""
    text = (assets.folder("templates") / "batch.sh.j2").read_text()
    reads = text[text.index("  directory=\n") : text.index('  [ -n "$directory" ]')]
    script = f'ahead=0; gone() {{ echo looks; return 1; }}\n{reads}\necho "<$directory>"'
    with subprocess.Popen(["bash", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin
        assert process.stdout
        process.stdin.write("/runs")
        process.stdin.flush()
        assert process.stdout.readline() == "looks\n"
        process.stdin.write("/a b\n")
        process.stdin.flush()
        assert process.stdout.read().splitlines()[-1] == "</runs/a b>"


@pytest.mark.parametrize("ignores", [False, True])
def test_a_hold_does_not_wait_long_for_processes_that_do_not_end(ignores: bool) -> None:
    """Else their node is paid for until the time limit of the hold, which has no run and takes none."""
    stays = f"{'trap : TERM; ' if ignores else ''}echo here; while :; do sleep 0.1; done"
    ready = prestarted_run.Ahead.__new__(prestarted_run.Ahead)
    with subprocess.Popen(["bash", "-c", stays], stdout=subprocess.PIPE, start_new_session=True) as ready.process:
        try:
            assert ready.process.stdout
            assert ready.process.stdout.readline() == b"here\n"
            ready.lifeline, ready.since = -1, time.monotonic()
            assert not ready.has_ended()
            ready.since -= END * (2 if ignores else 1)
            assert ready.has_ended() or not ignores
            assert ready.process.wait(30) == -(signal.SIGKILL if ignores else signal.SIGTERM)
        finally:
            ready.process.kill()


def test_a_process_for_which_no_run_comes_ends(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", "from hpcml.node import prestarted_role; prestarted_role.wait(); print('runs')"],
                          env={**os.environ, "HPCML_AHEAD": "1"}, stdin=subprocess.DEVNULL, capture_output=True,
                          text=True, timeout=60, check=False, cwd=tmp_path)  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


SHOWS = """
import os, sys
with open("/proc/self/environ") as file:
    print("HPCML_AHEAD" in file.read(), "dask" in sys.modules, sys.argv[1:], os.getcwd(), os.environ.get("MINE"),
          "HPCML_AHEAD" in os.environ, sys.orig_argv[4:] == sys.argv, oct(os.umask(0)))
"""


def waiting(last: str = "", folder: Path | None = None, *, is_of_run: bool = False) -> Ready:
    """Start an interpreter that waits for a script; ``last`` is that of the run before, ``folder`` where it ran."""
    reader, writer = os.pipe()
    os.write(writer, prestarted_script.IMPORTS)
    variables = {"HPCML_RUN_DIR": "/runs/before", "HPCML_AHEAD": last, launcher.BEGIN: str(reader)}
    environment = {**os.environ, **variables, interpreter_state.IN_SCRIPT: KIND.in_script, "MINE": "/runs/before/x"}
    command = [sys.executable, "-u", "-c", tasks._START]
    process = subprocess.Popen(
        command, env=environment, pass_fds=(reader,), stdout=subprocess.PIPE, cwd=folder, umask=0o027,
        process_group=0)  # fmt: skip
    os.close(reader)
    return Ready(process, writer, reader, is_of_run)


def shown(ready: Ready, script: Path, *, waits: bool = False, **variables: str) -> str:
    """Return what the script prints that the interpreter becomes."""
    given = {"HPCML_RUN_DIR": "/runs/now", interpreter_state.IN_SCRIPT: KIND.in_script, "MINE": "/runs/now/x"}
    command = [sys.executable, "-u", "-c", tasks._START, str(script), "a b"]
    code = Code(Form.SCRIPT, "", (), str(script.parent), 0o027, "", (), 0)
    with ready.process as process:
        while not ready._has_imported():
            assert process.poll() is None
            time.sleep(0.01)
        assert ready.take(command, {**os.environ, **given, **variables}, code, waits=waits)
        if waits:
            os.write(ready.pipe, b"\n")
        os.close(ready.pipe)
        output, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    return output.decode()


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize(
    ("first", "beside", "variables", "stays"),
    [
        ("import dask\n", "", {}, True),
        ("VALUE = 1\nimport dask\n", "", {}, False),  # the import may depend on what comes before
        ("import dask\n", "antigravity.py", {}, False),  # it hides a module of Python
        ("import dask\n", "hpcml.py", {}, False),
        ("import dask\n", "", {"OMP_NUM_THREADS": "3"}, False),  # a library reads it as it is imported
        ("import dask\n", "last", {}, False),  # sitecustomize ran in another folder
    ],
)
def test_an_interpreter_that_waits_becomes_the_script_or_a_new_one(
    tmp_path: Path, first: str, beside: str, variables: dict[str, str], stays: bool, waits: bool
) -> None:
    """What the script finds is the same but for what has been imported where that makes no difference."""
    last, script = tmp_path / "last/job.py", tmp_path / "now/job.py"
    for path, text in ((last, "import dask\n"), (script, first)):
        path.parent.mkdir()
        path.write_text(text + SHOWS)
    before = last.parent if beside == "last" else script.parent
    if beside:
        (before / beside).touch()
    text = shown(waiting(str(last), before), script, waits=waits, **variables)
    assert text == f"{stays} True ['a b'] {script.parent} /runs/now/x False True 0o27\n"


@pytest.mark.parametrize("changes", [False, True])
def test_an_interpreter_imports_again_what_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: bool
) -> None:
    (tmp_path / "packages").mkdir()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "packages"))
    (tmp_path / "job.py").write_text("import dask\n" + SHOWS)
    ready, write = waiting(str(tmp_path / "job.py"), tmp_path), os.write

    def in_two_parts(pipe: int, data: bytes) -> int:
        write(pipe, data[:-1])
        while struct.unpack("i", fcntl.ioctl(pipe, termios.FIONREAD, bytes(4))) != (0,):  # it waits, and reads
            time.sleep(0.01)
        if changes:
            (tmp_path / "packages/new.py").touch()
        return len(data) - 1 + write(pipe, data[-1:])

    monkeypatch.setattr(os, "write", in_two_parts)
    assert shown(ready, tmp_path / "job.py").startswith(f"{not changes} True")


def installed(folder: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """Install a package in a folder of PYTHONPATH that scripts' interpreters import early."""
    (folder / "packages/any-1.dist-info").mkdir(parents=True)
    (folder / "packages/xgboost.py").write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(folder / "packages"))


CHANGES = "import os\nos.environ |= {'A': '1', 'MINE': '2'}\nos.environ.pop('B')\n"


def test_an_early_import_may_change_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As that of scikit-learn does: the script's own import would have done so, too."""
    installed(tmp_path, monkeypatch, CHANGES)
    monkeypatch.setenv("B", "")
    (tmp_path / "job.py").write_text(f"import xgboost\n{SHOWS}print(*map(os.environ.get, 'AB'))\n")
    ready = waiting(str(tmp_path / "job.py"), tmp_path)
    text = shown(ready, tmp_path / "job.py", MINE="/runs/before/x")
    assert text == f"True False ['a b'] {tmp_path} 2 False True 0o27\n1 None\n"


FAILS = "import os\nif os.path.exists(os.environ['MARK']):\n    raise OSError\n"


def test_an_interpreter_whose_early_import_failed_becomes_a_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is left of such an import may have another one fail."""
    installed(tmp_path, monkeypatch, FAILS)
    (mark := tmp_path / "mark").touch()
    monkeypatch.setenv("MARK", str(mark))
    (tmp_path / "job.py").write_text("import xgboost\n" + SHOWS)
    ready = waiting(str(tmp_path / "job.py"), tmp_path)
    while not ready._has_imported():
        assert ready.process.poll() is None
        time.sleep(0.01)
    mark.unlink()
    assert shown(ready, tmp_path / "job.py").startswith("False False")


WARNS = """
import sys
from hpcml.node.script import launcher, prestarted_script
print(prestarted_script._script(sys.argv[1], launcher._tree)[0] is not None)
if len(sys.argv) > 2:
    launcher._tree(sys.argv[1])
"""


@pytest.mark.parametrize("runs", [False, True])
def test_python_warns_once_of_a_script_s_text(tmp_path: Path, runs: bool) -> None:
    """And not where an interpreter only looks what it imports."""
    (tmp_path / "job.py").write_text("A = '\\d'\n")
    done = subprocess.run([sys.executable, "-W", "always", "-c", WARNS, tmp_path / "job.py", *(["runs"] if runs else [])],
                          capture_output=True, text=True, timeout=60, check=True)  # fmt: skip
    assert (done.stdout, done.stderr.count("job.py:1: ")) == ("True\n", int(runs))


BEGINS = "import subprocess\nprint(subprocess.Popen(['sleep', '600']).pid, flush=True)\n"


def test_what_an_interpreter_has_started_ends_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as a process of sitecustomize."""
    installed(tmp_path, monkeypatch, BEGINS)
    (tmp_path / "job.py").write_text("import xgboost\n")
    ready = waiting(str(tmp_path / "job.py"))
    assert ready.process.stdout
    child = os.pidfd_open(int(ready.process.stdout.readline()))
    ready.end()
    assert select.select([child], [], [], 60)[0], "it has ended"
    os.close(child)
    ready.process.stdout.close()


def test_without_an_interpreter_that_lives_the_run_starts_its_own(tmp_path: Path) -> None:
    ready = waiting()
    ready.process.kill()
    ready.process.communicate()
    assert not ready.take([sys.executable], {}, Code(Form.SCRIPT, "", (), str(tmp_path), 0o027, "", (), 0), waits=True)


def test_an_interpreter_that_still_imports_for_the_last_script_is_no_script_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If that import hung or crashed, it would be named as the end of another script."""
    for name in ("packages", "last"):
        (tmp_path / name).mkdir()
    (tmp_path / "packages/hangs.py").write_text("import time\nwhile True:\n    time.sleep(1)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "packages"))
    (tmp_path / "last/job.py").write_text("import hangs\n")
    ready = waiting(str(tmp_path / "last/job.py"))
    code = Code(Form.SCRIPT, "", (), str(tmp_path), 0o027, "", (), 0)
    assert not ready.take([sys.executable], dict(os.environ), code, waits=False)
    assert ready.process.communicate(timeout=60)[0] == b""
    assert ready.process.returncode == -signal.SIGKILL


def test_an_interpreter_may_still_import_for_the_script_that_it_becomes(tmp_path: Path) -> None:
    script = tmp_path / "job.py"
    script.write_text("import dask\nprint('dask' in globals())\n")
    ready = waiting(str(script), is_of_run=True)
    given = {"HPCML_RUN_DIR": "/runs/before", interpreter_state.IN_SCRIPT: KIND.in_script, "MINE": "/runs/before/x"}
    code = Code(Form.SCRIPT, "", (), str(tmp_path), 0o027, "", (), 0)
    command = [sys.executable, "-u", "-c", tasks._START, str(script)]
    assert ready.take(command, {**os.environ, **given}, code, waits=False)
    assert ready.process.communicate(timeout=60)[0] == b"True\n"
    os.close(ready.pipe)


def test_an_interpreter_whose_supervisor_is_gone_ends() -> None:
    ready = waiting()
    os.close(ready.pipe)
    assert ready.process.communicate(timeout=60)[0] == b""
    assert ready.process.returncode == 1


def test_a_script_knows_which_variables_its_interpreter_did_not_start_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dask's own may have had another value, as ``DASK_TEMPORARY_DIRECTORY`` of the user."""
    for name in ("DASK_B", "DASK_C"):
        monkeypatch.setenv(name, "1")
    (tmp_path / "job.py").write_text(f"import os\nprint(os.environ[{interpreter_state.GIVEN!r}])\n")
    ready = waiting(str(tmp_path / "job.py"), tmp_path)
    assert shown(ready, tmp_path / "job.py", DASK_A="2", DASK_B="2", HPCML_A="2") == "DASK_A DASK_B\n"


def test_the_processes_of_a_script_that_waited_know_what_it_began_with(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else its process gives workers the run's own variables as changes of the script."""
    before = {"HPCML_RUN_DIR": "/runs/before", "HPCML_AHEAD": "", "PYTHONPATH": "/runs/before/lib.zip", "MINE": "1"}
    for name, value in {
        "HPCML_RUN_DIR": "/runs/now",
        "DASK_A": "2",
        "DASK_B": "3",
        interpreter_state.GIVEN: "DASK_A",
    }.items():
        monkeypatch.setenv(name, value)
    now = {"HPCML_RUN_DIR": "/runs/now", "PYTHONPATH": "/runs/now/lib.zip", "MINE": "1", "DASK_A": "2"}
    assert interpreter_state._since_ahead(before) == now
