"""All that another account can try where runs are submitted and looked at: settings, templates, runs, folders, images, words.

What one account alone can show (a hostile login node, models, tables) is in tests/cli/test_hostile_host.py and tests/jobs.
"""

from __future__ import annotations

import itertools
import json
import os
import pwd
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from attacks import Attempts
from conftest import Cluster
from hpcml.remote import receiver
from tests.fixtures.images import sif_file

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

KEYS = {
    "runtime.setup": f'[runtime]\nsetup = ["touch /tmp/{OWNED}"]',
    "runtime.python": f'[runtime]\npython = "/tmp/{OWNED}"',
    "runtime.modules": f'[runtime]\nmodules = ["{OWNED}"]',
    "runtime.container": f'[runtime]\nkind = "image"\nimage = "/x.sif"\ncontainer = "/tmp/{OWNED}"',
    "environment": f'[environment]\nBASH_ENV = "/tmp/{OWNED}"',
    "slurm.extra": f'[slurm]\nextra = ["--constraint={OWNED}"]',
    "slurm.srun_extra": f'[slurm]\nsrun_extra = ["--prolog=/tmp/{OWNED}"]',
    "paths.runs": f'[paths]\nruns = "/tmp/{OWNED}"',
    "paths.scratch": f'[paths]\nscratch = "/tmp/{OWNED}"',
    "defaults.account": f'[defaults]\naccount = "{OWNED}"',
    "login.hpcml": f'[login]\nhost = "localhost"\nhpcml = "touch /tmp/{OWNED}; hpcml"',
    "login.control": f"[login]\ncontrol = '/tmp/x$(touch /tmp/{OWNED})'",
    "of a site": f'[site.lab.runtime]\nsetup = ["touch /tmp/{OWNED}"]',
    "nested": "x = " + "[" * 100_000,
}
EXPRESSIONS = (
    f"cycler.__init__.__globals__.os.popen('touch /tmp/{OWNED}').read()",
    f"lipsum.__globals__['os'].system('touch /tmp/{OWNED}')",
    f"self.__init__.__globals__.__builtins__.__import__('os').system('touch /tmp/{OWNED}')",
    f"joiner.__init__.__globals__['os'].system('touch /tmp/{OWNED}')",
    f"namespace.__init__.__globals__.os.system('touch /tmp/{OWNED}')",
    "''.__class__.__mro__[1].__subclasses__()",
    "(plan | attr('__class__')).__mro__",
    "plan.steps[0].__class__.__base__.__subclasses__()",
    "'{0.__class__.__mro__}'.format(plan)",
    "range.__self__.__import__('os')",
)


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
    for key, text in KEYS.items():
        template = "{% extends 'hpcml/batch.sh.j2' %}{% block environment %}touch /tmp/" + OWNED + "{% endblock %}"
        things = [
            (hers / "hpcml.toml", "text", text),
            (above, "text", text),
            (hers / "templates/hpcml/batch.sh.j2", "text", template),
        ]
        place.plant(things)
        for cwd in (hers, own):
            for words, (code, out, err) in zip(commands, place.types(commands, cwd), strict=True):
                refused = code == 0 and OWNED not in out and "does not count: it belongs to hpcml-mallory" in err
                attempts.judge(
                    f"{key} in {cwd.name}, {words[1]}: {out[-300:]}{err[-300:]}",
                    refused=refused and not is_owned(cluster),
                )
    place.plant([(above, "link", f"{place.top}/alices/mine.toml")])
    cluster.lab.exec(["tee", str(own / "mine.toml")], input=KEYS["runtime.setup"])
    for code, out, err in place.types(commands[:2], own):
        attempts.judge(
            f"her link to a file of alice's: {err}", refused=code == 0 and OWNED not in out and "is a link of" in err
        )
    above.unlink()
    done = cluster.run("sh", "-c", "test -e /tmp/owned-by-mallory")
    attempts.judge("a command of hers on the login node", refused=done.returncode != 0)


def test_expressions_of_templates_reach_nothing(cluster: Cluster, place: Place, attempts: Attempts) -> None:
    """Also of a template that counts: alice's own, with words of mallory's in it."""
    folder = cluster.work / "templates" / "hpcml"
    script = str(cluster.write("job.py", "print(1)\n"))
    for words in EXPRESSIONS:
        cluster.write("templates/hpcml/batch.sh.j2", f"#!/bin/bash\n{{{{ {words} | string | sh }}}}\n")
        for code, out, err in place.types(
            [("hpcml", "plan", "--site", "lab", script), ("hpcml", "submit", "--site", "lab", script)]
        ):
            attempts.judge(
                f"{words}: {out}{err}", refused=code == 78 and "batch.sh.j2:2" in err and not is_owned(cluster)
            )
    shutil.rmtree(folder.parent)


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
        last = [("hpcml", command, "last", *there) for command in ("status", "logs")]
        for words, (code, out, err) in zip(last, place.types(last), strict=True):
            attempts.judge(f"{words[1]} last: {out}{err}", refused=code == 0 and "2099" not in out, tries=len(names))
        named = [*names[::5], killer, "link-20990101-010000-0000", "evil0", "kill", "evil1-2"]
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


def test_hostile_files_in_a_run_of_one_s_own(cluster: Cluster, place: Place, attempts: Attempts) -> None:
    """A run's folder that was open for a while: mallory's files in it are named, and no other run suffers."""
    runs = place.top / "opened"
    cluster.lab.exec(["mkdir", "-m", "700", str(runs)])
    there = ("--set", f"paths.runs={runs}")
    script = str(cluster.write("job.py", "print('alices')\n"))
    done = cluster.run("hpcml", "submit", "--wait", "--nodes", "1", *there, script)
    assert done.returncode == 0, done.stderr
    (own,) = [path for path in runs.iterdir() if not path.name.startswith(".")]
    uid, gid = pwd.getpwnam(MALLORY).pw_uid, pwd.getpwnam(MALLORY).pw_gid
    alice = pwd.getpwnam(ALICE)
    names: list[tuple[str, str, str]] = []
    for file in ("submission.json", "plan.json", "status.json", "events.jsonl"):
        for kind, (how, what) in HOSTILE.items():
            name = f"open{len(names)}-20250101-0000{len(names):02d}-0000"
            names.append((name, f"{kind} as {file}", kind))
            shutil.copytree(own, runs / name, symlinks=True)
            for path in (runs / name, *(runs / name).rglob("*")):
                os.chown(path, alice.pw_uid, alice.pw_gid, follow_symlinks=False)
            (runs / name / file).unlink()
            _put(runs / name / file, how, what)
            if kind != "escapes":  # alice's own: what a program of hers was made to write
                os.chown(runs / name / file, uid, gid, follow_symlinks=False)
    listings = [("hpcml", "ls", "--all", *there), ("hpcml", "ls", "--all", "--json", *there)]
    for words, (code, out, err) in zip(listings, place.types(listings), strict=True):
        rows = len(json.loads(out)) if "--json" in words else len(out.splitlines()) - 1
        refused = code == 0 and rows == len(names) + 1 and own.name in out and plain(out + err)
        attempts.judge(f"{' '.join(words)}: {rows} {out[-999:]}{err}", refused=refused, tries=len(names))
    commands = [("hpcml", command, name, *there) for name, _, _ in names for command in ("status", "cancel")]
    for (_, label, kind), pair in zip(names, _pairs(place.types(commands)), strict=True):
        for code, out, err in pair:
            refused = code in ((0, 66, 74) if kind == "escapes" else (74,)) and plain(out + err)
            attempts.judge(f"{label}: {code} {out}{err}", refused=refused)


def _put(path: Path, how: str, what: str) -> None:
    if how == "text":
        path.write_text(what)
    elif how == "link":
        path.symlink_to(what)
    elif how == "pipe":
        os.mkfifo(path)
    elif how == "folder":
        path.mkdir()
    else:
        with path.open("wb") as file:
            file.truncate(3 << 30)


def _pairs(rows: list[Any]) -> list[tuple[Any, Any]]:
    return list(zip(rows[::2], rows[1::2], strict=True))


# -- the folders above ----------------------------------------------------------------------------------------------------


def test_folders_of_mallory_s_take_no_runs(cluster: Cluster, place: Place, attempts: Attempts) -> None:
    script = str(cluster.write("job.py", "print(1)\n"))
    hers, open_to_all = place.top / "mallorys", place.top / "open"
    place.plant([(hers / "below" / "x", "text", ""), (hers / "link", "link", str(cluster.home))])
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    link = place.top / "link-of-hers"
    place.plant([(link, "link", str(cluster.home / ".hpcml"))])
    for mode in (0o755, 0o777, 0o1777, 0o700):
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
            words = [
                ("hpcml", "submit", *more, "--site", "lab", "--set", f"paths.runs={folder}", script)
                for more in ((), ("--dry-run",))
            ]
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
        deadline = time.monotonic() + 120
        while (state := cluster.job(facts["job"]).get("JobState")) in (
            "PENDING",
            "RUNNING",
            "COMPLETING",
            "CONFIGURING",
        ):
            assert time.monotonic() < deadline, state
            time.sleep(0.5)
        owned = list(place.top.glob(f"{OWNED}*"))
        attempts.judge(
            f"the waiting run as a {make}: {state} {owned}", refused=not owned and state == "FAILED", tries=4
        )


# -- images and words -----------------------------------------------------------------------------------------------------


def test_images_of_mallory_s_are_shown_and_not_obeyed(cluster: Cluster, place: Place, attempts: Attempts) -> None:
    folder = place.top / "images"
    folder.mkdir()
    shutil.chown(folder, MALLORY, MALLORY)
    script = str(cluster.write("job.py", "print(1)\n"))
    nested = b'{"data":{"attributes":{"labels":' + b"[" * 100_000
    made = [sif_file.make(folder / f"{name}.sif") for name in ("\x1b[2J", "a\nfake  row", "\u202efis", "\x9b31m")]
    made.append(
        sif_file.make(folder / "labels.sif", {**sif_file.SAID, "org.hpcml.kind": ESCAPES, f"x{ESCAPES}": ESCAPES})
    )
    made.append(sif_file.make(folder / "texts.sif", definition=f"{sif_file.DEFINITION}# {ESCAPES}\n", text=ESCAPES))
    made.append(sif_file.make(folder / "nested.sif", None, more=((0x4006, "inspect-metadata.json", nested),)))
    made.append(sif_file.make(folder / "old.sif", None, more=((0x4003, "", b"[" * 100_000),)))
    for path in made:
        shutil.chown(path, MALLORY, MALLORY)
    things = [
        (folder / f"{how}{number}.sif", how, what)
        for number, (how, what) in enumerate(HOSTILE.values())
        if how != "text"
    ]
    for number, (how, what) in enumerate(HOSTILE.values()):
        path = sif_file.make(folder / f"record{number}.sif")
        shutil.chown(path, MALLORY, MALLORY)
        things.append((path.with_name(f"{path.name}.json"), how, what))
    place.plant(things)
    images = sorted(path for path in folder.iterdir() if path.name.endswith(".sif"))
    for words, (code, out, err) in zip(((), ("--json",)), place.types([("hpcml", "image", "ls", str(folder)), ("hpcml", "image", "ls", "--json", str(folder))]), strict=True):  # fmt: skip
        rows = len(json.loads(out)) if words else len(out.splitlines())
        attempts.judge(
            f"image ls: {code} {rows} {err}",
            refused=code == 0 and rows == len(images) and plain(out + err),
            tries=len(images),
        )
    commands = [words for path in images for words in (
        ("hpcml", "image", "show", str(path)), ("hpcml", "submit", "--site", "lab", "--dry-run", "--image", str(path), script))]  # fmt: skip
    for words, (code, out, err) in zip(commands, place.types(commands), strict=True):
        seen = err if words[1] == "submit" else out + err  # a batch script goes into a pipe byte for byte
        attempts.judge(f"{words[1]} {words[-1]!a}: {code} {err}", refused=code in (0, 64, 66, 78, 88) and plain(seen))


def test_a_log_drives_no_terminal(cluster: Cluster, attempts: Attempts) -> None:
    """Alice's script prints what it read of mallory's."""
    ran = cluster.submit(
        f"import sys\nsys.stdout.buffer.write({ESCAPES.encode()!r} + b' bye\\n')\n",
        "--nodes",
        "1",
        "--name",
        "loud",
    )
    assert ran.code == 0
    for words in ("hpcml logs loud", "hpcml logs -f loud", "hpcml logs loud driver"):
        done = cluster.lab.exec(
            ["script", "-qec", words, "/dev/null"], cwd=cluster.work, env={"TERM": "xterm", "SHELL": "/bin/sh"}
        )
        attempts.judge(
            f"{words}: {done.stdout!r}",
            refused="\x1b" not in done.stdout and "\u202e" not in done.stdout and "bye" in done.stdout,
            tries=5,
        )
    assert "\x1b[2J" in ran.out, "a pipe gets every byte"
