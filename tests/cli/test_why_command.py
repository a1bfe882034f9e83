"""`hpcml why` on runs that failed, run on, were refused, or hold hostile files."""

from __future__ import annotations

import io
import json
import shutil
import tarfile
from pathlib import Path
from typing import Any

import pytest

import planted
from failure_texts import TEXTS
from hpcml import errors
from world import World

FAILED = {"over": True, "state": "FAILED", "time": 1.0, "attempt": 0, "exit_status": 82, "by": "hpcml", "hint": "", "quote": [],
          "message": "workers were lost: n3: the worker task ended with exit status 1"}  # fmt: skip


def failed(world: World, *options: str, **facts: object) -> Path:
    """Submit a run and write what it would have written that failed."""
    directory = world.submit("--name", "job", *options)
    (directory / "logs").mkdir(exist_ok=True)
    (directory / "events.jsonl").write_text(
        '{"time": 1.0, "attempt": 0, "event": "allocated", "nodes": ["n1", "n3"]}\n'
    )
    (directory / "status.json").write_text(json.dumps(FAILED | facts))
    return directory


def why(world: World, *words: str) -> dict[str, Any]:
    done = world.run("why", "--json", *words)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_a_faulty_node_is_named_with_the_command_to_do_without_it(world: World) -> None:
    directory = failed(world, "--exclude", "n[7-8]")
    (directory / "logs/worker-n3.log").write_text(f"first\n{TEXTS['ecc'][0]}\n")
    (directory / "logs/worker-n1.log").write_text(f"{TEXTS['comm-closed'][0]}\n")
    lines = world.run("why").stdout.splitlines()
    assert lines[:2] == [f"run        {directory.name}", "cause      A GPU's memory is faulty (ECC) (on n3)."]
    assert lines[2].startswith("evidence   logs/worker-n3.log, line 2, ")
    assert lines[2].endswith(" on n3")
    assert lines[3] == f"  | {TEXTS['ecc'][0]}"
    assert f"again      hpcml rerun {directory.name} --exclude n7,n8,n3" in lines
    assert any(TEXTS["comm-closed"][0][:60] in line for line in lines)


def test_more_memory_and_more_time_than_was_asked_for(world: World) -> None:
    directory = failed(world, "--memory-per-node", "42G", "--time", "2:00:00", exit_status=137, by="script", state="OUT_OF_MEMORY",
                       message="the script was killed because the node's memory limit was reached (out of memory)")  # fmt: skip
    assert why(world)["options"] == ["--memory-per-node", "63G"]
    (directory / "status.json").write_text(json.dumps(FAILED | {"exit_status": 85, "by": "scheduler", "state": "TIMEOUT",
                                                               "message": "the time limit was reached"}))  # fmt: skip
    found = why(world)
    assert (found["short"], found["options"]) == ("time limit", ["--time", "3:00:00"])


def test_nothing_is_advised_that_the_site_does_not_take(world: World) -> None:
    limits = ("memory_per_node=50G", "max_time=2:30:00", "max_nodes=4")
    small = [word for limit in limits for word in ("--set", f"partitions.small.{limit}")]
    asked = ("--partition", "small", "--nodes", "2", "--memory-per-node", "42G", "--time", "2:00:00", *small)
    starved = {"exit_status": 137, "by": "script", "state": "OUT_OF_MEMORY", "message": "out of memory"}
    late = {"exit_status": 85, "by": "scheduler", "state": "TIMEOUT", "message": "the time limit was reached"}
    for more, end, expected in (
        (("--cpus-per-node", "8"), starved, ["--set", "workers.threads=4"]),
        (("--cpus-per-node", "8", "--set", "workers.threads=1"), starved, ["--nodes", "4"]),
        (("--set", "workers.threads=1", "--nodes", "3"), starved, []),
        (("--set", "partitions.small.memory_per_node=64G"), starved, ["--memory-per-node", "63G"]),
        ((), late, []),
        (("--set", "partitions.small.max_time=3:00:00"), late, ["--time", "3:00:00"]),
    ):
        directory = failed(world, *asked, *more, **end)
        found = why(world, directory.name)
        assert found["options"] == expected, more
        told = " ".join(expected) if expected else "until-done" if end is late else "smaller chunks"
        assert told in found["again"] + found["next_step"], more
        if expected:
            again = world.run(*found["again"].split()[1:], "--dry-run")
            assert again.returncode == 0, again.stderr


def test_without_evidence_it_is_not_known_and_says_where_to_look(world: World) -> None:
    directory = failed(world, exit_status=87, by="scheduler", message="the job ended without a word (Slurm: FAILED)")
    (directory / "logs/job.log").write_text("nothing of use\n")
    done = world.run("why")
    assert "\ncause      Not known: the job ended without a word (Slurm: FAILED).\n" in done.stdout
    assert f"look       hpcml logs {directory.name} job\n" in done.stdout
    assert "again" not in done.stdout


def test_a_run_that_ended_well_waits_or_was_refused(world: World) -> None:
    directory = failed(
        world, exit_status=0, by="script", state="COMPLETED", message="the script ended with exit status 0"
    )
    (directory / "logs/driver.log").write_text("out of memory\nKilled\nOSError: [Errno 28] No space left on device\n")
    found = why(world)
    assert (found["failed"], found["cause"]) == (False, "the run ended well: there is no failure to explain")
    assert world.run("why").stdout.startswith(f"run        {directory.name}\nstate      COMPLETED. The run ended well")
    shutil.rmtree(directory)
    world.submit()
    found = why(world)
    assert (found["failed"], found["state"]) == (False, "PENDING")
    world.answer("sbatch", err=TEXTS["qos"][0], code=1)
    assert world.run("submit", "--site", "slurm", "--name", "no", str(world.script)).returncode == 65
    found = why(world, "no")
    assert (found["failed"], found["state"], found["rule"]) == (True, "REFUSED", "qos")


def test_hostile_logs_are_shown_and_not_obeyed(world: World) -> None:
    directory = failed(world)
    (directory / "logs/worker-n3.log").write_text(f"{planted.ESCAPES}\n{TEXTS['ecc'][0]}{planted.ESCAPES}\n")
    done = world.run("why")
    assert "ECC" in done.stdout
    assert planted.is_plain(done.stdout + done.stderr)


@pytest.mark.parametrize("name", ["logs/worker-n3.log", "attempts/0/script-error.json", "plan.json"])
def test_hostile_files_are_passed_over_or_named(world: World, name: str) -> None:
    good = failed(world, by="script", exit_status=1)
    for index, make in enumerate(planted.HOSTILE):
        directory = world.runs / f"bad{index}-20261121-000000-0000"
        shutil.copytree(good, directory)
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        make(path)
        done = world.run("why", f"bad{index}")
        assert done.returncode in (0, errors.STORAGE), (make, done.stderr)
        assert planted.is_plain(done.stdout + done.stderr), make


def test_status_and_ls_show_the_cause(world: World) -> None:
    directory = failed(world, cause="GPU memory faulty")
    (directory / "logs/worker-n3.log").write_text(TEXTS["ecc"][0] + "\n")
    assert "cause      A GPU's memory is faulty (ECC) (on n3).\n" in world.run("status").stdout
    assert world.run("ls").stdout.splitlines()[-1].endswith("  GPU memory faulty")


SECRETS = {
    "environment.sh": "export HF_HOME='/home/me/very private' API=hunter2hunter2\n",
    "logs/driver.log": "token=tok-123456 and /home/me/very private\nAuthorization: Bearer abcdef123456\npassword: 'swordfish1'\n"
    "https://me:passw0rd9@host.example/x?token=qqq111\nAKIAABCDEFGHIJKLMNOP hf_abcdefghijklmnopqrst\n"
    "-----BEGIN RSA PRIVATE KEY-----\nMIIEzzz\n-----END RSA PRIVATE KEY-----\nthe value is hunter2hunter2\nplain words stay\n",
    "attempts/0/secret/jupyter.token": "jupytersecret77",
    "logs/job.log": "open http://n1/lab with jupytersecret77\n",
    "code/secret.py": "K = 'in the code'\n",
    "out/result.txt": "a result\n",
}
PLANTED = ("very private", "hunter2", "tok-123456", "abcdef123456", "swordfish1", "passw0rd9", "qqq111", "AKIAABCDEFGHIJKLMNOP",
           "hf_abcdefghijklmnopqrst", "MIIEzzz", "jupytersecret77", "in the code", "a result", "argument99", "of a stranger")  # fmt: skip


def test_a_bundle_holds_what_support_needs_and_no_secret(world: World) -> None:
    directory = failed(world)
    for name, text in SECRETS.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (world.top / "foreign").write_text("of a stranger")
    (directory / "logs/worker-n9.log").symlink_to(world.top / "foreign")
    request = json.loads((directory / "request.json").read_text())
    request["spec"]["arguments"] = ["--api-key", "argument99"]
    (directory / "request.json").write_text(json.dumps(request))
    done = world.run("why", "--bundle")
    assert done.returncode == 0, done.stderr
    packed = world.project / f"{directory.name}.tar.gz"
    assert packed.stat().st_mode & 0o777 == 0o600
    with tarfile.open(packed) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
        texts = "\n".join((archive.extractfile(one) or io.BytesIO()).read().decode() for one in archive.getmembers())
    assert {"why.json", "status.json", "events.jsonl", "plan.json", "job.sh", "logs/driver.log"} <= names
    assert [secret for secret in PLANTED if secret in texts] == []
    assert "plain words stay" in texts
    again = world.run("why", "--bundle")
    assert again.returncode == errors.STORAGE
    assert "there already" in again.stderr


LOST = {"exit_status": 87, "by": "scheduler", "message": "the job ended without a word (Slurm: FAILED)"}


def test_a_batch_script_that_was_killed_is_told_by_slurm(world: World) -> None:
    failed(world, **LOST)
    world.answer("sacct", out="0:9|\n")
    assert "\ncause      The batch script was killed by SIGKILL.\n" in world.run("why").stdout
    world.answer("sacct", err="Slurm accounting storage is disabled", code=1)
    world.answer(
        "scontrol", out="JobId=17 JobName=job JobState=FAILED Reason=NonZeroExitCode ExitCode=0:15 NodeList=n1\n"
    )
    assert (why(world)["cause"], why(world)["known"]) == ("the batch script was killed by SIGTERM", True)
    for silent in ("JobId=17 ExitCode=1:0\n", "JobId=17 ExitCode=0:999\n", ""):
        world.answer("scontrol", out=silent)
        found = why(world)
        assert (found["known"], found["cause"]) == (False, LOST["message"]), silent


@pytest.mark.parametrize(("said", "nodes"), [("n3", ["n3"]), ("n[3-4]", ["n3", "n4"]), ("", []), ("\x1b[31mn3", [])])
def test_the_node_that_failed_is_told_by_accounting_where_no_log_does(
    world: World, said: str, nodes: list[str]
) -> None:
    directory = failed(world, **LOST | {"state": "NODE_FAIL", "message": "a node of the allocation failed"})
    world.answer("sacct", out=f"0:0|{said}\n")
    found = why(world)
    assert (found["short"], found["nodes"]) == ("node failed", nodes)
    assert found["options"] == (["--exclude", ",".join(nodes)] if nodes else [])
    (directory / "logs/job.log").write_text("srun: error: Node failure on n1\n")
    assert why(world)["nodes"] == ["n1"]


def test_a_supervisor_that_left_no_word_was_on_the_node_that_failed(world: World) -> None:
    directory = failed(world)
    (directory / "status.json").unlink()
    world.set_job(json.loads((directory / "submission.json").read_text())["job"], state="NODE_FAIL")
    world.answer("sacct", out="")
    found = why(world)
    assert (found["short"], found["nodes"], found["options"]) == ("node failed", ["n1"], ["--exclude", "n1"])
    world.answer("sacct", out="0:0|n3\n")
    assert why(world)["nodes"] == ["n3"]


def test_a_run_that_goes_on_shows_what_it_has_warned_of(world: World) -> None:
    directory = failed(world)
    (directory / "status.json").unlink()
    said = (
        "n3: the script has waited for a file system that does not answer for 20 s (/data/a.npy, request_wait_answer)."
    )
    with (directory / "events.jsonl").open("a") as file:
        file.writelines(
            json.dumps({"time": 2.0, "attempt": 0, **facts}) + "\n"
            for facts in ({"event": "driver-started"}, {"event": "warning", "sentence": said})
        )
    lines = world.run("why").stdout.splitlines()
    assert lines[0] == f"run        {directory.name}"
    assert lines[1].startswith("state      RUNNING. The script runs")
    assert lines[-2:] == ["warning    events.jsonl", f"  | {said}"]


def test_a_run_whose_record_was_cut_off(world: World) -> None:
    """The machine that wrote it went down: what is whole counts, the rest is named in one sentence."""
    directory = failed(world)
    (directory / "logs/worker-n3.log").write_text(TEXTS["ecc"][0] + "\n")
    with (directory / "events.jsonl").open("a") as file:
        file.write('{"time": 2.0, "attempt": 0, "ev')
    assert why(world)["rule"] == "ecc"
    for name in ("status.json", "plan.json", "request.json"):
        whole = (directory / name).read_text()
        (directory / name).write_text(whole[: len(whole) // 2])
        done = world.run("why")
        assert done.returncode == errors.STORAGE, (name, done.stdout)
        assert name in done.stderr
        assert "Traceback" not in done.stderr
        (directory / name).write_text(whole)
    (directory / "status.json").unlink()
    shutil.rmtree(directory / "logs")
    assert why(world)["state"] in ("PENDING", "RUNNING")
