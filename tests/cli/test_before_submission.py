"""Before a submission: its cost, the grant, Slurm's estimate and past runs, within a deadline and never in the way."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hpcml import errors
from tests.said import in_order, says
from world import World, write_end, write_events

BUDGET = """\
account  start  end  total  used  all
astro    2026   2027 2000   500   500
"""
COST = """
[cost]
unit = "core-h"
weights = { cpu = "1", "gres/gpu" = "8" }
largest = true
budget = ["grants", "-b"]
budget_row = '^{account}\\s+\\d+\\s+\\d+\\s+(?P<total>\\d+)\\s+(?P<used>\\d+)\\s'
ask = true
"""

CLOSED = "include-system-site-packages = false\nversion = 3.11.2\n"
MAY_USE_CUML = "try:\n    from cuml.dask.cluster import KMeans\nexcept ImportError:\n    pass\n"


@pytest.fixture
def priced(world: World) -> World:
    """A world whose site has a budget command and Slurm's estimates."""
    folder = world.home / ".config/hpcml"
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(COST)
    (world.state / "budget").write_text(BUDGET)
    grants(world, 'cat "$FAKE_STATE/budget"')
    return world


def grants(world: World, line: str) -> None:
    """Let the site's budget command be a line of shell."""
    path = world.bin / "grants"
    path.write_text(f"#!/bin/sh\n{line}\n")
    path.chmod(0o755)


def submit(world: World, *words: str) -> str:
    options = ("--account", "astro", "--nodes", "2", "--cpus-per-node", "4", "--time", "2:00:00", *words)
    done = world.run("submit", "--site", "slurm", *options, "job.py")
    assert done.returncode == 0, done.stderr
    return done.stderr


def test_what_it_costs_and_when_it_starts(priced: World) -> None:
    text = submit(priced)
    (line,) = [line for line in text.splitlines() if line.startswith("  asks for ")]
    assert re.search(
        in_order("2 nodes, time limit 02:00:00, at most 4", "= 16 core-h, 0.8", "astro (1500"), line.split(None, 2)[2]
    )
    assert text.index("  asks for ") < text.index("  run ")
    assert priced.calls("scontrol") == []
    done = priced.run("submit", "--site", "slurm", "--dry-run=script", "--account", "nobody", "--time", "60", "job.py")
    assert done.returncode == 0
    assert "does not list account nobody" in done.stderr


def test_a_dry_run_is_a_summary(priced: World) -> None:
    """Of what is asked for, what it costs and where the results go; the batch script has an option of its own."""
    (priced.project / "large.csv").write_bytes(b"1" * (2 << 20))
    (priced.project / "lib.py").touch()
    words = ("--account", "astro", "--nodes", "2", "--cpus-per-node", "4", "--time", "2:00:00")
    done = priced.run("submit", "--site", "slurm", *words, "--dry-run", "job.py", "--k", "a b")
    assert done.returncode == 0, done.stderr
    facts = {line[:10].strip(): line[11:] for line in done.stdout.splitlines() if line[:1] != " "}
    assert facts.pop("results").endswith("/runs/job-…/out")
    assert facts.pop("python").startswith("/")
    assert "large.csv (larger than code.max_file" in facts["code"]
    assert facts.pop("code").startswith("would copy 2 files of ")
    assert facts == {
        "run": "job on site slurm; nothing is submitted",
        "command": "job.py --k 'a b'",
        "asks for": says(
            "2 nodes, time limit 02:00:00, at most 4", "node-h = 16 core-h, 0.8", "% of the grant of account astro"
        ),
        "start": "Slurm would start the job now",
        "processes": says("client, dask: 1 scheduler, 8 workers", "4 on each node"),
        "because": says("does not name Dask"),
        "network": "hpcml chooses the protocol on the nodes",
        "script": "--dry-run=script prints the batch script",
    }
    assert priced.left() == []


def test_a_budget_command_that_does_not_exist_is_named(priced: World) -> None:
    (priced.bin / "grants").unlink()
    done = priced.run("submit", "--site", "slurm", "--account", "astro", "--dry-run", "job.py")
    assert done.stdout == says("not known", "cannot read the budget", "the command grants does not exist here")


def test_a_partition_with_grants_of_its_own_is_asked_for_them(priced: World) -> None:
    grants(priced, '[ "$1" = --own ] && echo "astro 2026 2027 4000 4000 0"')
    own = ("--set", 'partitions.small.budget=["grants", "--own"]', "--partition", "small")
    assert "of the grant of account astro" in submit(priced, *own)


def test_a_dry_run_shows_what_the_partition_adds_and_where_that_is_set(priced: World) -> None:
    own = ("--set", 'partitions.small.account="astro"', "--set", 'partitions.small.constraint="fast"')
    text = priced.run("submit", "--site", "slurm", "--dry-run", *own, "--partition", "small", "job.py").stdout
    assert "--account=astro (--set: partitions.small.account)" in text
    assert "--constraint=fast (--set: partitions.small.constraint)" in text


def test_without_the_keys_nobody_is_asked(world: World) -> None:
    text = submit(world)
    asked = "  asks for   2 nodes, time limit 02:00:00, at most 4 node-h\n"
    assert asked in text
    assert [call["arguments"] for call in world.calls("sbatch") if "--test-only" in call["arguments"]] == []
    dry = submit(world, "--dry-run=script")
    assert asked in dry
    assert "one attempt" not in dry
    assert len(world.calls("sbatch")) == 1
    assert world.calls("scontrol") == []
    for words, most in ((("--max-restarts", "2"), 12), (("--max-node-hours", "9"), 9)):
        dry = submit(world, "--dry-run=script", "--until-done", *words)
        assert f"all attempts together use at most {most} node-h ({' '.join(words)})" in dry
    early = "Slurm may warn the script 60 s early"
    assert early in " ".join(submit(world, "--dry-run=script", "--until-done", "--time", "4").split())
    assert early not in " ".join((dry + submit(world, "--dry-run=script", "--time", "4")).split())


def test_what_fails_or_hangs_stops_no_submission(priced: World) -> None:
    grants(priced, "exit 3")
    priced.answer("sbatch", code=1, err="sbatch: error: slurm_persist_conn_open: no\n")
    done = priced.run("submit", "--site", "slurm", "--dry-run=script", "--account", "astro", "--time", "60", "job.py")
    assert done.returncode == 0
    assert "grants failed with exit status 3" in done.stderr
    assert "not known  slurm: Slurm refused the job: slurm_persist_conn_open: no\n" in done.stderr
    priced.answer("sbatch", code=124)
    assert "not known  slurm: " in submit(priced, "--dry-run=script")
    priced.answer("sbatch")
    assert "  run " in submit(priced)
    (priced.bin / "grants").unlink()
    assert "  run " in submit(priced)
    grants(priced, "exec sleep 600")
    assert "  run " in submit(priced), "within the minute that a command has here"


def test_a_project_does_not_say_what_is_started(priced: World) -> None:
    (priced.home / ".config/hpcml/config.toml").unlink()
    file = priced.project / "hpcml.toml"
    grants(priced, "echo started > started")
    for text in (COST, '[partitions.slurm]\nbudget = ["grants"]', '[site.slurm.cost]\nbudget = ["grants"]'):
        file.write_text(text)
        done = priced.run("submit", "--site", "slurm", "--account", "astro", "job.py")
        assert done.returncode == errors.CONFIG, done.stderr
        assert "budget', which decides" in done.stderr
        assert not (priced.project / "started").exists()


def past(world: World, seconds: int, exit_status: int = 0) -> Path:
    """Submit the script and write that it has ended after so long."""
    run = world.submit("--time", "2:00:00", "--nodes", "2")
    write_events(
        run,
        {"event": "allocated", "time": 1e9, "nodes": ["n1", "n2"]},
        {"event": "script-started", "time": 1e9 + 5},
        {"event": "torn-down", "time": 1e9 + seconds},
    )
    write_end(run, exit_status)
    return run


def test_runs_before_that_took_much_less(world: World) -> None:
    past(world, 430)
    assert "  time " not in submit(world), "one run tells nothing"
    past(world, 440)
    past(world, 7100, 1)
    assert (
        "the script's latest 2 runs took at most 00:07:20 of the time limit 02:00:00: --time 00:15:00 may be enough"
        in submit(world)
    )
    assert "  time " not in submit(world, "--nodes", "3")
    assert "  time " not in submit(world, "--time", "15"), "no more than was asked for"
    (past(world, 430) / "request.json").write_text("{")
    assert "  time " not in submit(world)


def test_runs_without_a_time_limit_or_of_another_site_tell_nothing_of_one(world: World) -> None:
    for name, value in (("site", "local"), ("time_limit", 0)):
        for _ in range(2):
            file = past(world, 430) / "plan.json"
            plan = json.loads(file.read_text())
            (plan if name in plan else plan["inside"]["job"])[name] = value
            file.write_text(json.dumps(plan))
        assert "may be enough" not in submit(world), name


def lost(world: World) -> Path:
    """Submit a script and write that the run ended because a node's GPU was gone."""
    run, now = world.submit("--nodes", "2"), time.time()
    write_events(
        run,
        {"event": "allocated", "time": now, "nodes": ["n2", "n3"]},
        {"event": "ending", "time": now + 1},
    )
    stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(now))
    (run / "logs" / "worker-n3.log").write_text(f"{stamp},000 - NVRM: GPU has fallen off the bus\n")
    write_end(run, 82, by="hpcml", message="workers were lost: n3")
    return run


def test_a_node_that_failed_is_named_for_a_day(world: World) -> None:
    run = lost(world)
    told = f"n3 made a run fail in the last 24 hours (GPU gone, {run.name}): exclude the node with --exclude n3"
    assert "--exclude n3" not in submit(world, "--dry-run=script"), "a dry run writes nothing"
    assert told in " ".join(submit(world).split())
    assert "--exclude" not in (world.runs / max(world.left(), key=lambda name: name[-20:]) / "job.sh").read_text()
    assert told in " ".join(submit(world, "--dry-run=script").split())
    assert "made a run fail" not in submit(world, "--exclude", "n4")
    assert "made a run fail" not in submit(world, "--nodelist", "n[3-4]")
    wanted = world.run("submit", "--site", "slurm", "--dry-run=script", "--set", "slurm.exclude_failed=true", "job.py")
    assert "#SBATCH --exclude=n3\n" in wanted.stdout
    more = ("--set", "slurm.exclude_failed=true", "--set", 'slurm.extra=["--exclude=n[7-8]"]')
    assert (
        "#SBATCH --exclude=n[7-8],n3\n"
        in world.run("submit", "--site", "slurm", "--dry-run=script", *more, "job.py").stdout
    )
    assert "n3" in (world.home / ".hpcml/nodes/slurm.json").read_text()
    failing = ("--site", "slurm", "--set", "slurm.exclude_failed=true", "--name", "careful")
    assert world.run("submit", *failing, "job.py").returncode == 0
    (world.home / ".hpcml/nodes/slurm.json").write_text('{"nodes": [], "judged": {}}')
    (run / "status.json").unlink()
    assert "--exclude" not in world.run("rerun", "careful", "--dry-run=script").stdout, "not those of the first time"
    other = world.run("submit", "--site", "local", "--dry-run=script", "job.py")
    assert "made a run fail" not in other.stderr


def test_why_and_status_remember_too(world: World) -> None:
    for verb in ("why", "status"):
        (world.home / ".hpcml/nodes/slurm.json").unlink(missing_ok=True)
        run = lost(world)
        assert world.run(verb, run.name).returncode == 0
        assert run.name in (world.home / ".hpcml/nodes/slurm.json").read_text()


def test_a_note_is_shown_once_for_a_folder_and_kept_with_the_run(world: World) -> None:
    (world.project / "large.csv").write_bytes(b"1" * (2 << 20))
    told = "hpcml does not copy large.csv (larger than code.max_file = 1M): do not change it until the run ends, because the run reads it in place"

    def notes() -> str:
        done = world.run("submit", "--site", "slurm", "job.py")
        assert done.returncode == 0, done.stderr
        return done.stderr

    assert f"hpcml: note: {told}.\n" in notes()
    assert "note:" not in notes()
    memory = world.home / ".hpcml" / "notes.json"
    assert memory.stat().st_mode & 0o777 == 0o600
    memory.write_text("{")
    assert told in notes(), "a damaged memory is none"
    assert f"note       {told}\n" in world.run("status", "--notes").stdout
    assert world.answers("status")["notes"] == [told]
    memory.unlink()
    (world.home / "elsewhere").mkdir()
    memory.symlink_to(world.home / "elsewhere" / "notes.json")
    assert told in notes()
    assert not list((world.home / "elsewhere").iterdir()), "nothing is written through a link"


def test_an_option_that_the_site_ignores_is_named_at_each_submission(world: World) -> None:
    for _ in range(2):
        done = world.run("submit", "--site", "slurm", "--set", 'slurm.remove=["--time"]', "--time", "20", "job.py")
        assert done.returncode == 0, done.stderr
        assert re.search(in_order("hpcml: note: ", "ignores --time"), done.stderr)


def test_a_banner_of_the_site_is_shown_once_a_day_as_it_is(world: World) -> None:
    """In all folders; a line that is new is shown, one with another clock is not. The run keeps all lines."""
    memory = world.home / ".hpcml" / "notes.json"
    other = world.project / "other"
    other.mkdir()
    (other / "job.py").write_text("print()")

    def banner(clock: str, more: str = "", folder: Path = world.project) -> list[str]:
        lines = "".join(f"--> Verifying rule {letter}...OK\n" for letter in "abcdefghi")
        world.answer("sbatch", then=True, err=f"{lines}{clock}: 12.5% used\n{more}")
        done = world.run("submit", "--site", "slurm", "job.py", cwd=folder)
        assert done.returncode == 0, done.stderr
        return [line for line in done.stderr.splitlines() if "sbatch: " in line]

    first = banner("2026-11-29T10:00:00")
    assert first[:1] == ["sbatch: --> Verifying rule a...OK"]
    assert len(first) == 10
    assert banner("2026-11-29T11:01:02", folder=other) == []
    assert banner("2026-11-29T11:01:03", "moved to gpu2\n") == ["sbatch: moved to gpu2"]
    assert len(world.answers("status")["notes"]) == 11
    known = json.loads(memory.read_text())
    known["sbatch"][0] = "2026-01-01"
    memory.write_text(json.dumps(known))
    assert len(banner("2026-11-30T10:00:00")) == 10


def test_a_partition_that_is_nowhere_is_refused_with_the_nearest_name(world: World) -> None:
    words = ("submit", "--site", "slurm", "--set", "partitions.boost_usr.max_nodes=4", "-p", "bost", "job.py")
    world.answer("scontrol", out="Partition bost not found\n", code=1)
    done = world.run(*words)
    assert (done.returncode, done.stdout) == (errors.REFUSED, "")
    told = "hpcml: There is no partition 'bost' (--partition).\nDid you mean boost_usr?\n"
    assert done.stderr.endswith(told), done.stderr
    assert (world.left(), world.calls("sbatch")) == ([], [])
    world.answer("scontrol", err="slurm_load_partitions error: Unable to contact slurm controller\n", code=1)
    done = world.run(*words)
    assert done.returncode == 0, "Slurm decides"
    assert re.search(in_order("partition bost is not in the profile", "Did you mean boost_usr?"), done.stderr)


def test_a_dry_run_shows_no_cost_for_a_partition_that_the_profile_does_not_list(world: World) -> None:
    world.answer("scontrol", err="slurm_load_partitions error: Unable to contact slurm controller\n", code=1)
    words = ("submit", "--dry-run", "--site", "leonardo", "--account", "a", "--until-done", "--time", "1h")
    known, unknown = (world.run(*words, "--partition", name, "job.py") for name in ("dcgp_usr_prod", "gpuq"))
    assert (known.returncode, unknown.returncode) == (0, 0), "only Slurm has all partitions"
    assert "node-h" in known.stdout
    assert "node-h" not in unknown.stdout
    assert "cost is unknown, because partition gpuq" in unknown.stdout
    assert "note: partition gpuq is not in the profile" in unknown.stderr


def test_a_variable_s_value_is_no_command(world: World) -> None:
    value = "a'b $(touch owned)"
    variables = world.submit("--env", f"NOTE={value}") / "environment.sh"
    command = ["bash", "-c", '. "$0"; printf %s "$NOTE"', str(variables)]
    done = subprocess.run(command, cwd=world.project, capture_output=True, text=True, check=True)
    assert (done.stdout, (world.project / "owned").exists()) == (value, False)


def test_gpus_for_a_script_that_can_use_them(world: World) -> None:
    packages = world.project / "mine/lib/python3.11/site-packages"
    for name in ("cuml", "cryptography", "dask", "dask_cuda", "distributed"):
        (packages / name).mkdir(parents=True)
        (packages / name / "__init__.py").touch()
    (world.project / "mine/bin").mkdir()
    (world.project / "mine/bin/python").symlink_to(Path(sys.executable).resolve())
    (world.project / "mine/pyvenv.cfg").write_text(CLOSED)
    world.script.write_text("from cuml.dask.cluster import KMeans\n")
    words = ("submit", "--site", "leonardo", "--account", "a", "--nodes", "4", "--python", "mine")
    sixteen = ("asks for", "4 nodes, partition boost_usr_prod, 16 GPUs", "64 core-h")

    submitted = world.run(*words, "job.py").stderr
    assert re.search(in_order(*sixteen, "\n             GPUs", "cuML", "--gpus-per-node 0"), submitted)
    [first] = world.runs.glob("job-*")
    assert "#SBATCH --gres=gpu:4\n" in (first / "job.sh").read_text()
    assert json.loads((first / "request.json").read_text())["spec"]["gpus_because"] == ["cuML"]
    shown = world.run(*words, "--dry-run", "job.py").stdout
    assert re.search(in_order("asks for", "16 GPUs", "\n           GPUs", "cuML", "--gpus-per-node 0"), shown)
    made = json.loads(world.run(*words, "--dry-run", "--json", "job.py").stdout)
    assert (made["gpus_because"], made["gpus_lacking"], made["inside"]["job"]["gpus"]) == (["cuML"], [], 4)
    assert "dcgp_usr_prod, time" in world.run(*words, "--gpus-per-node", "0", "job.py").stderr

    (packages / "cuml").rename(packages / "other")
    world.script.write_text(MAY_USE_CUML)
    made = json.loads(world.run(*words, "--dry-run", "--json", "job.py").stdout)
    assert (made["gpus_because"], made["gpus_lacking"], made["inside"]["job"]["gpus"]) == ([], ["cuml"], 0)
    lacking = world.run(*words, "job.py").stderr
    assert re.search(in_order("cuML", "lacks cuml", "CPUs", "--image", "hpcml[cuda12]"), lacking)
    assert "partition dcgp_usr_prod, time limit" in lacking
    (packages / "other").rename(packages / "cuml")
    assert "dcgp_usr_prod, time" in world.run("rerun", "last").stderr, "a repeated run asks for what the first had"
    assert "16 GPUs" in world.run("rerun", first.name).stderr


ARRAY = "#!/bin/bash\n#SBATCH --array=0-9\n#SBATCH --output=logs/%a.out\nls\n"


def test_a_site_without_slurm_refuses_an_array_before_its_folder_of_logs(world: World) -> None:
    (world.project / "arr.sh").write_text(ARRAY)
    done = world.run("submit", "--site", "local", "arr.sh")
    assert done.returncode == 64
    assert "The site 'local' starts no job array" in done.stderr
    assert "mkdir" not in done.stderr
    assert "mkdir -p logs" in world.run("submit", "--site", "slurm", "--dry-run", "arr.sh").stderr


NEEDS_RANKS = "import torch.distributed as dist\ndist.init_process_group('gloo', init_method='env://')\n"


def test_a_command_to_type_has_its_file_s_name_quoted(world: World, subtests: pytest.Subtests) -> None:
    """A name with blanks is one word of the command."""
    for name, text, words in (
        ("my run.sh", "echo\n", "bash 'my run.sh'"),
        ("my tool", "#!/usr/bin/perl\n", "perl 'my tool'"),
        ("my own.py", "#!/usr/bin/python3 -O\n", "/usr/bin/python3 -O 'my own.py'"),
        ("my job.sh", "#!/bin/bash\r\n#SBATCH -n 1\r\nls\r\n", "dos2unix 'my job.sh'"),
        ("my array.sh", "#!/bin/bash\n#SBATCH --array=0-100000\nls\n", "sbatch 'my array.sh'"),
        ("my ranks.py", NEEDS_RANKS, "python 'my ranks.py'"),
    ):
        (world.project / name).write_text(text)
        with subtests.test(name=name):
            assert words in world.run("submit", "--site", "slurm", "--dry-run", name).stderr
    (world.project / "my program").write_text("ls\n")
    assert "bash 'my program'" in world.run("submit", "--site", "slurm", "--dry-run", "--", "./my program").stderr
    assert "hpcml submit 'my new.py'" in world.run("new", "my new").stdout
