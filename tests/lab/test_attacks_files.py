"""What another account can try where runs are submitted and looked at: settings, templates, runs, folders.

What one account, or root with files that it gave away, can show is in tests/cli (test_foreign_*.py, test_planted_runs.py,
test_hostile_host.py) and tests/jobs.
"""

from __future__ import annotations

import itertools
import json
import os
import pwd
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from attacks import Attempts
from conftest import Cluster
from hpcml.remote import receiver

pytestmark = pytest.mark.lab

ALICE, MALLORY = "hpcml-alice", "hpcml-mallory"
OWNED = "owned-by-mallory"
ESCAPES = "\x1b[2J\x1b]0;owned\x07\x9b31m\u202e\nfake  row\r"

# What mallory runs: each line of her input is a path and what she puts there.
PLANT = r"""
import json, os, shutil, sys
os.umask(0)
for line in sys.stdin:
    path, kind, what = json.loads(line)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    if kind == "copy":
        shutil.copytree(what, path, symlinks=True)
        continue
    if os.path.lexists(path):
        shutil.rmtree(path) if os.path.isdir(path) and not os.path.islink(path) else os.unlink(path)
    if kind == "text":
        open(path, "w").write(what)
    elif kind == "link":
        os.symlink(what, path)
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "hole":
        open(path, "wb").truncate(3 << 30)
    elif kind == "folder":
        os.mkdir(path)
    if kind in ("text", "hole"):
        os.chmod(path, 0o777)
"""
# What alice types: a list of commands and where, one after the other; what came of each is a line of JSON.
TYPE = r"""
import json, subprocess, sys
for cwd, words in json.load(sys.stdin):
    try:
        done = subprocess.run(words, cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True, timeout=240)
        said = [done.returncode, done.stdout.decode(errors="surrogateescape"), done.stderr.decode(errors="surrogateescape")]
    except subprocess.TimeoutExpired:
        said = [None, "", "it hangs"]
    print(json.dumps(said), flush=True)
"""
HOSTILE: dict[str, tuple[str, str]] = {
    "nested": ("text", "[" * 200_000 + "\n"),
    "nested tables": ("text", '{"a":' * 200_000 + "\n"),
    "a hole of 3 GB": ("hole", ""),
    "a link to /dev/zero": ("link", "/dev/zero"),
    "a pipe": ("pipe", ""),
    "a folder": ("folder", ""),
    "a ring of links": ("link", "plan.json"),
    "other kinds": ("text", '{"over": 5, "state": 5, "message": {}, "exit_status": "x", "quote": 3, "pid": "1", "job": [], "inside": 3, "event": []}\n'),
    "escapes": ("text", json.dumps({"over": True, "state": "FAILED", "exit_status": 3, "message": ESCAPES, "by": ESCAPES, "hint": ESCAPES, "quote": [ESCAPES],
                                    "job": ESCAPES, "site": ESCAPES, "error": ESCAPES, "inside": {}}) + "\n"),
}  # fmt: skip


def plain(text: str) -> bool:
    """Whether a terminal obeys nothing of it but line breaks."""
    return all(line.isprintable() for line in text.split("\n"))


class Place:
    """A folder that all accounts share, as scratch file systems have it."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.top = cluster.lab.places.top / "shared-by-all"
        shutil.rmtree(self.top, ignore_errors=True)
        self.top.mkdir()
        self.top.chmod(0o1777)
        self.python = cluster.run("sh", "-c", "command -v python").stdout.strip()

    def plant(self, things: Sequence[tuple[Path, str, str]]) -> None:
        """Have mallory put files there."""
        text = "".join(json.dumps([str(path), kind, what]) + "\n" for path, kind, what in things)
        done = self.cluster.lab.exec([self.python, "-c", PLANT], user="mallory", cwd="/", input=text)
        assert done.returncode == 0, done.stderr

    def types(self, commands: Sequence[Sequence[str]], cwd: Path | None = None) -> list[tuple[int | None, str, str]]:
        """Have alice type commands on the login node."""
        text = json.dumps([(str(cwd or self.cluster.work), list(words)) for words in commands])
        done = self.cluster.lab.exec([self.python, "-c", TYPE], input=text, timeout=600)
        found = [tuple(json.loads(line)) for line in done.stdout.splitlines()]
        assert len(found) == len(commands), done.stderr
        return found


@pytest.fixture(scope="module")
def place(cluster: Cluster) -> Iterator[Place]:
    found = Place(cluster)
    yield found
    shutil.rmtree(found.top, ignore_errors=True)


# -- settings and templates -----------------------------------------------------------------------------------------------

# What she could set, all in one file; each by itself, and in every place: tests/cli/test_foreign_settings.py.
KEYS = f"""
[runtime]
setup = ["touch /tmp/{OWNED}"]
python = "/tmp/{OWNED}"
modules = ["{OWNED}"]
kind = "image"
image = "/x.sif"
container = "/tmp/{OWNED}"
[environment]
BASH_ENV = "/tmp/{OWNED}"
[slurm]
extra = ["--constraint={OWNED}"]
srun_extra = ["--prolog=/tmp/{OWNED}"]
[paths]
runs = "/tmp/{OWNED}"
scratch = "/tmp/{OWNED}"
[defaults]
account = "{OWNED}"
[login]
host = "localhost"
hpcml = "touch /tmp/{OWNED}; hpcml"
control = '/tmp/x$(touch /tmp/{OWNED})'
[site.lab.runtime]
setup = ["touch /tmp/{OWNED}"]
"""
NESTED = "x = " + "[" * 100_000


def is_owned(cluster: Cluster) -> bool:
    """Whether a command of mallory's ran on the login node, which has a /tmp of its own."""
    return os.path.exists(f"/proc/{cluster.lab.state().holders['login'].pid}/root/tmp/{OWNED}")


def test_mallory_s_settings_and_templates_are_not_obeyed(cluster: Cluster, place: Place, attempts: Attempts) -> None:
    """In her folder, where alice works; in a folder above alice's own; by links; as templates."""
    hers, above = place.top / "hers", place.top / "hpcml.toml"
    own = place.top / "alices"
    cluster.lab.exec(["mkdir", "-m", "700", str(own)])
    script = str(cluster.write("job.py", "print(1)\n"))
    commands = (
        ("hpcml", "submit", "--site", "lab", "--dry-run", script), ("hpcml", "plan", "--site", "lab", script), ("hpcml", "ls"),
    )  # fmt: skip
    template = "{% extends 'hpcml/batch.sh.j2' %}{% block environment %}touch /tmp/" + OWNED + "{% endblock %}"
    for text, keys in ((KEYS, KEYS.count(" = ")), (NESTED, 1)):
        place.plant([(hers / "hpcml.toml", "text", text), (above, "text", text),
                     (hers / "templates/hpcml/batch.sh.j2", "text", template)])  # fmt: skip
        for cwd in (hers, own):
            for words, (code, out, err) in zip(commands, place.types(commands, cwd), strict=True):
                refused = code == 0 and OWNED not in out and "does not count: it belongs to hpcml-mallory" in err
                attempts.judge(
                    f"{text[:20]} in {cwd.name}, {words[1]}: {out[-300:]}{err[-300:]}",
                    refused=refused and not is_owned(cluster),
                    tries=keys,
                )
    place.plant([(above, "link", f"{place.top}/alices/mine.toml")])
    cluster.lab.exec(["tee", str(own / "mine.toml")], input=KEYS)
    for code, out, err in place.types(commands[:2], own):
        attempts.judge(
            f"her link to a file of alice's: {err}", refused=code == 0 and OWNED not in out and "is a link of" in err
        )
    above.unlink()
    done = cluster.run("sh", "-c", "test -e /tmp/owned-by-mallory")
    attempts.judge("a command of hers on the login node", refused=done.returncode != 0)


# -- runs -----------------------------------------------------------------------------------------------------------------


def planted_runs(own: Path, place: Place) -> list[str]:
    """Have mallory plant a run for every kind of file, dated in years to come; return their ids."""
    template = {name: (own / name).read_text() for name in ("plan.json", "submission.json", "request.json")}
    things: list[tuple[Path, str, str]] = []
    names: list[str] = []
    for file in ("submission.json", "plan.json", "status.json", "events.jsonl", "logs/driver.log"):
        for kind, (how, what) in HOSTILE.items():
            name = f"evil{len(names)}-20990101-0000{len(names) % 60:02d}-{len(names):04x}"
            names.append(name)
            folder = own.parent / name
            things += [(folder / key, "text", text) for key, text in template.items()]
            things += [(folder / "logs" / "driver.log", "text", kind), (folder / file, how, what)]
            things.append((folder / ".submission.json.new", "link", str(own / "submission.json")))
    place.plant(things)
    return names


def test_planted_runs_are_nobody_s(cluster: Cluster, place: Place, attempts: Attempts) -> None:
    runs = place.top / "runs"
    runs.mkdir()
    runs.chmod(0o1777)
    there = ("--set", f"paths.runs={runs}")
    script = str(cluster.write("job.py", "print('alices')\n"))
    done = cluster.run("hpcml", "submit", "--wait", "--nodes", "1", *there, script)
    assert done.returncode == 0, done.stderr
    (own,) = [path for path in runs.iterdir() if not path.name.startswith(".")]
    before = {path: path.read_bytes() for path in own.rglob("*.json*")}
    sleeper = cluster.lab.popen(["sleep", "600"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        names = planted_runs(own, place)
        pid = sleeper.pid
        started = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
        record = json.dumps({"slurm": False, "job": "", "pid": pid, "started": started})
        killer = "kill-20990101-010000-0000"
        place.plant([(runs / killer / "submission.json", "text", record), (runs / killer / "plan.json", "text", '{"inside": {}}'),
                     (runs / "link-20990101-010000-0000", "link", str(own)),
                     (runs / "x\x1b[2J-20990101-010000-0000" / "plan.json", "text", "{}"),
                     (runs / "y\nfake row-20990101-010000-0000" / "plan.json", "text", "{}")])  # fmt: skip
        listings = [("hpcml", "ls", *more, *there) for more in ((), ("--all",), ("--json",), ("--last", "5"))]
        for words, (code, out, err) in zip(listings, place.types(listings), strict=True):
            refused = code == 0 and "2099" not in out and own.name in out and plain(out + err)
            attempts.judge(f"{' '.join(words)}: {out}{err}", refused=refused, tries=len(names) + 4)
        mixed = runs / "mixed-20250101-000000-0000"  # her file in a folder of alice's, which was open for a while
        cluster.run("cp", "-r", str(own), str(mixed))
        for file in ("submission.json", "plan.json", "status.json", "events.jsonl"):
            text = (mixed / file).read_text()
            (mixed / file).unlink()
            mixed.chmod(0o777)
            place.plant([(mixed / file, "text", text)])
            mixed.chmod(0o700)
            for code, out, err in place.types(
                [("hpcml", command, mixed.name, *there) for command in ("status", "cancel")]
            ):
                attempts.judge(f"hers as {file}: {code} {out}{err}", refused=code == 74 and plain(out + err))
            cluster.run("cp", str(own / file), str(mixed / f".{file}"))
            (mixed / file).unlink()
            (mixed / f".{file}").rename(mixed / file)
        last = [("hpcml", command, "last", *there) for command in ("status", "logs")]
        for words, (code, out, err) in zip(last, place.types(last), strict=True):
            attempts.judge(f"{words[1]} last: {out}{err}", refused=code == 0 and "2099" not in out, tries=len(names))
        named = [*names[::10], killer, "link-20990101-010000-0000", "evil0", "kill", "evil1-2"]
        commands = [
            ("hpcml", command, name, *there)
            for name in named
            for command in ("status", "logs", "cancel", "tunnel", "fabric")
        ]
        for words, (code, out, err) in zip(commands, place.types(commands), strict=True):
            attempts.judge(
                f"{words[1]} {words[2]}: {code} {out}{err}", refused=code in (64, 66, 74) and plain(out + err)
            )
        attempts.judge("a process of alice's ended by a record", refused=sleeper.poll() is None)
        attempts.judge(
            "a record of alice's written through a link", refused=before == {path: path.read_bytes() for path in before}
        )
    finally:
        sleeper.kill()
        sleeper.wait()


# -- the folders above ----------------------------------------------------------------------------------------------------


def test_folders_of_mallory_s_take_no_runs(cluster: Cluster, place: Place, attempts: Attempts) -> None:
    script = str(cluster.write("job.py", "print(1)\n"))
    hers, open_to_all = place.top / "mallorys", place.top / "open"
    place.plant([(hers / "below" / "x", "text", ""), (hers / "link", "link", str(cluster.home))])
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    link = place.top / "link-of-hers"
    place.plant([(link, "link", str(cluster.home / ".hpcml"))])
    for mode in (0o1777, 0o700):  # all others: tests/cli/test_planted_runs.py
        hers.chmod(mode)
        for folder in (
            hers,
            hers / "below",
            hers / "not" / "there",
            hers / "link" / "runs",
            link / "runs",
            open_to_all,
            open_to_all / "runs",
        ):
            words = [("hpcml", "submit", "--site", "lab", "--set", f"paths.runs={folder}", script)]
            for code, out, err in place.types(words):
                attempts.judge(f"{mode:o} {folder}: {code} {out}{err}", refused=code == 74 and plain(out + err))
    assert "hpcml" not in cluster.run("squeue", "--me", "--noheader", "--format=%k").stdout


def test_what_is_sent_to_a_login_node_goes_nowhere_else(cluster: Cluster, place: Place, attempts: Attempts) -> None:
    """As `hpcml --host HOST wheelhouse` sends it, into folders in which mallory has put what might be in the way."""
    precious = cluster.home / "precious"
    cluster.run("sh", "-ec", f"mkdir -p {precious}; echo mine > {precious}/data; touch -d 2001-01-01 {precious}")
    sticky, hers, everybodys = place.top, place.top / "mallorys-own", place.top / "everybodys"
    place.plant([(hers / "x", "text", ""), (everybodys / "x", "text", "")])  # modes 0777
    hers.chmod(0o1777)  # the owner of a sticky folder may rename what is others'
    planted = [
        ("link to a folder", str(precious)),
        ("link to nothing", str(cluster.home / "new")),
        ("pipe", ""),
        ("folder", ""),
        ("left", str(precious)),
    ]
    alice = pwd.getpwnam(ALICE).pw_uid
    for folder, (kind, what), whole in itertools.product((sticky, hers, everybodys), planted, (True, False)):
        path = folder / f"{kind.replace(' ', '-')}-{whole}"
        there = folder / f".{path.name}.old{receiver.END}" if kind == "left" else path
        place.plant([(there, kind if kind in ("pipe", "folder") else "link", what)])
        ask = {"mark": "m", "send": True, "path": str(path), "whole": whole, "replace": not whole,
               "files": [("data", 1, 0o644)]}  # fmt: skip
        done = cluster.lab.exec([place.python, "-I", "-m", receiver.__name__], input=f"{json.dumps(ask)}\nxgo\n")
        file = path / "data" if whole else path
        arrived = not path.is_symlink() and file.is_file() and file.stat().st_uid == alice
        told = ('"done"' in done.stdout) == arrived and "Traceback" not in done.stderr
        untouched = cluster.run("cat", f"{precious}/data").stdout == "mine\n"
        nothing = cluster.run("test", "-e", str(cluster.home / "new")).returncode != 0
        allowed = not arrived or (folder == sticky and kind == "left")
        refused = told and untouched and nothing and allowed
        attempts.judge(f"{path}: {done.stdout}{done.stderr}", refused=refused)
    left = [name for folder in (sticky, hers, everybodys) for name in os.listdir(folder) if name.endswith(receiver.END)]
    assert all(".old" in name for name in left), left


def test_a_waiting_run_that_mallory_swaps_runs_nothing_of_hers(
    cluster: Cluster, place: Place, attempts: Attempts
) -> None:
    """Alice trusts her, so the folder is taken; what the job finds there is hers and is not run."""
    runs = place.top / "trusted"
    place.plant([(runs / "x", "text", "")])
    runs.chmod(0o777)
    script = str(cluster.write("job.py", "print('alices')\n"))
    for make in ("folder", "link"):
        done = cluster.run("hpcml", "submit", "--detach", "--json", "--set", f"paths.runs={runs}", "--set", f'paths.trust=["{MALLORY}", "@everybody"]',
                           "--set", 'slurm.extra=["--hold"]', script)  # fmt: skip
        assert done.returncode == 0, done.stderr
        facts = json.loads(done.stdout)
        directory = Path(facts["directory"])
        aside = directory.with_name(f"aside-{make}")
        swapped = cluster.lab.exec(["mv", str(directory), str(aside)], user="mallory", cwd="/")
        assert swapped.returncode == 0, swapped.stderr
        evil = f"#!/bin/sh\ntouch {place.top}/{OWNED}-$(id -un)\n"
        if make == "folder":
            place.plant([(directory / name, "text", evil) for name in ("step.sh", "image.sh", "stage.sh", "lib.zip")])
            place.plant([(directory / "logs" / "x", "text", "")])
        else:
            place.plant(
                [
                    (directory.with_name("evil") / "step.sh", "text", evil),
                    (directory, "link", str(directory.with_name("evil"))),
                ]
            )
        cluster.run("scontrol", "release", facts["job"])
        cluster.wait_gone(aside)
        state = cluster.job(facts["job"])["JobState"]
        owned = list(place.top.glob(f"{OWNED}*"))
        attempts.judge(
            f"the waiting run as a {make}: {state} {owned}", refused=not owned and state == "FAILED", tries=4
        )
