"""`hpcml --host` with a fake ssh: what is sent and what comes back, and each way in which it can fail."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from hpcml import errors
from hpcml.cli import on_host
from remote_world import Laptop
from tests.said import says
from world import until, write_end

HOSTILE = (
    "$(touch pwned)", "`touch pwned`", "a'b\"c", "new\nline", "; touch pwned", "", " ", "\\", "*", "é", "\udcff",
    "--help", "--json",
)  # fmt: skip


def test_a_submission_arrives_as_if_typed_there(laptop: Laptop) -> None:
    (laptop.world.project / "helper.py").write_text("x = 1\n")
    (laptop.world.project / ".secret").write_text("no\n")
    refused = laptop.run("submit", "job.py", "--dry-run")
    assert refused.returncode == errors.USAGE
    assert refused.stderr.startswith("hpcml: --dry-run comes after job.py"), "nothing is sent"
    done = laptop.run("submit", "--nodes", "2", "job.py", "--", *HOSTILE)
    assert done.returncode == 0, done.stderr
    (run,) = laptop.runs()
    assert f"hpcml --host cluster wait {run}, then hpcml --host cluster logs {run}\n" in done.stderr
    directory = laptop.far / ".hpcml/runs" / run
    inside = json.loads((directory / "plan.json").read_text())["inside"]
    assert tuple(inside["code"]["arguments"]) == HOSTILE
    assert inside["job"]["nodes"] == 2
    assert {path.name for path in (directory / "code").iterdir()} == {"job.py", "helper.py"}
    assert inside["code"]["cwd"] == str(directory / "code")
    assert laptop.staged() == []
    assert not list(laptop.world.top.rglob("pwned"))
    assert len(laptop.world.jobs()) == 1


def test_a_run_in_a_hold_that_has_not_started_waits_and_is_cancelled_alone(laptop: Laptop) -> None:
    """From the laptop, with all that the script needs; one job is in the queue."""
    held = laptop.run("hold", "--nodes", "2", "--time", "1h", "--json")
    assert held.returncode == 0, held.stderr
    hold = json.loads(held.stdout)["run"]
    (laptop.world.project / "helper.py").write_text("x = 1\n")
    done = laptop.run("run", "--in", "last", "--detach", "--time", "10m", "job.py", "a b")
    assert done.returncode == 0, done.stderr
    (run,) = set(laptop.runs()) - {hold}
    directory = laptop.far / ".hpcml/runs" / run
    assert {path.name for path in (directory / "code").iterdir()} == {"job.py", "helper.py"}
    inside = json.loads((directory / "plan.json").read_text())["inside"]
    assert (inside["job"]["nodes"], inside["job"]["time_limit"], inside["code"]["arguments"]) == (2, 600, ["a b"])
    status = json.loads(laptop.run("status", run, "--json").stdout)
    assert (status["state"], status["message"]) == ("PENDING", says("waiting", hold))
    late = laptop.run("run", "--in", "last", "--no-wait", "job.py")
    assert (late.returncode, late.stderr) == (errors.REFUSED, says("cannot start at once", hold, "--no-wait"))
    long = laptop.run("run", "--in", hold, "--time", "2h", "job.py")
    assert (long.returncode, long.stderr) == (errors.USAGE, says("--time", "2h", hold))
    cancelled = laptop.run("cancel", run)
    assert cancelled.stdout == says(run, "cancel", hold)
    assert json.loads(laptop.run("status", run, "--json").stdout)["exit_status"] == errors.CANCELLED
    assert json.loads(laptop.run("status", hold, "--json").stdout)["state"] == "PENDING"
    waits = json.loads(laptop.run("run", "--in", "last", "--detach", "--json", "job.py").stdout)["run"]
    laptop.run("cancel", hold)  # it never starts, and so does not the run that waits in it
    assert json.loads(laptop.run("status", waits, "--json").stdout)["exit_status"] == errors.CANCELLED
    assert len(laptop.world.jobs()) == 1
    assert laptop.staged() == []


def test_a_sweep_on_the_cluster_is_looked_at_and_removed(laptop: Laptop) -> None:
    begun = laptop.world.run("sweep", "job.py", "--grid", "k=8,16", "--json", env=laptop.environment)
    assert begun.returncode == 0, begun.stderr
    directory = Path(laptop.run("status", "job", "--field", "directory").stdout.rstrip("\n"))
    assert directory.parent == laptop.far / ".hpcml/runs"
    (directory / "points").mkdir()
    key = json.loads((directory / "points.json").read_text())["points"][1]["key"]
    (directory / f"points/{key}.log").write_text("of k=16\n")
    assert laptop.run("logs", "job", "point:2").stdout == "of k=16\n"
    assert "hpcml --host cluster logs" in laptop.run("logs", directory.name).stderr
    write_end(directory)
    for job in laptop.world.jobs():
        laptop.world.set_job(job, state="COMPLETED")
    assert laptop.run("sweep", "rm", "job").returncode == errors.USAGE
    removed = laptop.run("sweep", "rm", "job", "--yes")
    assert (removed.returncode, laptop.runs()) == (0, ["sweeps"]), removed.stderr
    assert not list((laptop.far / ".hpcml/runs/sweeps").iterdir())


def test_a_module_and_a_program_are_sent_with_their_folder(laptop: Laptop) -> None:
    package = laptop.world.project / "pack"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "__main__.py").write_text("from . import part\n")
    (package / "part.py").write_text("from . import other\n")
    (package / "other.py").write_text("x = 1\n")
    program = laptop.world.project / "run.sh"
    program.write_text("#!/bin/sh\nexit 3\n")
    program.chmod(0o755)
    for words, script in (
        (("-m", "pack.part"), "pack.part"),
        (("-m", "pack"), "pack"),
        (("--", "./run.sh"), "run.sh"),
        (("--", "run.sh"), "run.sh"),
    ):
        before = set(laptop.runs())
        done = laptop.run("submit", "--nodes", "2", *words, "--k", "a b")
        assert done.returncode == 0, done.stderr
        (run,) = set(laptop.runs()) - before
        directory = laptop.far / ".hpcml/runs" / run
        inside = json.loads((directory / "plan.json").read_text())["inside"]
        assert inside["code"]["form"] == {"-m": "module", "--": "program"}[words[0]]
        assert inside["code"]["script"] == str(directory / "code" / script)
        code = inside["code"]
        assert (code["arguments"], code["cwd"], inside["job"]["nodes"]) == (["--k", "a b"], str(directory / "code"), 2)
        assert (directory / "code/pack/other.py").is_file()
        assert os.access(directory / "code/run.sh", os.X_OK)
        assert laptop.run("rerun", run, "--name", "other", "--", "--k", "c d").returncode == 0
        (again,) = set(laptop.runs()) - before - {run}
        plan = json.loads((laptop.far / ".hpcml/runs" / again / "plan.json").read_text())
        assert plan["inside"]["code"]["arguments"] == ["--k", "c d"]
    assert laptop.staged() == []
    assert laptop.run("submit", "--dry-run", "-m", "pack.part").returncode == 0
    done = laptop.run("submit", "--", "bash", "x.sh")
    assert done.returncode == errors.USAGE
    assert "no file 'bash' on this laptop to send" in done.stderr
    done = laptop.run("submit", "-m", "nowhere.part")
    assert done.returncode == errors.REFUSED
    assert "no module 'nowhere.part'" in done.stderr


ARRAY = """#!/bin/bash
#SBATCH --array=0-2%2 --output=part_%A_%a.txt
cat input.txt
"""


def test_the_tasks_of_an_array_are_runs_in_one_copy_of_the_folder(laptop: Laptop) -> None:
    (laptop.world.project / "parts.sh").write_text(ARRAY)
    (laptop.world.project / "input.txt").write_text("x\n")
    (laptop.world.project / "results/of tasks").mkdir(parents=True)
    done = laptop.run("submit", "--json", "--detach", "parts.sh", "a b")
    assert done.returncode == 0, done.stderr
    array = json.loads(done.stdout)
    tasks = [run["run"] for run in array["runs"]]
    assert ([task.partition("-")[0] for task in tasks], laptop.runs()) == (["parts_0", "parts_1", "parts_2"], tasks)
    first, second, _ = (Path(run["directory"]) for run in array["runs"])
    assert {path.name for path in (first / "code").iterdir()} >= {"parts.sh", "input.txt", "job.py"}
    assert (first / "code/results/of tasks").is_dir()
    assert not list((second / "code").iterdir())
    assert laptop.staged() == []
    directives = dict(json.loads((second / "plan.json").read_text())["directives"])
    code = json.loads((second / "plan.json").read_text())["inside"]["code"]
    assert (directives["--chdir"], code["cwd"], code["arguments"]) == (*2 * [str(first / "code")], ["a b"])
    script = Path(laptop.world.jobs()[f"{array['job']}_0"]["script"])
    (second / "job.sh").write_text("echo started\n")
    words = ["bash", str(script)]
    task = {"SLURM_ARRAY_TASK_ID": "1", "PATH": os.environ["PATH"]}
    assert subprocess.run(words, env=task, capture_output=True, text=True, check=False).stdout == "started\n"
    elsewhere = first.with_name("elsewhere")
    first.rename(elsewhere)
    first.symlink_to(elsewhere)
    assert subprocess.run(words, env=task, capture_output=True, check=False).returncode == errors.STORAGE
    first.unlink()
    elsewhere.rename(first)

    listed = json.loads(laptop.run("ls", "--json", "--name", "parts_*").stdout)
    assert {row["run"] for row in listed} == {*tasks}
    assert json.loads(laptop.run("status", "--json", f"{array['job']}_1").stdout)["job_state"] == "PENDING"
    (second / "logs/script.log").write_text("of task 1\n")
    assert laptop.run("logs", "parts_1").stdout == "of task 1\n"
    assert "parts_2" in laptop.run("why", "parts_2").stdout
    again = json.loads(laptop.run("rerun", "--json", "--detach", "parts_1").stdout)
    [run] = again["runs"]
    assert (run["job"].partition("_")[2], (Path(run["directory"]) / "code/input.txt").read_text()) == ("1", "x\n")

    write_end(first)
    assert laptop.run("fetch", tasks[0], "got").returncode == 0
    (first / "code/part_1.txt").write_text("of task 1\n")
    assert laptop.run("fetch", tasks[1], "got").returncode == 0
    assert (laptop.world.project / "got/code/part_1.txt").read_text() == "of task 1\n"
    assert laptop.run("cancel", f"{array['job']}_0").returncode == 0
    kept = laptop.run("rm", "--yes", tasks[0])
    assert (kept.returncode, first.is_dir()) == (1, True)
    assert tasks[1] in kept.stderr
    assert laptop.run("cancel", array["job"]).returncode == 0
    assert {job["state"] for name, job in laptop.world.jobs().items() if name.startswith(array["job"])} == {"CANCELLED"}
    (first / "code/part_2.txt").write_text("of task 2\n")
    assert laptop.run("rm", "--yes", *tasks).returncode == 0
    assert laptop.runs() == [run["run"]]


def test_the_copy_of_an_array_counts_as_fetched_and_is_named_when_it_is_gone(laptop: Laptop) -> None:
    (laptop.world.project / "parts.sh").write_text(ARRAY)
    array = json.loads(laptop.run("submit", "--json", "--detach", "parts.sh").stdout)
    first, second, third = (Path(run["directory"]) for run in array["runs"])
    assert laptop.run("cancel", array["job"]).returncode == 0
    for number, run in enumerate((first, second, third)):
        write_end(run)
        (first / f"code/part_{number}.txt").write_text("x\n")
    assert laptop.run("fetch", second.name, "got").returncode == 0
    (second / "out").mkdir(exist_ok=True)
    (second / "out/own.txt").write_text("its own\n")
    elsewhere = first.with_name("elsewhere")
    first.rename(elsewhere)
    for words in (["fetch", second.name, "late"], ["rerun", second.name]):
        done = laptop.run(*words)
        assert done.returncode == errors.NOT_FOUND
        assert "copy of the code was removed" in done.stderr
        assert first.name in done.stderr
    assert (laptop.world.project / "late/own.txt").read_text() == "its own\n"
    elsewhere.rename(first)
    asked = laptop.run("rm", first.name, second.name, third.name)  # it looks at the copy again, and then asks
    assert (asked.returncode, "keeps" in asked.stderr) == (errors.USAGE, False), asked.stderr


@pytest.mark.parametrize("command", ["submit", "rerun", "jupyter"])
def test_what_submits_waits_where_this_end_has_a_terminal(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for stream in (sys.stdout, sys.stderr):
        monkeypatch.setattr(stream, "isatty", lambda: True)
    waiting = on_host._waiting
    assert waiting(command, argparse.Namespace(), ["last"]) == ["--wait", "last"]
    assert waiting(command, argparse.Namespace(detach=True), ["last", "--detach"]) == ["last", "--detach"]
    assert waiting("status", argparse.Namespace(), ["last"]) == ["last"]


def test_no_word_of_the_user_is_on_a_command_line(laptop: Laptop) -> None:
    assert laptop.run("submit", "job.py", "my-secret-word").returncode == 0
    assert laptop.run("logs", "nosuch-secret-word").returncode == errors.NOT_FOUND
    assert "secret-word" not in (laptop.state / "calls").read_text()


@pytest.mark.parametrize("host", ["-oProxyCommand=touch pwned", "a\nb"])
def test_hosts_that_are_none_are_refused_before_ssh_is_called(laptop: Laptop, host: str) -> None:
    for done in (laptop.run("ls", host=host), laptop.world.run("ls", env={"HPCML_HOST": host})):
        assert done.returncode == errors.USAGE
        assert "is not the name of a host" in done.stderr
    assert not (laptop.state / "calls").exists()


def test_output_and_status_are_passed_on(laptop: Laptop) -> None:
    laptop.run("submit", "--name", "first", "job.py")
    done = laptop.run("status", "first", "--json")
    assert (done.returncode, json.loads(done.stdout)["run"]) == (0, laptop.runs()[0])
    assert laptop.world.run("ls", "--json", env={"HPCML_HOST": "cluster"}).stdout == laptop.run("ls", "--json").stdout
    done = laptop.run("status", "nosuch", "--json")
    assert done.returncode == errors.NOT_FOUND
    assert json.loads(done.stdout)["exit_status"] == errors.NOT_FOUND
    assert laptop.run("cancel", "first").returncode == 0
    assert len(laptop.world.calls("scancel")) == 1


def test_what_a_shell_prints_as_it_starts_is_no_output_of_a_command(laptop: Laptop) -> None:
    laptop.run("submit", "--name", "first", "job.py")
    laptop.tell("chatty")
    done = laptop.run("status", "first", "--json")
    assert (done.returncode, json.loads(done.stdout)["run"]) == (0, laptop.runs()[0])
    assert done.stderr == "Welcome to the cluster!\n"
    done = laptop.run("doctor", "--json")
    assert json.loads(done.stdout)
    assert "Welcome" not in done.stderr, "once a day"


def test_an_empty_host_is_this_machine(laptop: Laptop) -> None:
    done = laptop.world.run("--host=", "ls", "--json", env={"HPCML_HOST": "cluster"})
    assert (done.returncode, done.stdout) == (0, "[]\n")
    assert not (laptop.state / "calls").exists()


def test_help_and_wrong_options_need_no_connection(laptop: Laptop) -> None:
    assert laptop.run("submit", "--help").returncode == 0
    assert laptop.run("submit", "--nosuch", "job.py").returncode == errors.USAGE
    assert laptop.run("submit", "nosuch.py").returncode == errors.NOT_FOUND
    assert laptop.run().returncode == errors.USAGE
    assert not (laptop.state / "calls").exists()


def test_commands_share_one_login(laptop: Laptop) -> None:
    for words in (["ls"], ["submit", "job.py"], ["status"], ["fetch", "last"]):
        assert laptop.run(*words).returncode == 0
    assert len([words for words in laptop.calls() if "-fNT" in words]) == 1


@pytest.mark.parametrize(("mode", "status"), [
    ("refuse", errors.NO_ACCESS), ("unreachable", errors.UNREACHABLE), ("hostkey", errors.NO_ACCESS)])  # fmt: skip
def test_a_login_that_fails(laptop: Laptop, mode: str, status: int) -> None:
    laptop.tell(mode)
    done = laptop.run("submit", "job.py")
    assert done.returncode == status, done.stderr
    assert laptop.runs() == laptop.staged() == []


def test_the_doctor_tells_of_the_way_in(laptop: Laptop) -> None:
    """A name that the profile gives several login nodes is told, an alias of the user's is not; and ssh is quoted."""

    def login_node(host: str = "cluster") -> dict[str, str]:
        done = laptop.run("doctor", "--json", host=host)
        found = json.loads(done.stdout)["findings"]
        assert done.returncode == (errors.UNFIT if any(one["state"] == "red" for one in found) else 0)
        return next(one for one in found if one["check"] == "login-node")

    assert login_node()["state"] == "green"
    laptop.tell(HPCML_LOGIN__HOST="cluster")
    assert login_node()["state"] == "yellow"
    assert "login.hosts" in login_node()["remedy"]
    here = socket.gethostname().partition(".")[0]
    laptop.tell(HPCML_LOGIN__HOST="cluster", HPCML_LOGIN__HOSTS=f'["other.x", "{here}.x"]')
    assert f"reaches {here}.x" in login_node()["sentence"]
    laptop.tell("unreachable")
    nowhere = login_node("nosuch")
    assert nowhere["state"] == "red"
    assert "Could not resolve hostname cluster" in nowhere["sentence"]


def test_no_hpcml_there(laptop: Laptop) -> None:
    laptop.tell(PATH=str(laptop.world.bin))
    for done in (laptop.run("submit", "job.py"), laptop.world.run("tunnel", "--host", "cluster", "last")):
        assert done.returncode == errors.NOT_FOUND
        assert "not installed on cluster (login.hpcml)" in done.stderr


def test_the_path_of_a_login_shell_is_tried_and_what_its_profile_leaves_running_keeps_nobody_waiting(
    laptop: Laptop,
) -> None:
    """The profile sets the PATH, prints to standard output, would read our input, and leaves a process.

    That holds the call's output open, as `ssh` waits for everybody who does; that the run has ended was said before.
    """
    laptop.run("submit", "--name", "over", "job.py")
    laptop.run("cancel", "over")
    path = f"{laptop.world.top}/far-bin:{laptop.world.environment['PATH']}"
    left = "echo welcome\ncat\nsleep 600 &\necho $! >>~/left\n"
    (laptop.far / ".bash_profile").write_text(f"{left}PATH={shlex.quote(path)}\n")
    laptop.tell(PATH=f"{laptop.world.environment['PATH']}")
    try:
        done = laptop.run("logs", "-f", "over", timeout=240)
        assert (done.returncode, done.stdout) == (0, ""), done.stderr
    finally:
        for pid in (laptop.far / "left").read_text().split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)


def test_a_tunnel_tries_the_path_of_a_login_shell_too(laptop: Laptop) -> None:
    """Its profile prints, complains and would read our input; the words of the command arrive unchanged."""
    laptop.run("submit", "--name", "over", "job.py")
    laptop.run("cancel", "over")
    path = f"{laptop.world.top}/far-bin:{laptop.world.environment['PATH']}"
    (laptop.far / ".bash_profile").write_text(f"echo welcome\necho noise >&2\ncat\nPATH={shlex.quote(path)}\n")
    laptop.tell(PATH=f"{laptop.world.environment['PATH']}")
    done = laptop.world.run("tunnel", "--host", "cluster", "over")
    assert done.returncode == errors.UNAVAILABLE, done.stderr
    assert "has ended: you cancelled the run" in done.stderr
    done = laptop.world.run("tunnel", "--host", "cluster", "$(touch pwned) no'such \\\"run")
    assert done.returncode == errors.NOT_FOUND, done.stderr
    assert done.stderr.startswith("hpcml: There is no run '$(touch pwned) no'such \\\"run'"), done.stderr
    assert not list(laptop.world.top.rglob("pwned"))


def kill_served(laptop: Laptop, questions: int) -> None:
    """Kill the login node's hpcml of a tunnel, once it has asked Slurm something."""
    until(lambda: len(laptop.world.calls("squeue")) > questions)
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            ours = f"HOME={laptop.far}\0".encode() in path.read_bytes()
            if ours and b"--serve-laptop" in path.with_name("cmdline").read_bytes():
                os.kill(int(path.parent.name), signal.SIGKILL)


def test_a_tunnel_s_link_is_lost_and_its_hpcml_killed(laptop: Laptop) -> None:
    """A lost link is made again by one new login; an hpcml there that dies while the link stands is an error."""
    laptop.run("submit", "job.py")
    questions = len(laptop.world.calls("squeue"))
    words = [str(laptop.world.command), "tunnel", "--host", "cluster", "last"]
    tunnel = subprocess.Popen(words, env=laptop.world.environment, cwd=laptop.world.project, stdin=subprocess.DEVNULL,
                              stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True)  # fmt: skip
    assert tunnel.stderr is not None
    try:
        assert "is PENDING: " in tunnel.stderr.readline()
        (control,) = Path(laptop.world.environment["HPCML_LOGIN__CONTROL"]).iterdir()
        control.unlink()
        kill_served(laptop, questions)
        assert "The connection to cluster was lost" in tunnel.stderr.readline()
        assert "The connection to the cluster is open" in tunnel.stderr.readline()
        kill_served(laptop, len(laptop.world.calls("squeue")))
        _, said = tunnel.communicate(timeout=120)
    finally:
        tunnel.kill()
    assert tunnel.returncode == errors.UNREACHABLE, said
    assert "without a message" in said
    assert len([words for words in laptop.calls() if "-fNT" in words]) == 2


def test_something_else_is_there(laptop: Laptop) -> None:
    done = laptop.run(
        "ls", env=laptop.stand_in("import sys\nprint('hpcml: no option', file=sys.stderr)\nsys.exit(64)\n")
    )
    assert done.returncode == errors.CONFIG
    assert "its version differs" in done.stderr


@pytest.mark.parametrize(
    ("startup", "words"),
    [
        ("echo closed for today; exit 3", ["ls"]),
        ("exec bash", ["submit", "--name", "$(touch pwned)`touch pwned`", "job.py"]),
        ("exec bash", ["pack", "-o", "packed"]),
        ("exec bash", ["fetch", "last"]),
        ("exec bash", ["tunnel", "last"]),
    ],
)
def test_a_login_shell_that_runs_no_command_gets_no_line_of_ours_to_run(
    laptop: Laptop, startup: str, words: list[str]
) -> None:
    """A startup file exits, or starts a shell that would read the words and the files as commands."""
    (laptop.world.project / "job.py").write_text("touch pwned\n")
    enter = laptop.state / "enter"
    enter.write_text(f"cd {shlex.quote(str(laptop.far))}\n{startup}\n")
    done = laptop.run(*words, timeout=120)
    assert done.returncode == errors.CONFIG, done.stderr
    status = "3" if "exit" in startup else "0"
    assert f"ran no command: it exited with status {status} (cluster)" in done.stderr
    assert ("  | closed for today\n" in done.stderr) == ("closed" in startup)
    assert not list(laptop.world.top.rglob("pwned"))


@pytest.mark.parametrize(
    ("line", "status", "says"),
    [
        ("import hpcml; hpcml.__version__ = '9.9'", 0, "but 9.9 on cluster"),
        (
            "from hpcml.remote import server; server.PROTOCOL = 3",
            errors.CONFIG,
            "version mismatch: laptop 2, cluster 3",
        ),
    ],
)
def test_another_version_is_noted_and_another_protocol_refused(
    laptop: Laptop, line: str, status: int, says: str
) -> None:
    program = f"import sys\n{line}\nfrom hpcml.cli.main import main\nsys.exit(main())\n"
    done = laptop.run("ls", env=laptop.stand_in(program))
    assert done.returncode == status, done.stderr
    assert says in done.stderr


OLDER = """
import sys
from hpcml import earlier_names
from hpcml.cli import commands, interconnect, main
commands.COMMANDS["fabric"] = commands.COMMANDS.pop("interconnect")
sys.modules["hpcml.cli.fabric"] = interconnect
earlier_names.CURRENT.clear()
sys.exit(main.main())
"""


def test_a_command_with_another_name_there(laptop: Laptop) -> None:
    """A laptop sends the earlier name, which every version knows, and the login node has no note on that."""
    older = laptop.stand_in(OLDER)
    for word, env, notes in (("interconnect", older, 0), ("interconnect", {}, 0), ("fabric", {}, 1)):
        done = laptop.run(word, "--nodes", "2", "--dry-run", env=env)
        assert done.returncode == 0, done.stderr
        assert "asks for" in done.stdout
        assert done.stderr.count("is now called") == notes


def test_the_link_breaks_within_the_files(laptop: Laptop) -> None:
    (laptop.world.project / "more.py").write_text("# " + "x" * 100_000)
    laptop.tell("payload")
    done = laptop.run("submit", "job.py")
    assert done.returncode == errors.UNREACHABLE
    assert "Nothing was submitted." in done.stderr
    assert laptop.runs() == laptop.staged() == []
    assert laptop.world.jobs() == {}


def test_the_link_breaks_before_the_run_is_handed_over(laptop: Laptop) -> None:
    laptop.tell("go")
    done = laptop.run("submit", "job.py")
    assert done.returncode == errors.ANSWER_LOST
    assert "hpcml --host cluster status job-" in done.stderr
    assert laptop.world.jobs() == {}
    assert laptop.staged() == []


def test_the_answer_is_lost_and_the_run_found_again(laptop: Laptop) -> None:
    laptop.tell("answer")
    done = laptop.run("submit", "job.py")
    assert done.returncode == errors.ANSWER_LOST
    command = shlex.split(done.stderr.partition("Check the run's state: hpcml ")[2].strip().rstrip("."))
    assert len(laptop.world.jobs()) == 1
    laptop.tell()
    found = laptop.world.run(*command, "--json")
    assert json.loads(found.stdout)["job"] in laptop.world.jobs()
    assert laptop.staged() == []


def test_a_run_is_in_the_hold_though_its_laptop_has_gone(laptop: Laptop) -> None:
    """As when the laptop falls asleep: the run waits for the hold, and the message says how to find it."""
    hold = json.loads(laptop.run("hold", "--nodes", "1", "--time", "1h", "--json").stdout)["run"]
    laptop.tell("answer")
    done = laptop.run("run", "--in", "last", "job.py")
    assert done.returncode == errors.ANSWER_LOST, done.stderr
    (run,) = set(laptop.runs()) - {hold}
    assert run in done.stderr.replace("\n", "")
    laptop.tell()
    status = json.loads(laptop.run("status", run, "--json").stdout)
    assert (status["state"], status["hold"]) == ("PENDING", hold)
    assert laptop.staged() == []


def test_ctrl_c_means_there_what_it_means_here(laptop: Laptop) -> None:
    """The run goes on, the other side ends too, and says how to come back."""
    laptop.run("submit", "job.py")
    words = [str(laptop.world.command), "--host", "cluster", "logs", "-f", "last"]
    process = subprocess.Popen(words, env=laptop.world.environment, cwd=laptop.world.project, stdin=subprocess.DEVNULL,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)  # fmt: skip
    calls = len(laptop.world.calls("squeue"))
    until(lambda: len(laptop.world.calls("squeue")) > calls)
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "Interrupted." in err
    until(lambda: not [line for line in processes(str(laptop.far)) if "--serve-laptop" in line])


def processes(home: str) -> list[str]:
    """The command lines of processes with this home."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if f"HOME={home}\0".encode() in (folder / "environ").read_bytes():
                found.append((folder / "cmdline").read_text(errors="replace").replace("\0", " "))
        except OSError:
            continue
    return found


def test_ctrl_c_within_the_files_submits_nothing(laptop: Laptop) -> None:
    (laptop.world.project / "more.py").write_text("# " + "x" * 900_000)
    laptop.tell("stall")
    words = [str(laptop.world.command), "--host", "cluster", "submit", "job.py"]
    process = subprocess.Popen(words, env=laptop.world.environment, cwd=laptop.world.project, stdin=subprocess.DEVNULL,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)  # fmt: skip
    until(laptop.staged)
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "Interrupted; nothing was submitted." in err
    until(lambda: not laptop.staged() and not processes(str(laptop.far)))
    assert laptop.runs() == laptop.staged() == processes(str(laptop.far)) == []


def test_the_project_s_settings_go_with_the_script(laptop: Laptop) -> None:
    (laptop.world.project / "hpcml.toml").write_text("[defaults]\nnodes = 3\n")
    assert laptop.run("submit", "job.py").returncode == 0
    plan = json.loads((laptop.far / ".hpcml/runs" / laptop.runs()[0] / "plan.json").read_text())
    assert plan["inside"]["job"]["nodes"] == 3


def test_code_whose_modules_would_not_be_sent_is_refused(laptop: Laptop) -> None:
    (laptop.world.project / "job.py").write_text("import tables\n")
    (laptop.world.project / "tables.py").write_text("#" * 2_000_000)
    done = laptop.run("submit", "job.py")
    assert done.returncode == errors.USAGE, done.stderr
    assert "(tables.py (larger than code.max_file = 1M))" in done.stderr
    assert not laptop.runs()
    assert laptop.run("submit", "--set", "code.max_file=3M", "job.py").returncode == 0
    (run,) = laptop.runs()
    assert (laptop.far / ".hpcml/runs" / run / "code/tables.py").stat().st_size == 2_000_000


def test_a_quota_that_is_used_up_there(laptop: Laptop) -> None:
    shutil.rmtree(laptop.far / ".hpcml", ignore_errors=True)
    (laptop.world.project / "more.py").write_text("# " + "x" * 500_000)
    program = "import resource, sys\nresource.setrlimit(resource.RLIMIT_FSIZE, (100 << 10, 100 << 10))\n"
    env = laptop.stand_in(f"{program}from hpcml.cli.main import main\nsys.exit(main())\n")
    done = laptop.run("submit", "job.py", env=env)
    assert done.returncode == errors.STORAGE, done.stderr
    assert "File too large" in done.stderr
    assert laptop.runs() == laptop.staged() == []
