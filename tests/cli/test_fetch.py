"""`hpcml fetch` with a fake ssh: files whole or not at all, once, and nowhere but in the folder."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from hpcml import errors
from hpcml.failures.end import End
from hpcml.remote import transfer
from remote_world import Laptop


def out(laptop: Laptop) -> Path:
    laptop.run("submit", "job.py")
    return laptop.far / ".hpcml/runs" / laptop.runs()[-1] / "out"


def test_fetch_brings_files_whole_once_and_nothing_else(laptop: Laptop) -> None:
    source = out(laptop)
    names = ["a b'c", "$(x)", "new\nline", "-rf", "sub/deep/file", "\udcff", "empty"]
    for name in names:
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes(b"" if name == "empty" else os.urandom(300_000))
    (source / "link").symlink_to("/etc/passwd")
    os.mkfifo(source / "pipe")
    done = laptop.run("fetch", "last", "results")
    assert done.returncode == 0, done.stderr
    target = laptop.world.project / "results"
    found = {str(path.relative_to(target)) for path in target.rglob("*") if not path.is_dir()}
    assert found == set(names)
    for name in names:
        assert (target / name).read_bytes() == (source / name).read_bytes()
    assert "2 links and special files are not copied" in done.stderr
    (source / "a b'c").write_text("changed")
    (target / "own").write_text("mine")
    facts = json.loads(laptop.run("fetch", "last", "results", "--json").stdout)
    assert (facts["fetched"], facts["here_already"]) == (1, len(names) - 1)
    assert (target / "a b'c").read_text() == "changed"
    assert (target / "own").read_text() == "mine"


def test_fetch_brings_the_report_unless_the_script_has_one_of_that_name(laptop: Laptop) -> None:
    source = out(laptop)
    run = source.parent
    (run / "report.html").write_text("page")
    (run / "report.json").symlink_to("/etc/passwd")
    target = laptop.world.project / "results"
    assert laptop.run("fetch", "last", "results").returncode == 0
    assert [path.name for path in target.iterdir()] == ["report.html"]
    assert (target / "report.html").read_text() == "page"
    (source / "report.html").write_text("the script's own")
    assert laptop.run("fetch", "last", "results").returncode == 0
    assert (target / "report.html").read_text() == "the script's own"
    (source / "report.html").unlink()
    (source / "report.html").mkdir()
    (source / "report.html" / "page").write_text("of many")
    done = laptop.run("fetch", "last", "folder")
    assert done.returncode == 0, done.stderr
    assert (laptop.world.project / "folder/report.html/page").read_text() == "of many"


def test_fetch_says_that_a_run_has_not_ended_until_its_report_is_there(laptop: Laptop) -> None:
    """The end is written before the processes are ended, and again after the report was made."""
    run = out(laptop).parent
    end = End(0, "running", "script", "it succeeded")
    for status, told in (({}, True), (end._replace(over=False).as_json(), True), (end.as_json(), False)):
        (run / "status.json").write_text(json.dumps(status))
        done = laptop.run("fetch", "last", "results")
        assert done.returncode == 0, done.stderr
        assert ("the run has not ended; fetch the results" in done.stderr) is told, status


def test_fetch_follows_no_link_of_the_laptop(laptop: Laptop) -> None:
    source = out(laptop)
    (source / "sub").mkdir()
    (source / "sub" / "file").write_text("new")
    elsewhere = laptop.world.top / "elsewhere"
    elsewhere.mkdir()
    (laptop.world.project / "results").mkdir()
    (laptop.world.project / "results" / "sub").symlink_to(elsewhere)
    done = laptop.run("fetch", "last", "results")
    assert done.returncode == errors.STORAGE
    assert list(elsewhere.iterdir()) == []


@pytest.mark.parametrize("name", ["/tmp/pwned", "a/../../pwned"])
def test_a_malicious_other_side_writes_nowhere(laptop: Laptop, name: str) -> None:
    """What stands in the place of hpcml there offers a file by a name that leads elsewhere."""
    env = laptop.stand_in(f"""import sys, json
header = json.loads(sys.stdin.readline())
nonce = header["nonce"]
sys.stderr.write("\\x1e" + nonce + ' {{"hello": 2, "version": "0"}}\\n'); sys.stderr.flush()
print(nonce, json.dumps({{"run": "r-20260101-000000-0000", "files": [["ok", 1, 0, 511], [{name!r}, 1, 0, 2559]], "ended": True}}), flush=True)
sys.stdin.readline()
print("xy", end="", flush=True)
sys.stderr.write("\\x1e" + nonce + ' {{"exit_status": 0}}\\n')
""")
    done = laptop.run("fetch", "last", "results", env=env)
    assert done.returncode == errors.STORAGE, done.stderr
    assert "refused" in done.stderr
    assert not [path for path in laptop.world.top.rglob("*") if path.name in ("pwned", "ok")]


def test_a_fetch_is_taken_up_where_it_broke(laptop: Laptop) -> None:
    """The line from the login node's hpcml breaks within the second file."""
    source = out(laptop)
    for name in ("a", "b", "c"):
        (source / name).write_bytes(os.urandom(400_000))
    env = laptop.stand_in(f"""import os, subprocess, sys
child = subprocess.Popen([{str(laptop.world.command)!r}, *sys.argv[1:]], stdout=subprocess.PIPE)
left = 700_000
while left and (piece := os.read(child.stdout.fileno(), min(left, 10_000))):
    os.write(1, piece)
    left -= len(piece)
child.stdout.close()
sys.exit(child.wait())
""")
    done = laptop.run("fetch", "last", "results", env=env)
    assert done.returncode == 141, done.stderr
    assert [path.name for path in (laptop.world.project / "results").iterdir()] == ["a"], done.stderr
    facts = json.loads(laptop.run("fetch", "last", "results", "--json").stdout)
    assert (facts["fetched"], facts["here_already"], facts["bytes"]) == (2, 1, 800_000)
    assert (laptop.world.project / "results" / "c").read_bytes() == (source / "c").read_bytes()


def test_parts_that_killed_fetches_left_are_removed(laptop: Laptop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not what another fetch writes, what is the user's own, or a link."""
    below = out(laptop) / "below"
    below.mkdir()
    (below / "a").write_text("a")
    results = laptop.world.project / "results"
    (results / "below").mkdir(parents=True)
    left, locked = results / "below/.hpcml-part-0123456789abcdef", results / ".hpcml-part-0000000000000000"
    kept = [locked, results / ".hpcml-part-mine", results / ".hpcml-part-1111111111111111"]
    for path in (left, *kept[:2]):
        path.write_text("half")
    kept[2].symlink_to(kept[1])
    code = (
        "import fcntl, sys\nfile = open(sys.argv[1])\nfcntl.flock(file, fcntl.LOCK_EX)\nprint(1, flush=True)\ninput()"
    )
    words = [sys.executable, "-c", code, str(locked)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout
        holder.stdout.readline()
        assert laptop.run("fetch", "last", "results").returncode == 0
        assert left.exists(), "it is young: its writer may be about to lock it"
        entries = [transfer.Entry("below/a", 1, 0, 0o600)]
        monkeypatch.setattr(transfer, "_YOUNG", -60.0)
        assert transfer.remove_parts(results, entries) == 1
        assert not left.exists()
        assert all(path.is_symlink() or path.exists() for path in kept)
        holder.communicate(b"\n", timeout=60)


def test_a_fetch_without_room_or_permission(laptop: Laptop) -> None:
    (out(laptop) / "big").write_bytes(b"x" * 500_000)
    (laptop.world.project / "file").write_text("no folder")
    assert laptop.run("fetch", "last", "file").returncode == errors.STORAGE
    limit = (100 << 10, 100 << 10)
    done = laptop.run("fetch", "last", "results", before=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limit))
    assert done.returncode == errors.STORAGE, done.stderr
    assert list((laptop.world.project / "results").iterdir()) == []


def test_a_name_that_the_other_side_chose_does_not_reach_the_terminal_raw(laptop: Laptop) -> None:
    source = out(laptop)
    (source / "a\x1b[31m").mkdir()
    (source / "a\x1b[31m" / "b").write_text("x")
    (laptop.world.project / "results").mkdir()
    (laptop.world.project / "results" / "a\x1b[31m").write_text("in the way")
    done = laptop.run("fetch", "last", "results")
    assert done.returncode == errors.STORAGE
    assert "\x1b" not in done.stderr


def test_what_a_shell_s_start_prints_does_not_disturb_a_fetch(laptop: Laptop) -> None:
    laptop.run("submit", "job.py")
    laptop.tell("chatty")
    done = laptop.run("fetch", "last", "--json")
    assert (done.returncode, json.loads(done.stdout)["fetched"]) == (0, 0), done.stderr


def test_fetch_brings_what_a_script_wrote_beside_its_code_and_it_is_not_sent_again(laptop: Laptop) -> None:
    run = out(laptop).parent
    (run / "code" / "deep").mkdir()
    (run / "code" / "deep" / "r.csv").write_text("1")
    (run / "code" / "link").symlink_to("/etc/passwd")
    (run / "status.json").write_text(json.dumps(End(0, "running", "script", "it succeeded").as_json()))
    (job,) = laptop.world.jobs()
    laptop.world.set_job(job, state="COMPLETED")
    kept = laptop.run("rm", "last")
    assert kept.returncode == 1
    assert "deep/r.csv (hpcml fetch copies it)" in kept.stderr
    done = laptop.run("fetch", "last")
    assert done.returncode == 0, done.stderr
    target = laptop.world.project / run.name
    assert [str(path.relative_to(target)) for path in target.rglob("*") if not path.is_dir()] == ["code/deep/r.csv"]
    assert (target / "code/deep/r.csv").read_text() == "1"
    assert laptop.run("submit", "job.py").returncode == 0
    (newest,) = (run.with_name(name) for name in laptop.runs() if name != run.name)
    assert not (newest / "code" / run.name).exists()
    answer = json.loads(laptop.run("status", run.name, "--json").stdout)
    assert answer["not_brought"] == []


def test_a_folder_of_code_is_sent_again_although_fetch_wrote_into_it(laptop: Laptop) -> None:
    (laptop.world.project / "pack").mkdir()
    (laptop.world.project / "pack" / "__init__.py").touch()
    results = out(laptop)
    (results / "r.csv").write_text("1")
    assert laptop.run("fetch", "last", "pack").returncode == 0
    assert laptop.run("submit", "job.py").returncode == 0
    (newest,) = (laptop.far / ".hpcml/runs" / name for name in laptop.runs() if name != results.parent.name)
    assert (newest / "code" / "pack" / "r.csv").exists()


def test_a_project_that_the_script_finds_by_its_file_is_sent(laptop: Laptop) -> None:
    project = laptop.world.project
    (project / "scripts").mkdir()
    (project / "data").mkdir()
    (project / "data" / "a.csv").write_text("1")
    text = "from pathlib import Path\nROOT = Path(__file__).resolve().parent.parent\n"
    (project / "scripts" / "train.py").write_text(text)
    done = laptop.run("submit", "scripts/train.py")
    assert done.returncode == 0, done.stderr
    assert f"so hpcml sends the project's folder {project}" in done.stderr
    assert laptop.run("rerun", "last").returncode == 0
    assert len(laptop.runs()) == 2
    for run in (laptop.far / ".hpcml/runs" / name for name in laptop.runs()):
        assert (run / "code/data/a.csv").read_text() == "1"
        assert (run / "code/scripts/train.py").read_text() == text
        code = json.loads((run / "plan.json").read_text())["inside"]["code"]
        assert (code["script"], code["cwd"]) == (str(run / "code/scripts/train.py"), str(run / "code"))


@pytest.mark.parametrize("name", ["../../../../.ssh/id_rsa", "keys/id_rsa", "a\0b"])
def test_fetch_follows_no_name_of_a_run_s_record_out_of_the_run(laptop: Laptop, name: str) -> None:
    run = out(laptop).parent
    (laptop.far / ".ssh").mkdir(exist_ok=True)
    (laptop.far / ".ssh" / "id_rsa").write_text("secret")
    (run / "code" / "keys").symlink_to(laptop.far / ".ssh")
    (run / "code" / "own.csv").write_text("1")
    left = [[one, "hpcml fetch copies it", ""] for one in (name, "own.csv")]
    facts = {"home": "", "attempt": 0, "brought": {}, "left": left, "fetched": []}
    (run / "written.json").write_text(json.dumps(facts))
    done = laptop.run("fetch", "last")
    assert done.returncode == 0, done.stderr
    target = laptop.world.project / run.name
    assert {path.name for path in target.rglob("*") if path.is_file()} == {"own.csv"}
