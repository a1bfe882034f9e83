"""`hpcml why` on runs that failed, run on, were refused, or hold hostile files."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import tarfile
import time
from pathlib import Path
from typing import Any

import pytest

import planted
from failure_texts import TEXTS
from hpcml import errors
from hpcml.failures.end import NODE_MEMORY
from hpcml.runs import bundle
from tests.said import says
from world import World, write_end, write_events

NO_MODULE = "ModuleNotFoundError: No module named '{}'\n"


def lost_workers(directory: Path, **facts: object) -> None:
    """Write the end of a run whose workers were lost, or another."""
    end = {
        "exit_status": 82,
        "by": "hpcml",
        "message": "workers were lost: n3: the workers' parent process exited with status 1",
    }
    write_end(directory, **{**end, "state": "FAILED", **facts})  # type: ignore[arg-type]


def failed(world: World, *options: str, **facts: object) -> Path:
    """Submit a run and write what it would have written that failed."""
    directory = world.submit("--name", "job", *options)
    (directory / "logs").mkdir(exist_ok=True)
    write_events(directory, {"event": "allocated", "nodes": ["n1", "n3"]})
    lost_workers(directory, **facts)
    return directory


def why(world: World, *words: str) -> dict[str, Any]:
    found: dict[str, Any] = world.answers("why", *words)
    return found


def test_a_faulty_node_is_named_with_the_command_to_do_without_it(world: World) -> None:
    directory = failed(world, "--exclude", "n[7-8]")
    (directory / "logs/worker-n3.log").write_text(f"first\n{TEXTS['ecc'][0]}\n")
    (directory / "logs/worker-n1.log").write_text(f"{TEXTS['comm-closed'][0]}\n")
    lines = world.run("why").stdout.splitlines()
    assert lines[2] == "command    job.py", "no process has written when the run ended"
    write_events(directory, {"event": "allocated", "nodes": ["n1", "n3"]}, {"event": "torn-down", "time": time.time()})
    assert "refused a newer command" in world.run("why").stdout.splitlines()[2], "also if the run has just ended"
    write_events(directory, {"event": "allocated", "nodes": ["n1", "n3"]}, {"event": "torn-down"})
    lines = world.run("why").stdout.splitlines()
    assert lines[:2] == [f"run        {directory.name}", says("A GPU's memory is faulty (ECC) (on n3)")]
    assert re.fullmatch(r"ended      \d+d ago\. .*refused.*", lines.pop(2))
    assert re.fullmatch(r"ended      \d+d ago", world.run("why", "last").stdout.splitlines()[2])
    assert lines[2] == "command    job.py"
    assert lines[3].startswith("evidence   logs/worker-n3.log, line 2, ")
    assert lines[3].endswith(" on n3")
    assert lines[4] == f"  | {TEXTS['ecc'][0]}"
    assert f"again      hpcml rerun {directory.name} --exclude n7,n8,n3" in lines
    assert any(TEXTS["comm-closed"][0][:60] in line for line in lines)


def test_more_memory_and_more_time_than_was_asked_for(world: World) -> None:
    directory = failed(world, "--memory-per-node", "42G", "--time", "2:00:00", exit_status=137, by="script", state="OUT_OF_MEMORY",
                       message="the script was killed because the node's memory limit was reached (out of memory)")  # fmt: skip
    assert why(world)["options"] == ["--memory-per-node", "63G"]
    lost_workers(directory, exit_status=85, by="scheduler", state="TIMEOUT", message="the time limit was reached")
    found = why(world)
    assert (found["short"], found["options"]) == ("time limit", ["--time", "3:00:00"])


def test_a_module_that_was_removed_after_the_submission(world: World) -> None:
    packages = world.home / "env/lib/python3.11/site-packages"
    packages.mkdir(parents=True)
    (packages / "msgpack").mkdir()
    directory = failed(world, "--set", f"runtime.python={world.home}/env/bin/python")
    (directory / "logs/scheduler.log").write_text(NO_MODULE.format("msgpack.fallback"))
    assert "has the module on this machine" in why(world)["next_step"]
    (packages / "msgpack").rmdir()
    found = why(world)
    assert "the module msgpack was installed" in found["cause"]


def test_a_module_that_was_never_installed(world: World) -> None:
    """The command is that of the submission's end; another Python that runs the script is not the run's."""
    directory = failed(world)
    (directory / "logs/scheduler.log").write_text(NO_MODULE.format("nobody_has"))
    assert "install nobody_has;" in why(world)["next_step"]
    plan = json.loads((directory / "plan.json").read_text())
    plan["inside"]["code"]["interpreter"] = ["/usr/bin/python3"]
    (directory / "plan.json").write_text(json.dumps(plan))
    step = why(world)["next_step"]
    assert "PYTHONPATH" in step
    assert "pip" not in step


def test_nothing_is_advised_that_the_site_does_not_take(world: World) -> None:
    limits = ("memory_per_node=50G", "max_time=2:30:00", "max_nodes=4")
    small = [word for limit in limits for word in ("--set", f"partitions.small.{limit}")]
    asked = ("--partition", "small", "--nodes", "2", "--memory-per-node", "42G", "--time", "2:00:00", *small)
    starved = {"exit_status": 137, "by": "script", "state": "OUT_OF_MEMORY", "message": "out of memory"}
    late = {"exit_status": 85, "by": "scheduler", "state": "TIMEOUT", "message": "the time limit was reached"}
    for more, end, expected in (
        (("--cpus-per-node", "8"), starved, ["--set", "workers.threads=1"]),  # of 2
        (("--cpus-per-node", "8", "--set", "workers.threads=1"), starved, ["--nodes", "4"]),
        (("--set", "workers.threads=1", "--nodes", "3"), starved, []),
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


RANK = {"exit_status": 1, "by": "script", "message": "rank 2 on n3 exited with status 1", "rank": 2, "node": "n3",
        "log": "rank-n3-2.log"}  # fmt: skip


def test_the_rank_that_failed_is_named_with_its_node_and_its_log(world: World) -> None:
    directory = failed(world, "--ranks", "2", "--nodes", "2", **RANK)
    for name in ("rank-n1.log", "rank-n3.log", "script.log"):
        (directory / "logs" / name).touch()
    (directory / "logs/rank-n3-2.log").write_text("Traceback (most recent call last):\nValueError: bad batch 17\n")
    lines = world.run("why").stdout.splitlines()
    assert lines[1:3] == [
        "cause      Rank 2 on n3 printed ValueError: bad batch 17.",
        f"rank       2 on n3, logs/rank-n3-2.log: hpcml logs {directory.name} rank:2",
    ]
    assert lines[-1] == f"next       See the traceback in the log: hpcml logs {directory.name} rank:2."
    found = why(world)
    expected = {"rank": 2, "node": "n3", "log": "logs/rank-n3-2.log", "ranks": [2], "nodes": ["n3"], "occurrences": 1}
    assert {name: found[name] for name in expected} == expected
    assert found["evidence"][0]["rank"] == 2
    told = world.answers("status")
    assert (told["rank"], told["node"], told["log"]) == (2, "n3", "rank-n3-2.log")
    assert "cause      Rank 2 on n3 printed ValueError: bad batch 17." in world.run("status").stdout


def test_a_rank_s_memory_is_not_cured_by_more_nodes(world: World) -> None:
    limits = ("--set", "partitions.small.memory_per_node=50G", "--set", "partitions.small.max_nodes=4")
    asked = ("--partition", "small", "--nodes", "2", "--memory-per-node", "42G", *limits)
    starved = {**RANK, "exit_status": 137, "state": "OUT_OF_MEMORY", "message": "rank 2 on n3 was killed"}
    for ranks, expected in (("4", ["--ranks", "2"]), ("node", [])):
        directory = failed(world, *asked, "--ranks", ranks, **starved)
        found = why(world, directory.name)
        assert found["options"] == expected
        assert "fewer ranks on each node" in found["next_step"]
        if expected:
            again = world.run(*found["again"].split()[1:], "--dry-run")
            assert again.returncode == 0, again.stderr


def test_the_only_machine_has_no_more_memory(world: World) -> None:
    """On the local site --memory-per-node has no effect: fewer processes are what helps."""
    end = {**RANK, "exit_status": 137, "state": "OUT_OF_MEMORY", "memory_limit": "node"}
    end["message"] = f"rank 2 was killed because {NODE_MEMORY}"
    script = {name: value for name, value in end.items() if name not in ("rank", "node", "log")}
    for asked, facts, expected in (
        (("--ranks", "4"), end, ["--ranks", "2"]),
        (("--ranks", "node"), end, []),
        (("--set", "workers.per_node=4"), script, []),
        (("--set", "workers.per_node=4"), {"memory_limit": "process"}, ["--set", "workers.per_node=2"]),
    ):
        directory = failed(world, "--cpus-per-node", "8", "--memory-per-node", "4G", *asked, **facts)
        plan = json.loads((directory / "plan.json").read_text())
        plan["inside"]["job"]["one_machine"], plan["inside"]["workers"]["memory_limit"] = True, 0
        (directory / "plan.json").write_text(json.dumps(plan))
        found = why(world, directory.name)
        assert found["options"] == expected
        assert "Request" not in found["next_step"]
        assert NODE_MEMORY not in found["cause"], "the limit that the site ignores"
        assert facts.get("memory_limit") != "node" or "oom_kill" in found["evidence"][0]["text"]
        if expected:
            assert found["again"] == " ".join(("hpcml rerun", directory.name, *expected))


def test_an_allocation_that_was_too_large_is_named_with_its_size(world: World) -> None:
    """The machine may have free memory: it is not said to have none."""
    directory = failed(world, exit_status=1, by="script", message="the script exited with status 1")
    plan = json.loads((directory / "plan.json").read_text())
    plan["inside"]["job"]["one_machine"] = True
    (directory / "plan.json").write_text(json.dumps(plan))
    chain = [{"type": "_ArrayMemoryError", "message": "Unable to allocate 32.0 TiB for an array"}]
    (directory / "attempts/0").mkdir(parents=True)
    (directory / "attempts/0/script-error.json").write_text(json.dumps({"chain": chain}))
    found = why(world)
    assert (found["rule"], "32.0 TiB" in found["cause"]) == ("memory-error", True)
    assert "ulimit -v" in found["next_step"]


def test_a_collective_operation_that_waits_is_named_while_the_run_lives(world: World) -> None:
    directory = failed(world, "--ranks", "1", "--nodes", "2", **RANK)
    (directory / "status.json").unlink()
    with (directory / "events.jsonl").open("a") as file:
        file.write(json.dumps({"time": 2.0, "attempt": 0, "event": "script-started"}) + "\n")
    assert "state      RUNNING. The script runs" in world.run("why").stdout
    assert why(world)["next_step"].endswith(f"hpcml stacks {directory.name}.")
    (directory / "logs/rank-n1.log").touch()
    watchdog = "[Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=2, OpType=ALLREDUCE, NumelIn=4)"
    (directory / "logs/rank-n1-1.log").write_text(f"{watchdog}\n")
    found = why(world)
    assert found["cause"].endswith("1 on n1 waited for it (ALLREDUCE, SeqNum=2)")
    assert found["next_step"] == f"Show where the ranks wait: hpcml stacks {directory.name}."
    assert found["evidence"][0]["text"] == watchdog


def test_without_evidence_it_is_not_known_and_says_where_to_look(world: World) -> None:
    directory = failed(world, exit_status=87, by="scheduler", message="the job ended without a status (Slurm: FAILED)")
    (directory / "logs/job.log").write_text("nothing of use\n")
    done = world.run("why")
    assert "ended without a status (Slurm: FAILED)." in done.stdout
    assert f"look       hpcml logs {directory.name} job\n" in done.stdout
    assert "again" not in done.stdout


def test_a_run_that_ended_well_waits_or_was_refused(world: World) -> None:
    directory = failed(world, exit_status=0, by="script", state="COMPLETED", message="the script exited with status 0")
    (directory / "logs/script.log").write_text("out of memory\nKilled\nOSError: [Errno 28] No space left on device\n")
    found = why(world)
    assert (found["failed"], found["cause"]) == (False, says("the run succeeded: there is no failure"))
    old = directory.with_name("old-20200102-000000-0000")
    shutil.copytree(directory, old)
    write_end(old, 3)
    assert world.run("why").stdout.startswith(
        f"The newest run, {directory.name}, succeeded. The newest run that failed is {old.name}:\nrun        {old.name}\n"
    )
    assert why(world)["run"] == old.name
    assert why(world, "last")["run"] == directory.name
    shutil.rmtree(world.runs)
    world.submit()
    found = why(world)
    assert (found["failed"], found["state"]) == (False, "PENDING")
    world.answer("sbatch", err=TEXTS["qos"][0], code=1)
    assert world.run("submit", "--site", "slurm", "--name", "no", str(world.script)).returncode == 65
    found = why(world, "no")
    assert (found["failed"], found["state"], found["rule"]) == (True, "REFUSED", "qos")
    for words, more in ((("why",), r"\. .* has no run"), (("why", "no"), "")):
        (row,) = (line for line in world.run(*words).stdout.splitlines() if line.startswith("refused "))
        assert re.fullmatch(rf"refused    \S+ ago{more}", row)


def test_hostile_logs_are_shown_and_not_obeyed(world: World) -> None:
    directory = failed(world)
    (directory / "logs/worker-n3.log").write_text(f"{planted.ESCAPES}\n{TEXTS['ecc'][0]}{planted.ESCAPES}\n")
    done = world.run("why")
    assert "ECC" in done.stdout
    assert planted.is_plain(done.stdout + done.stderr)


@pytest.mark.parametrize("name", ["logs/worker-n3.log", "plan.json"])
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


SECRETS = {
    "environment.sh": "export HF_HOME='/home/me/very private' API=hunter2-tail99 PART=hunter2\n",
    "logs/script.log": "token=tok-123456 and /home/me/very private\nAuthorization: Bearer abcdef123456\npassword: 'swordfish1'\n"
    "https://me:passw0rd9@host.example/x?token=qqq111\nAKIAABCDEFGHIJKLMNOP hf_abcdefghijklmnopqrst\n"
    "-----BEGIN RSA PRIVATE KEY-----\nMIIEzzz\n-----END RSA PRIVATE KEY-----\nthe value is hunter2-tail99\nplain words stay\n",
    "attempts/0/secret/jupyter.token": "jupytersecret77",
    "attempts/0/secret/relay-1/host": "relaysecret88",
    "logs/job.log": "open http://n1/lab with jupytersecret77, relaysecret88\n",
    "code/secret.py": "K = 'in the code'\n",
    "out/result.txt": "a result\n",
}
PLANTED = ("very private", "hunter2", "tail99", "tok-123456", "abcdef123456", "swordfish1", "passw0rd9", "qqq111", "AKIAABCDEFGHIJKLMNOP",
           "hf_abcdefghijklmnopqrst", "MIIEzzz", "jupytersecret77", "relaysecret88", "in the code", "a result", "argument99", "of a stranger")  # fmt: skip


SAID = """token=SECRET|--token SECRET|'--api-key', 'SECRET'|"secret": "SECRET"|password: 'SECRET'|PASSWD=SECRET|passphrase SECRET
export WANDB_API_KEY=SECRET|credential=SECRET|access_key = "SECRET"|aws_secret_access_key: SECRET|Authorization: Bearer SECRET|authorization: Basic SECRET
bearer SECRET-and-more|https://me:SECRET@host.example/x|redis://:SECRET@host:1/0|?token=SECRET&x=1|"password":"SECRET"|machine h login bob password SECRET
password="two SECRET"|password='two SECRET words'|"line": "password=\\"two SECRET\\" and"|{\\"password\\": \\"SECRET\\"}|password=a,SECRET|password=a;SECRET
the password is SECRET|The password was: SECRET|password for bob: SECRET|Password for 'https://bob@host': SECRET|password of user bob is SECRET
Set-Cookie: session=SECRET; Path=/|Cookie: a=b; c="SECRET"; d=SECRET|"Cookie": "a=SECRET", "x": 1|Server=h;Uid=sa;Pwd=SECRET;Database=d|pwd: SECRET
otp=SECRET|OTP: SECRET|totp is SECRET|"private_key_id": "SECRET"|DefaultEndpointsProtocol=https;AccountName=a;AccountKey=SECRET==;EndpointSuffix=x
https://a.example/c?sv=1&sig=SECRET%3D|https://b.example/k?X-Amz-Signature=SECRET&X-Amz-Credential=SECRET/us|mysql -u root -pSECRET db|mysql -P 3306 -p'SECRET' db
mysqldump --password=SECRET db|sshpass -p SECRET ssh h|sshpass -pSECRET ssh h|curl -u bob:SECRET https://h|curl --user 'bob:SECRET' h|redis-cli -h x -a SECRET
https://hooks.slack.com/services/T0/B0/SECRET""".replace("\n", "|").split("|")  # fmt: skip
KEYS = ("AKIAABCDEFGHIJKLMNOP", "hf_abcdefghijklmnopqrst", "ghp_abcdefghijklmnopqrstuv", "github_pat_abcdefghijklmnopqrst", "glpat-abcdefghijklmnopq",
        "sk-abcdefghijklmnopqrst", "xoxb-1234567890-abcdef", "AIzaSyA-1234567890abcdefghijklmnopqrstu", "npm_abcdefghijklmnopqrstuvwxyz0123456789",
        "123456789:AAHdqTcvCH1vGWJxfSeofSAs0K5PALDsaw_", "pypi-AgEIcHlwaS5vcmcCJDAwMD", "eyJhbGciOiJIUzI1.eyJzdWIiOiIxMjM0.c2lnbmF0dXJl",
        "ya29.a0AfH6SMBx1234567890", "sk_live_4eC39HqLyjWDarjtT1zdp7dc", "dapi0123456789abcdef0123456789abcdef", "hvs.CAESIJabcdefghijklmnop")  # fmt: skip
BLOCKS = ("-----BEGIN RSA PRIVATE KEY-----\nMIIEzzz\n-----END RSA PRIVATE KEY-----", "-----BEGIN OPENSSH PRIVATE KEY-----\nMIIEzzz",
          "-----BEGIN PGP PRIVATE KEY BLOCK-----\n\nMIIEzzz\n-----END PGP PRIVATE KEY BLOCK-----")  # fmt: skip
HARMLESS = ("epoch 3: loss=0.25, accuracy=0.91", "PWD=/home/me/project", "Traceback (most recent call last):", "tls://10.0.0.1:8786", "2026-11-25 04:10:37",
            "user 1000 of job 4711", "srun -u -p boost --nodes=4 x", "kmeans.py:12: KeyError: 'colour'", "signal 9 on n3", "mysql is not installed")  # fmt: skip


def test_what_looks_like_a_secret_is_taken_out(subtests: pytest.Subtests) -> None:
    for text in (*SAID, *KEYS, *BLOCKS):
        for whole in (f"before\n{text}\nafter", text, json.dumps({"line": f"x {text}", "after": 1})):
            with subtests.test(text=whole):
                cleaned = bundle._clean("logs/script.log", whole, [])
                assert not any(word in cleaned for word in ("SECRET", "MIIEzzz", *KEYS)), cleaned
                assert "[removed]" in cleaned
    for text in HARMLESS:
        assert bundle._clean("logs/script.log", f"x\n{text}\ny", []) == f"x\n{text}\ny"


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
    assert {"why.json", "status.json", "events.jsonl", "plan.json", "job.sh", "logs/script.log"} <= names
    assert [secret for secret in PLANTED if secret in texts] == []
    assert "plain words stay" in texts
    again = world.run("why", "--bundle")
    assert again.returncode == errors.STORAGE
    assert "already exists" in again.stderr
    packed.unlink()
    (directory / "attempts/0/secret/link").symlink_to(world.top / "foreign")
    refused = world.run("why", "--bundle")
    assert (refused.returncode, packed.exists()) == (errors.STORAGE, False)
    assert "the path is a link" in refused.stderr


def accounted(directory: Path, said: str) -> str:
    """Return sacct's row of the run's job."""
    return f"101|{said}|2026-11-21T07:45:00|{os.getuid()}|job|hpcml:{directory.name}\n"


LOST = {"exit_status": 87, "by": "scheduler", "message": "the job ended without a status (Slurm: FAILED)"}


def test_a_batch_script_that_was_killed_is_told_by_slurm(world: World) -> None:
    directory = failed(world, **LOST)
    world.answer("sacct", out=accounted(directory, "0:9|"))
    assert "The batch script was killed by SIGKILL." in world.run("why").stdout
    world.answer("sacct", err="Slurm accounting storage is disabled", code=1)
    world.answer(
        "scontrol",
        out=f"JobId=101 JobState=FAILED Reason=NonZeroExitCode ExitCode=0:15 Comment=hpcml:{directory.name} Power=\n",
    )
    assert (why(world)["cause"], why(world)["known"]) == ("the batch script was killed by SIGTERM", True)
    own = f"Comment=hpcml:{directory.name}\n"
    for silent in (f"JobId=101 ExitCode=1:0 {own}", "JobId=101 ExitCode=0:15 Comment=x\n"):
        world.answer("scontrol", out=silent)
        found = why(world)
        assert (found["known"], found["cause"]) == (False, LOST["message"]), silent


@pytest.mark.parametrize(("said", "nodes"), [("n[3-4]", ["n3", "n4"]), ("\x1b[31mn3", [])])
def test_the_node_that_failed_is_told_by_accounting_where_no_log_does(
    world: World, said: str, nodes: list[str]
) -> None:
    directory = failed(world, **LOST | {"state": "NODE_FAIL", "message": "a node of the allocation failed"})
    world.answer("sacct", out=accounted(directory, f"0:0|{said}"))
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
    world.answer("sacct", out=accounted(directory, "0:0|n3"))
    assert why(world)["nodes"] == ["n3"]


def test_a_run_that_goes_on_shows_what_it_has_warned_of(world: World) -> None:
    directory = failed(world)
    (directory / "status.json").unlink()
    said = "n3: the script has been blocked on a file system for 20 s: the file system does not respond (/data/a.npy, request_wait_answer)."
    with (directory / "events.jsonl").open("a") as file:
        file.writelines(
            json.dumps({"time": 2.0, "attempt": 0, **facts}) + "\n"
            for facts in ({"event": "script-started"}, {"event": "warning", "sentence": said})
        )
    lines = world.run("why").stdout.splitlines()
    assert lines[0] == f"run        {directory.name}"
    assert lines[1].startswith("state      RUNNING. The script runs")
    assert lines[-3:-1] == ["warning    events.jsonl", f"  | {said}"]
    assert lines[-1].startswith("next ")


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


@pytest.mark.parametrize(("wait", "state", "place"), [
    ("10 sec", "CANCELLED", ("KillWait", "10 s", "deadlines.script_grace = '5s'")), ("10 sec", "TIMEOUT", ("10 s",)),
    ("30 sec", "PREEMPTED", ()), ("1 sec", "CANCELLED", ("KillWait", "support")),
])  # fmt: skip
def test_a_run_that_slurm_killed_while_it_was_ending(
    world: World, tmp_path: Path, wait: str, state: str, place: tuple[str, ...]
) -> None:
    """Its KillWait was over before the script's grace; without an end of its own, Slurm's word is all there is."""
    site = tmp_path / "site.toml"
    site.write_text("\n".join(('cluster = "c"', 'slurm = "25.05"', "[partition]", "[config]", f'KillWait = "{wait}"')))
    directory = world.submit("--name", "job")
    (directory / "attempts/0").mkdir(parents=True)
    write_events(directory, {"event": "allocated", "nodes": ["n1"]}, {"event": "script-started"})
    (job,) = world.jobs()
    world.set_job(job, state=state)
    environment = {"FAKE_SITE": str(site)}
    assert not json.loads(world.run("status", "--json", env=environment).stdout)["cut_short"], "nothing told it to end"
    write_events(directory, {"event": "allocated", "nodes": ["n1"]}, {"event": "ending", "message": "cancelled"})
    shown = json.loads(world.run("status", "--json", env=environment).stdout)
    assert (shown["cut_short"], shown["state"]) == (True, state)
    assert directory.name in shown["warnings"][-1]
    answer = json.loads(world.run("why", "--json", env=environment).stdout)
    assert answer["kill_wait"] == int(wait.split(maxsplit=1)[0])
    told = f"{answer['cause']} {answer['next_step']}"
    assert [word for word in place if word not in told] == []
    assert ("KillWait" in told) == bool(place)
