"""The commands as a user meets them: help, what belongs to the script, finding runs, output that others read."""

from __future__ import annotations

import json
import subprocess

import pytest

import hpcml
from hpcml import errors
from hpcml.cli.commands import COMMANDS
from world import World


def test_help_and_version(world: World) -> None:
    helped, bare = world.run("--help"), world.run()
    assert (helped.returncode, bare.returncode) == (0, errors.USAGE)
    assert bare.stdout == helped.stdout
    for name in COMMANDS:
        assert f"\n  {name} " in helped.stdout
    assert "Write hpcml's options before SCRIPT" in world.run("submit", "--help").stdout
    assert world.run("--version").stdout == f"hpcml {hpcml.__version__}\n"


ARGUMENTS = (
    "--nodes",
    "9",
    "--",
    "-x",
    "--help",
    "--json",
    "",
    " ",
    "a\nb",
    "it's",
    '"$HOME"',
    "\\",
    "*",
    "é",
    "\udcff",
)


def test_what_follows_the_script_is_the_scripts(world: World) -> None:
    run = world.made("submit", "--site", "slurm", "--nodes", "2", "job.py", "--", *ARGUMENTS)
    plan = json.loads((run / "plan.json").read_text())
    assert tuple(plan["inside"]["code"]["arguments"]) == ARGUMENTS
    assert plan["inside"]["job"]["nodes"] == 2


@pytest.mark.parametrize("site", ["slurm", "local"])
def test_dry_runs_write_nothing(world: World, site: str) -> None:
    before = sorted(path for path in world.top.rglob("*") if world.state not in path.parents)
    plan = world.run("submit", "--site", site, "--dry-run", "--json", "job.py")
    dry = world.run("submit", "--site", site, "--dry-run=script", "job.py")
    assert plan.returncode == dry.returncode == 0
    assert sorted(path for path in world.top.rglob("*") if world.state not in path.parents) == before
    assert world.calls("sbatch") == []
    assert dry.stdout.startswith("#!/bin/bash\n")
    assert json.loads(plan.stdout)["site"] == site


def test_a_reader_that_leaves_is_no_error(world: World) -> None:
    script = 'for i in 1 2 3; do "$0" site show slurm --origin; done | head -n 1; echo "${PIPESTATUS[@]}"'
    environment = {**world.environment, "PATH": f"{world.environment['PATH']}:/usr/bin:/bin"}
    done = subprocess.run(["bash", "-c", script, str(world.command)], env=environment, cwd=world.project, capture_output=True,
                          text=True, check=True)  # fmt: skip
    assert done.stderr == ""
    assert done.stdout.startswith("# slurm: named by --site\n")


def test_a_value_says_where_it_comes_from(world: World) -> None:
    (world.project / "hpcml.toml").write_text('[defaults]\naccount = "me"\n[site.leonardo.workers]\nthreads = 3\n')
    done = world.run(
        "site", "show", "leonardo", "--origin", "--set", "workers.restarts=1", env={"HPCML_DEADLINES__WORKERS": "7s"}
    )
    lines = dict(line.split(" = ", 1) for line in done.stdout.splitlines()[1:])
    assert lines["defaults.account"] == f'"me"  # {world.project}/hpcml.toml'
    assert lines["workers.threads"] == f"3  # {world.project}/hpcml.toml [site.leonardo]"
    assert lines["workers.restarts"] == "1  # --set"
    assert lines["deadlines.workers"] == '"7s"  # HPCML_DEADLINES__WORKERS'
    assert lines["network.interface"] == '"ib0"  # profile leonardo'
    assert lines["workers.per_node"] == "0  # default"
    assert lines["scheduler"] == '"slurm"  # profile slurm'


def test_facts_of_a_site_and_what_differs_between_two(world: World) -> None:
    (world.project / "hpcml.toml").write_text('[network]\ninterface = "ib7"\n')
    rows = {row["key"]: row for row in json.loads(world.run("site", "show", "leonardo", "--facts", "--json").stdout)}
    assert rows["network.interface"] == {
        "key": "network.interface",
        "value": "ib7",
        "origin": f"{world.project}/hpcml.toml",
    }
    assert rows["network.adapters"]["value"] == ["mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3"]
    assert rows["network.adapters"].keys() == {"key", "value", "source", "date", "confidence"}
    assert rows["login.certificate"]["value"] == "12 hours"
    mine = world.project / "mine.toml"
    mine.write_text(
        "extends = 'leonardo'\n[partitions.boost_usr_prod]\nmax_nodes = 8\n[partitions.new]\nmax_nodes = 3\n"
    )
    shown = world.run("site", "diff", "leonardo", str(mine)).stdout
    assert "partitions.boost_usr_prod.max_nodes\n  leonardo: 64\n      documented 2025-03-20: " in shown
    assert f"  {mine}: 8\n      from {mine}\n" in shown
    assert f"partitions.new.max_nodes\n  leonardo: not set\n  {mine}: 3\n" in shown, "one has a partition more"
    assert "network" not in shown, "a project's settings do not count"
    differ = json.loads(world.run("site", "diff", "juwels", "vega", "--json").stdout)
    partition = next(row for row in differ if row["key"] == "defaults.partition")
    assert [side["value"] for side in partition["sites"]] == ["booster", "gpu"]
    for words, problem in (
        (("diff", "leonardo"), "needs two profiles"),
        (("show", "leonardo", "vega"), "accepts at most one profile"),
        (("ls", "leonardo"), "accepts no profile"),
    ):
        done = world.run("site", *words)
        assert (done.returncode, problem in done.stderr) == (errors.USAGE, True), done.stderr


def test_runs_are_found_by_what_the_user_calls_them(world: World) -> None:
    first, second = world.submit("--name", "one"), world.submit("--name", "two")
    third = world.submit("--name", "one")
    for word, expected in ((first.name, first), ("two", second), ("one", third), ("101", first), ("last", third),
                           (second.name[:-2], second)):  # fmt: skip
        assert json.loads(world.run("status", word, "--json").stdout)["directory"] == str(expected), word
    done = world.run("status", "on")
    assert done.returncode == errors.NOT_FOUND
    assert f"One of: {first.name}, {third.name}." in done.stderr
    done = world.run("status", "tow")
    assert done.returncode == errors.NOT_FOUND
    assert "Did you mean two?" in done.stderr
    assert "Did you mean last?" in world.run("status", "lasst").stderr


def test_logs_before_there_are_any(world: World) -> None:
    world.submit()
    done = world.run("logs", "last", "worker")
    assert done.returncode == errors.NOT_FOUND
    assert "log yet" in done.stderr
    assert "The run is PENDING: waiting for jobs" in done.stderr


def test_a_defect_is_one_sentence_with_a_status_of_its_own(world: World) -> None:
    broken = "import sys; from hpcml.cli import main, ls; ls.run = lambda options: 1 / 0; sys.exit(main.main(['ls', '--json']))"
    done = subprocess.run([str(world.command.with_name("python")), "-c", broken], env=world.environment, capture_output=True,
                          text=True, check=False)  # fmt: skip
    assert done.returncode == errors.INTERNAL
    assert "defect in hpcml: ZeroDivisionError" in done.stderr
    assert "Traceback" not in done.stderr
    assert json.loads(done.stdout)["exit_status"] == errors.INTERNAL


UNEXPECTED = (
    ("ConnectionRefusedError(111, 'Connection refused')", errors.INTERNAL),  # of a network
    ("BlockingIOError(11, 'Resource temporarily unavailable')", errors.INTERNAL),  # of a process that cannot start
    ("OSError(37, 'No locks available')", errors.INTERNAL),
    ("OSError(28, 'No space left on device')", errors.STORAGE),
    ("PermissionError(13, 'Permission denied', 'a.txt')", errors.STORAGE),
)
RAISES = """
import sys
from hpcml.cli import ls, main
def fail(_): raise {}
ls.run = fail
sys.exit(main.main(["ls", "--json"]))
"""


@pytest.mark.parametrize(("error", "status"), UNEXPECTED)
def test_only_the_system_s_errors_of_files_are_told_as_such(world: World, error: str, status: int) -> None:
    done = subprocess.run([str(world.command.with_name("python")), "-c", RAISES.format(error)], env=world.environment,
                          capture_output=True, text=True, check=False)  # fmt: skip
    assert (done.returncode, json.loads(done.stdout)["exit_status"]) == (status, status)
    assert ("defect" in done.stderr) == (status == errors.INTERNAL)


def test_submit_says_where_the_run_is(world: World) -> None:
    done = world.run("submit", "--site", "slurm", "--json", "job.py")
    facts = json.loads(done.stdout)
    assert (facts["run"], facts["job"], facts["scheduler"]) == (world.directory().name, "101", "slurm")
    done = world.run("submit", "--site", "slurm", "job.py")
    assert done.stdout == ""
    assert " job 102 " in done.stderr
    assert "The run wrote no results" in world.run("fetch", "last").stderr
    out = world.runs / facts["run"] / "out"
    out.mkdir(exist_ok=True)
    (out / "table.csv").touch()
    fetched = world.run("fetch", facts["run"])
    assert (fetched.returncode, "already on this machine" in fetched.stderr) == (errors.USAGE, True)


def test_an_idle_time_is_in_the_plan_of_a_jupyter_session(world: World) -> None:
    for words, seconds in (((), 3600.0), (("--idle", "30m"), 1800.0), (("--idle", "off"), 0.0)):
        done = world.run("jupyter", "--site", "slurm", "--dry-run", "--json", *words)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["inside"]["code"]["idle"] == seconds


def test_the_dry_run_is_what_is_sent(world: World) -> None:
    """But for the run's id, which has the time and a number in it."""
    dry = world.run("submit", "--site", "slurm", "--dry-run=script", "job.py").stdout
    directory = world.submit()
    name = next(line for line in dry.splitlines() if "hpcml:" in line).rpartition("hpcml:")[2]
    assert dry.replace(name, directory.name) == (directory / "job.sh").read_text()


def test_logs_of_each_role(world: World) -> None:
    logs = world.submit() / "logs"
    for name in ("script", "scheduler", "job", "worker-n1", "worker-n2"):
        (logs / f"{name}.log").write_text(f"from {name}\n")
    (logs / "scheduler.log").write_text("")
    assert "empty" in world.run("logs", "last", "scheduler").stderr
    done = world.run("logs")
    assert (done.stdout, "empty" in done.stderr) == ("from script\n", False)
    assert world.run("logs", "job").stdout == "from job\n"
    assert world.run("logs", "last", "workers").stdout == (
        "==> worker-n1.log <==\nfrom worker-n1\n==> worker-n2.log <==\nfrom worker-n2\n"
    )


def test_a_terminal_that_knows_only_ascii(world: World) -> None:
    done = world.run("--help", env={"LC_ALL": "C", "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"})
    assert done.returncode == 0, done.stderr
