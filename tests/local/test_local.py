"""The same batch script under plain bash, with real Dask: the script's own status, starts that fail, and the interconnect."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from homes import CONNECT, Here, here
from hpcml import errors, repairs
from hpcml.cli import pack
from tests.looks import LATE_REPORT, without_late_report

__all__ = ["here"]  # the fixture

pytestmark = pytest.mark.local


SCRIPT = f"""{CONNECT}
def place():
    return sys._getframe().f_code.co_filename
def off():
    import os
    return os.environ.get("{repairs.NO_REPAIRS[0]}", "")
if __name__ == "__main__":
    print(sum(client.gather(client.map(lambda number: number, range(40)))))
    roles = [off(), *client.run(off).values(), client.run_on_scheduler(off)]
    print(client.submit(place).result().endswith("/my script.py"), sorted({{*roles}}))
    sys.exit(3)
"""


@pytest.mark.parametrize("word", ["true", "false"])
def test_the_script_s_own_status(here: Here, word: str) -> None:
    """With the repairs of Dask, and with Dask as it was released."""
    done = here.submit(SCRIPT, "--set", f"repairs={word}", "--set", "workers.per_node=2")
    assert done.returncode == 3, done.stderr
    assert done.stdout == ("780\nTrue ['']\n" if word == "true" else f"780\nFalse ['{repairs.NO_REPAIRS[1]}']\n")
    status = here.json("status")
    assert status["by"] == "script"
    states = {name: status["repairs"][name]["state"] for name in ("file_names", "closing", "switching")}
    assert states == dict.fromkeys(states, "applied" if word == "true" else "off")


# What the machine lacks: options, variables, the exit status, and what is said.
STARTS: dict[str, tuple[tuple[str, ...], dict[str, str], int, tuple[str, ...]]] = {
    "a private folder": ((), {"TMPDIR": "tmp"}, errors.START_FAILED,
                         ("other users may replace the contents of", "Set paths.scratch in the profile, or TMPDIR")),
    "open files": (('runtime.setup=["ulimit -n 100"]', "workers.per_node=16"), {}, errors.START_FAILED,
                   ("can open only 100 files (ulimit -Hn), but 16 workers need 112 open files: use at most 12 workers",)),
    # What a worker needs is measured on the node: Dask gives it no task above a fraction of its limit, here 1 %.
    "memory": (("workers.memory_limit=1GiB",), {"DASK_DISTRIBUTED__WORKER__MEMORY__PAUSE": "0.01"}, errors.WORKERS_NEVER_CAME,
               ("workers.memory_limit is 1024 MiB, but a worker needs",)),
    "time": (("deadlines.scheduler=0.01s",), {}, errors.START_FAILED, ("did not start within",)),
    "a module": (('runtime.modules=["nope/1"]',), {}, errors.START_FAILED, ("Cannot load the module nope/1", "The node has no command 'module'.")),
}  # fmt: skip


@pytest.mark.parametrize("name", STARTS)
def test_what_the_machine_lacks_ends_the_start(here: Here, name: str) -> None:
    """And the reason is not in the script's output."""
    options, variables, status, words = STARTS[name]
    (here.folder / "tmp").mkdir()
    (here.folder / "tmp").chmod(0o777)
    here.environment |= {key: value.replace("tmp", str(here.folder / "tmp")) for key, value in variables.items()}
    done = here.submit("import dask\nprint('never')", *(word for option in options for word in ("--set", option)))
    assert done.returncode == status, done.stderr
    assert done.stdout == ""
    assert all(text in done.stderr for text in words), done.stderr
    assert "without writing a status" not in done.stderr, done.stderr
    assert "before hpcml recorded how the run ended" not in done.stderr, done.stderr
    assert "times" not in done.stderr  # no worker was started to die of it
    said = here.run("logs")
    assert said.stdout == ""
    assert name in ("a module", "a private folder") or words[0] in said.stderr
    if name == "time":
        assert "hpcml: the Dask scheduler" in here.run("logs", "last", "job").stdout


@pytest.mark.skipif(shutil.which("nsys") is not None, reason="nsys is installed")
def test_a_profiler_that_is_not_there(here: Here) -> None:
    done = here.submit("print('never')", "--profile", "nsys")
    assert (done.returncode, done.stdout) == (errors.WORKERS_NEVER_CAME, "")
    assert "needs NVIDIA's nsys on PATH" in done.stderr
    assert not here.events(Path(here.status()["directory"]), "script-started")


def test_an_interpreter_that_hangs(here: Here) -> None:
    """Also what never became a role is gone in the end."""
    slow = here.folder / "python"
    slow.write_text(f'#!/bin/sh\ncase "$*" in *worker) echo thinking; sleep 1000;; esac\nexec {sys.executable} "$@"\n')
    slow.chmod(0o755)
    done = here.submit(CONNECT, "--set", f"runtime.python='''{slow}'''", "--set", "deadlines.workers=3s")
    assert done.returncode == errors.WORKERS_NEVER_CAME, done.stderr
    assert "workers' parent process did not start" in done.stderr
    assert "thinking" in done.stderr


def test_an_interpreter_for_another_processor_is_told(here: Here) -> None:
    program = bytearray(Path("/bin/true").read_bytes())
    other, kind = ("x86_64", 62) if os.uname().machine == "aarch64" else ("aarch64", 183)
    program[18:20] = kind.to_bytes(2, "little")
    python = here.folder / "python"
    python.write_bytes(program)
    python.chmod(0o755)
    done = here.submit("print(1)", "--set", f"runtime.python={python}")
    assert done.returncode == errors.START_FAILED, done.stderr
    note, _, end = done.stderr.partition("\n  run ")
    assert f"runtime.python ({python}) is for {other}, but this machine is {os.uname().machine}" in note
    assert f"its interpreter {python} is built for {other}, but local is {os.uname().machine}" in end


def test_hpcml_interconnect_measures_writes_and_draws(here: Here) -> None:
    (here.folder / "json.py").write_text("raise RuntimeError('a module of the user')\n")
    done = here.run("interconnect", "--nodes", "1", "--set", "workers.per_node=2", "--set", "network.protocol=ucx")
    assert done.returncode == 0, done.stderr
    out = Path(here.status()["directory"]) / "out"
    facts = json.loads((out / "interconnect.json").read_text())
    assert facts["measurement"]["protocol"] == "ucx"
    assert all(pair["seconds"] > 0 and not pair["error"] for pair in facts["measurement"]["pairs"])
    assert (out / "interconnect.svg").read_text().startswith("<svg")
    assert facts["verdict"]["line"] in done.stdout


BY_TCP = f"""{CONNECT}
import os, subprocess
from dask.distributed import worker_client
CHILD = "from dask.distributed import Client; c = Client(); print(len(c.gather(c.submit(bytes, 9), direct=True)))"
def in_a_task():
    with worker_client() as client:
        return len(client.gather(client.submit(bytes, 10_000), direct=True))
if __name__ == "__main__":
    print(*{{worker.partition("//")[0] for worker in client.scheduler_info()["workers"]}}, client.scheduler.address[:4])
    print(len(client.run(os.getpid)), client.submit(in_a_task).result(),
          sum(map(len, client.gather(client.map(bytes, range(40)), direct=True))))
    print(subprocess.run([sys.executable, "-c", CHILD], capture_output=True, text=True, check=True).stdout, end="")
"""


def test_data_over_authenticated_tcp(here: Here) -> None:
    """The script, a process that it starts, tasks and the scheduler connect to workers, and each of them proves the key."""
    done = here.submit(BY_TCP, "--set", "network.protocol=tcp", "--set", "workers.per_node=2")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["hpcml-tcp: tls:", "2 10000 780", "9"]
    status = here.json("status")
    assert status["protocol"] == "tcp (network.protocol requests it)"
    assert status["security"].endswith("not encrypted")
    assert "hpcml.tcp: refused" not in "".join(
        path.read_text() for path in (Path(status["directory"]) / "logs").iterdir()
    )


def test_one_file_by_the_python_of_the_profile(here: Here) -> None:
    """Where Dask is in that Python alone."""
    (here.folder / "hpcml.pyz").write_bytes(pack.make())
    script = here.script("import hpcml\nprint(hpcml.connect().submit(sum, [1, 2]).result())\n")
    bare = [str(Path(sys.executable).resolve()), "-I", "-S", "hpcml.pyz"]
    command = [*bare, "submit", "--wait", "--set", f"runtime.python={sys.executable}", script]
    done = subprocess.run(
        command, cwd=here.folder, env=here.environment, capture_output=True, text=True, check=False, timeout=300
    )
    assert (done.returncode, done.stdout) == (0, "3\n"), done.stderr


WORK = "from dask.distributed import Client\nif __name__ == '__main__':\n    with Client() as c:\n        print(c.submit(sum, [1, 2]).result())\n"


def test_lines_of_the_setup_that_are_right_change_nothing(here: Here) -> None:
    """Those that read a variable that is not set, and a function module() that does."""
    (here.folder / "activate.sh").write_text('if [ -n "${CONDA_BUILD_SYSROOT}" ]; then :; fi\n')
    (here.folder / "lmod.sh").write_text("module() { local keep=$NO_SUCH_VARIABLE; }\n")
    here.environment["BASH_ENV"] = str(here.folder / "lmod.sh")
    lines = json.dumps(["export X=/opt/x/lib:$NO_SUCH_VARIABLE", "source ./activate.sh", "nowhere || true"])
    done = here.submit(WORK, "--set", f"runtime.setup={lines}", "--set", 'runtime.modules=["cuda"]')
    assert (done.returncode, done.stdout) == (0, "3\n"), done.stderr
    assert without_late_report(line["text"] for line in here.json("why").get("warnings", ())) == []


def test_a_line_of_the_setup_that_fails_is_a_warning(here: Here) -> None:
    """In status, why and JSON, whether the script fails or not."""
    told = (
        "Line 2 of runtime.setup ((exit 7)) exited with status 7. Correct this line. If it may fail, append '|| true'."
    )
    for status in (0, 3):
        done = here.submit(f"import os, sys\nprint('HPCML_SETUP' in os.environ)\nsys.exit({status})\n",
                           "--set", 'runtime.setup=["export X=1", "(exit 7)"]')  # fmt: skip
        assert (done.returncode, done.stdout) == (status, "False\n"), done.stderr
        assert told in here.json("status")["warnings"]
        assert without_late_report(line["text"] for line in here.json("why")["warnings"]) == [told]
        events = here.events(Path(here.status()["directory"]), "warning")
        (event,) = (one for one in events if LATE_REPORT not in one["sentence"])
        assert (event["setup"], event["line"], event["exit_status"]) == ("(exit 7)", 2, 7)


def test_a_setup_that_lacks_a_command_or_a_file_ends_the_run_before_its_processes_start(here: Here) -> None:
    for line, setting, why in (
        ("conda_nowhere activate ml", "warn", "exited with status 127: a command was not found"),
        ("source nothere.sh", "warn", "cannot read the file nothere.sh"),
        ("false", "end", "exited with status 1 (runtime.setup_errors = 'end')"),
        ("exit 0", "warn", "ended the batch script with status 0"),
    ):
        done = here.submit("print(1)", "--set", f'runtime.setup=["{line}"]', "--set", f"runtime.setup_errors={setting}")
        assert (done.returncode, done.stdout) == (errors.START_FAILED, ""), done.stderr
        cause = here.json("why")["cause"]
        assert cause.lower() == f"line 1 of runtime.setup ({line}) {why}"
        assert here.json("why")["next_step"] == "Correct this line. If it may fail, append '|| true'."
        assert not here.events(Path(here.status()["directory"]), "allocated")


def test_variables_for_workers_in_the_user_s_settings_of_dask(here: Here) -> None:
    settings = here.folder / ".config/dask"
    settings.mkdir(parents=True)
    (settings / "d.yaml").write_text("distributed:\n  nanny:\n    environ: {MY_FLAG: hello, OMP_NUM_THREADS: 3}\n")
    script = (
        "import os\nfrom dask.distributed import Client\ndef flags():\n"
        "    return [os.environ.get(name) for name in ('MY_FLAG', 'OMP_NUM_THREADS', 'HPCML_PRESET')]\n"
        "if __name__ == '__main__':\n    with Client(n_workers=1) as c:\n        print(c.submit(flags).result())\n"
    )
    here.environment.pop("OMP_NUM_THREADS", None)
    done = here.submit(script)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "['hello', '3', None]"), done.stderr
