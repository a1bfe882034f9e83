"""What another account can try where runs are submitted and looked at: settings, templates, runs, folders.

Each kind here once, with a real second account; all kinds, with files that root gave away, are in tests/cli
(test_foreign_*.py, test_planted_runs.py, test_hostile_host.py).
"""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import os
import pwd
import shutil
import subprocess
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

import mallory
from conftest import Cluster
from hpcml import node_archive
from hpcml.remote import receiver
from tests.looks import without_late_report

pytestmark = pytest.mark.lab

ALICE, MALLORY = "hpcml-alice", "hpcml-mallory"
OWNED = "owned-by-mallory"
SETTINGS = f"""
[runtime]
setup = ["touch /tmp/{OWNED}"]
python = "/tmp/{OWNED}"
[slurm]
extra = ["--constraint={OWNED}"]
[login]
hpcml = "touch /tmp/{OWNED}; hpcml"
[site.lab.runtime]
setup = ["touch /tmp/{OWNED}"]
"""
TEMPLATE = "{% extends 'hpcml/batch.sh.j2' %}{% block environment %}touch /tmp/" + OWNED + "{% endblock %}"

# What mallory runs: each line of her input is a path and what she puts there.
PLANT = r"""
import json, os, shutil, sys
os.umask(0)
for line in sys.stdin:
    path, kind, what = json.loads(line)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    if os.path.lexists(path):
        shutil.rmtree(path) if os.path.isdir(path) and not os.path.islink(path) else os.unlink(path)
    if kind == "text":
        open(path, "w").write(what)
        os.chmod(path, 0o777)
    elif kind == "link":
        os.symlink(what, path)
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        os.mkdir(path)
"""


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

    def plant(self, *things: tuple[Path, str, str]) -> None:
        """Have mallory put files there."""
        text = "".join(json.dumps([str(path), kind, what]) + "\n" for path, kind, what in things)
        done = self.cluster.lab.exec([self.python, "-c", PLANT], user="mallory", cwd="/", input=text)
        assert done.returncode == 0, done.stderr

    def types(self, *commands: Sequence[str], cwd: Path | None = None) -> list[tuple[int, str, str]]:
        """Have alice type commands on the login node."""
        done = [self.cluster.run(*words, cwd=cwd, timeout=240) for words in commands]
        return [(one.returncode, one.stdout, one.stderr) for one in done]


@pytest.fixture(scope="module")
def place(cluster: Cluster) -> Iterator[Place]:
    found = Place(cluster)
    yield found
    shutil.rmtree(found.top, ignore_errors=True)


def test_settings_and_templates_of_mallory_s_are_not_obeyed(cluster: Cluster, place: Place) -> None:
    """In her folder, where alice works; in a folder above alice's own; by a link to a file of alice's."""
    hers, above, own = place.top / "hers", place.top / "hpcml.toml", place.top / "alices"
    cluster.lab.exec(["mkdir", "-m", "700", str(own)])
    script = str(cluster.write("job.py", "print(1)\n"))
    commands = (("hpcml", "submit", "--site", "lab", "--dry-run", script), ("hpcml", "ls"))
    place.plant((hers / "hpcml.toml", "text", SETTINGS), (above, "text", SETTINGS),
                (hers / "templates/hpcml/batch.sh.j2", "text", TEMPLATE))  # fmt: skip
    for cwd in (hers, own):
        for code, out, err in place.types(*commands, cwd=cwd):
            assert code == 0, err
            assert OWNED not in out
            assert "hpcml ignores " in err
            assert "belongs to hpcml-mallory" in err
    place.plant((above, "link", str(own / "mine.toml")))
    cluster.lab.exec(["tee", str(own / "mine.toml")], input=SETTINGS)
    [(code, out, err)] = place.types(commands[0], cwd=own)
    assert code == 0, err
    assert OWNED not in out
    assert "is a link that belongs to" in err
    above.unlink()
    assert cluster.run("test", "-e", f"/tmp/{OWNED}").returncode != 0  # on the login node, whose /tmp is its own


def test_planted_runs_are_nobody_s(cluster: Cluster, place: Place) -> None:
    """Runs of hers of years to come beside one of alice's that waits, and a file of hers in a run of alice's."""
    runs = place.top / "runs"
    runs.mkdir()
    runs.chmod(0o1777)
    there = ("--set", f"paths.runs={runs}")
    _, own = cluster.detach("print('alices')\n", "--nodes", "1", "--set", 'slurm.extra=["--hold"]', *there)
    records = {path.name: path.read_text() for path in own.glob("*.json*")}
    sleeper = cluster.lab.popen(["sleep", "600"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        started = Path(f"/proc/{sleeper.pid}/stat").read_text().rpartition(")")[2].split()[19]
        process = json.dumps({"slurm": False, "job": "", "pid": sleeper.pid, "started": started})
        killer, copy, link, odd = (f"{name}-20990101-010000-0000" for name in ("kill", "copy", "link", "x\x1b[2J\ny"))
        place.plant((runs / killer / "submission.json", "text", process), (runs / killer / "plan.json", "text", '{"inside": {}}'),
                    *((runs / copy / name, "text", text) for name, text in records.items()),
                    (runs / copy / ".submission.json.new", "link", str(own / "submission.json")),
                    (runs / link, "link", str(own)), (runs / odd / "plan.json", "text", "{}"))  # fmt: skip
        listings = [
            ("hpcml", *words, *there) for words in (("ls",), ("ls", "--all"), ("ls", "--json"), ("status", "last"))
        ]
        for words, (code, out, err) in zip(listings, place.types(*listings), strict=True):
            assert code == 0, (words, err)
            assert "2099" not in out, words
            assert own.name in out, words
            assert plain(out + err), words
        named = [("hpcml", verb, name, *there) for name in (killer, copy, link, "kill", "cop")
                 for verb in ("status", "logs", "cancel", "tunnel", "interconnect")]  # fmt: skip
        for words, (code, out, err) in zip(named, place.types(*named), strict=True):
            assert code in (64, 66, 74), (words, out, err)
            assert plain(out + err), words
        mixed = runs / "mixed-20250101-000000-0000"  # open for a while
        cluster.run("cp", "-r", str(own), str(mixed))
        for file in ("submission.json", "plan.json"):
            (mixed / file).unlink()
            mixed.chmod(0o777)
            place.plant((mixed / file, "text", records[file]))
            mixed.chmod(0o700)
            for code, out, err in place.types(*(("hpcml", verb, mixed.name, *there) for verb in ("status", "cancel"))):
                assert code == 74, (file, out, err)
                assert plain(out + err), file
            cluster.run("cp", str(own / file), str(mixed / f".{file}"))
            (mixed / file).unlink()
            (mixed / f".{file}").rename(mixed / file)
        assert sleeper.poll() is None, "a process of alice's was ended by a record of mallory's"
        assert records == {path.name: path.read_text() for path in own.glob("*.json*")}
    finally:
        sleeper.kill()
        sleeper.wait()


def test_a_hold_of_mallory_s_gets_no_run_and_hers_is_none_in_alice_s(cluster: Cluster, place: Place) -> None:
    """A copy of alice's hold, of years to come, beside it; and a loop of tries at the hold while runs go through it."""
    holds = place.top / "holds"
    holds.mkdir()
    holds.chmod(0o1777)
    there = ("--set", f"paths.runs={holds}")
    asked = ("--nodes", "1", "--cpus-per-node", "2", "--mem", "900M", "--time", "10m", "--idle", "off")
    done = cluster.run("hpcml", "hold", "--json", *asked, *there)
    hold = Path(json.loads(done.stdout)["directory"])
    cluster.wait_event(hold, "script-started", 60)
    copy = holds / "hold-20990101-010000-0000"
    files = [path for path in hold.rglob("*.json*") if path.suffix in (".json", ".jsonl")]
    texts = {path: path.read_text().replace(hold.name, copy.name) for path in files}
    place.plant(*((copy / path.relative_to(hold), "text", text) for path, text in texts.items()),
                *((copy / "hold" / name, "folder", "") for name in ("queue", "runs", "told")))  # fmt: skip
    words = ["python3", "-c", mallory.QUEUE, str(hold), "x-20990101-000000-0000"]
    tries = cluster.lab.popen(words, user="mallory", stdin=subprocess.PIPE, cwd="/")
    try:
        script = cluster.command("import os; print(os.environ['PASSWORD'])\n", "--nodes", "1")[2:]
        secret = {"PASSWORD": "alices-0123456789"}
        for named in ("last", "last", hold.name):
            done = cluster.run("hpcml", "run", *there, "--in", named, *script, env=secret)
            assert (done.returncode, done.stdout) == (0, "alices-0123456789\n"), done.stderr
        for named in (copy.name, "hold-2099"):
            done = cluster.run("hpcml", "run", *there, "--in", named, *script, env=secret)
            assert done.returncode in (66, 74), done.stderr
        out, err = tries.communicate("", timeout=120)
        assert tries.returncode == 0, err
        assert json.loads(out)["won"] == []
        assert json.loads(cluster.run("hpcml", "status", *there, "--json", hold.name).stdout)["runs"] == []
        assert cluster.run("hpcml", "cancel", *there, hold.name).returncode == 0
        cluster.wait_status(hold, 60)
        done = cluster.run("hpcml", "run", *there, "--in", "last", *script, env=secret)
        assert done.returncode == 66, done.stderr
    finally:
        tries.kill()
        tries.communicate()
    assert not [path for path in (copy / "hold").rglob("*") if path.is_file()]


def test_folders_of_mallory_s_take_no_runs(cluster: Cluster, place: Place) -> None:
    hers, open_to_all, link = place.top / "mallorys", place.top / "open", place.top / "link-of-hers"
    place.plant((hers / "below/x", "text", ""), (link, "link", str(cluster.home / ".hpcml")))
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    hers.chmod(0o1777)
    folders = (hers / "not/there", link / "runs", open_to_all / "runs")
    script = str(cluster.write("job.py", "print(1)\n"))
    commands = [("hpcml", "submit", "--site", "lab", "--set", f"paths.runs={folder}", script) for folder in folders]
    for folder, (code, out, err) in zip(folders, place.types(*commands), strict=True):
        assert code == 74, (folder, out, err)
        assert plain(out + err), folder
    assert cluster.run("squeue", "--me", "--noheader").stdout == ""


DESCRIBED = '# /// script\n# requires-python = ">=3.11"\n# dependencies = []\n# ///\nprint(1)\n'
PATH_FIRST = 'PATH="$1:$PATH"; shift; exec "$@"'
MAPS = "import hpcml, sys; hpcml.map(abs, [1], set={'paths.runs': sys.argv[1]})"
ELASTIC = "import hpcml, sys; hpcml.ElasticCluster(set={'paths.runs': sys.argv[1]})"


def test_names_of_mallory_s_beside_runs_are_refused_with_a_next_step(cluster: Cluster, place: Place) -> None:
    """In a runs folder that all share she makes the folders that sweeps, uv, maps and elastic clusters have there."""
    runs, taken = place.top / "squatted", ("sweeps", ".environments", ".maps", ".clusters")
    runs.mkdir()
    runs.chmod(0o1777)
    place.plant(*((runs / name, "folder", "") for name in taken))
    option = f"paths.runs={runs}"
    script = str(cluster.write("squatted/job.py", "print(1)\n"))
    metadata = str(cluster.write("squatted/described.py", DESCRIBED))
    uv = cluster.write("squatted/bin/uv", "#!/bin/sh\nexit 9\n")
    uv.chmod(0o755)
    done = [
        cluster.run("hpcml", "sweep", "--detach", "--set", option, script, "--grid", "k=1,2"),
        cluster.run("sh", "-c", PATH_FIRST, "sh", str(uv.parent), "hpcml", "submit", "--set", option, metadata),
        *(cluster.run("python", "-c", program, str(runs)) for program in (MAPS, ELASTIC)),
    ]
    for name, one in zip(taken, done, strict=True):
        assert one.returncode, name
        assert f"{runs}/{name}" in one.stderr, one.stderr
        assert "--set paths.runs=" in one.stderr, one.stderr
    assert [name for name in taken if os.listdir(runs / name)] == []
    assert sorted(os.listdir(runs)) == sorted(taken)


def test_what_is_sent_to_a_login_node_goes_nowhere_else(cluster: Cluster, place: Place) -> None:
    """As `hpcml --host HOST pack` sends it, into folders in which mallory has put what might be in the way."""
    precious = cluster.home / "precious"
    cluster.run("sh", "-ec", f"mkdir -p {precious}; echo mine > {precious}/data; touch -d 2001-01-01 {precious}")
    sticky, hers, everybodys = place.top, place.top / "mallorys-own", place.top / "everybodys"
    place.plant((hers / "x", "text", ""), (everybodys / "x", "text", ""))  # modes 0777
    hers.chmod(0o1777)  # the owner of a sticky folder may rename what is others'
    planted = [
        ("link to a folder", str(precious)),
        ("link to nothing", str(cluster.home / "new")),
        ("pipe", ""),
        ("folder", ""),
        ("left", str(precious)),
    ]
    alice = pwd.getpwnam(ALICE).pw_uid
    for folder, (kind, what), replace in itertools.product((sticky, hers, everybodys), planted, (True, False)):
        path = folder / f"{kind.replace(' ', '-')}-{replace}"
        there = folder / f".{path.name}.old{receiver.END}" if kind == "left" else path
        place.plant((there, kind if kind in ("pipe", "folder") else "link", what))
        ask = {"mark": "m", "path": str(path), "replace": replace, "files": [("data", 1, 0o644)]}
        done = cluster.lab.exec([place.python, "-I", "-m", receiver.__name__], input=f"{json.dumps(ask)}\nxgo\n")
        arrived = not path.is_symlink() and path.is_file() and path.stat().st_uid == alice
        told = ('"done"' in done.stdout) == arrived and "Traceback" not in done.stderr
        untouched = cluster.run("cat", f"{precious}/data").stdout == "mine\n"
        nothing = cluster.run("test", "-e", str(cluster.home / "new")).returncode != 0
        allowed = not arrived or (folder == sticky and kind == "left")
        assert (told, untouched, nothing, allowed) == (True,) * 4, f"{path}: {done.stdout}{done.stderr}"
    left = [name for folder in (sticky, hers, everybodys) for name in os.listdir(folder) if name.endswith(receiver.END)]
    assert all(".old" in name for name in left), left


def test_a_waiting_run_that_mallory_swaps_runs_nothing_of_hers(cluster: Cluster, place: Place) -> None:
    """Alice trusts her, so the folder is taken; what the job finds there is hers and is not run."""
    runs = place.top / "trusted"
    place.plant((runs / "x", "text", ""))
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
            place.plant(*((directory / name, "text", evil) for name in ("step.sh", "image.sh", "stage.sh", "lib.zip")))
            place.plant((directory / "logs" / "x", "text", ""))
        else:
            other = directory.with_name("evil")
            place.plant((other / "step.sh", "text", evil), (directory, "link", str(other)))
        cluster.run("scontrol", "release", facts["job"])
        cluster.wait_gone(aside)
        state = cluster.job(facts["job"])["JobState"]
        owned = list(place.top.glob(f"{OWNED}*"))
        assert (owned, state) == ([], "FAILED"), make


WRITES = """
import pathlib, sys, time
here = pathlib.Path(__file__).parent
for name in ("r.csv", "config.json", "pipe.csv", "hers/r.csv", "link/r.csv", "mine/r.csv"):
    (here / name).parent.mkdir(exist_ok=True)
    (here / name).write_text("of the run")
(here / "r.csv").chmod(0o600)
deadline = time.monotonic() + 120
while not pathlib.Path(sys.argv[1]).exists() and time.monotonic() < deadline:
    time.sleep(0.1)
"""


def test_mallory_leads_no_file_of_a_script_out_of_its_project(cluster: Cluster, place: Place) -> None:
    """Her names in a project of alice's that all may write to, and in the runs folder, while the script runs."""
    project, runs, secret, go = (place.top / name for name in ("project", "all-runs", "secret", "go"))
    cluster.lab.exec(["mkdir", "-m", "777", str(project)])
    cluster.lab.exec(["mkdir", "-m", "700", str(secret)])
    cluster.lab.exec(["tee", str(project / "train.py")], input=WRITES)
    cluster.lab.exec(["tee", str(project / "config.json")], input="{}")
    cluster.lab.exec(["tee", str(secret / "config.json")], input="{}")
    runs.mkdir()
    runs.chmod(0o1777)
    uid = pwd.getpwnam(ALICE).pw_uid
    library = runs / f".lib-{uid}-{node_archive.seal(node_archive.node_archive())}.zip"
    place.plant((library, "text", "mallory's"))
    script = ("hpcml", "submit", "--nodes", "1", "--detach", "--json", "--set", f"paths.runs={runs}",
              str(project / "train.py"), str(go))  # fmt: skip
    [(code, out, err)] = place.types(script)
    assert code == 0, err
    run = Path(json.loads(out)["directory"])
    assert (run / "lib.zip").stat().st_uid == uid
    cluster.wait_event(run, "script-started", 60)
    place.plant((project / "config.json", "link", str(secret / "config.json")), (project / "pipe.csv", "pipe", ""),
                (project / "hers", "folder", ""), (project / "link", "link", str(secret)),
                (project / f".hpcml-{run.name}-0123", "folder", ""), (go, "text", ""))  # fmt: skip
    assert cluster.wait_status(run)["exit_status"] == 0
    [(code, out, err)] = place.types(("hpcml", "status", run.name, "--json", "--set", f"paths.runs={runs}"))
    assert code == 0, err
    facts = json.loads(out)
    left = {one["name"]: one["why"] for one in facts["not_brought"]}
    assert sorted(left) == ["config.json", "hers/r.csv", "link/r.csv", "pipe.csv"], left
    assert "belongs to hpcml-mallory" in left["hers/r.csv"]
    assert sorted(facts["brought"]) == ["mine/r.csv", "r.csv"]
    assert (project / "r.csv").stat().st_mode & 0o777 == 0o600
    assert [path.name for path in secret.iterdir()] == ["config.json"]
    assert (secret / "config.json").read_text() == "{}"
    assert not list((project / "hers").iterdir())


KINDS = {
    "dask": ("import hpcml; hpcml.connect()\n", ("--nodes", "2", "--cpus-per-node", "1", "--memory-per-node", "600M")),
    "ranks": ("print(1)\n", ("--nodes", "2", "--ranks", "1", "--cpus-per-node", "1", "--memory-per-node", "600M")),
    "batch": ("#!/bin/bash\n#SBATCH --nodes=2 --time=5 --mem=600M\nsrun sleep 3\n", ()),
}


def test_a_node_imports_no_other_library_than_the_first_node_s(cluster: Cluster, subtests: pytest.Subtests) -> None:
    """One that is whole, on the second node alone: the run names node and file, and none of its code runs."""
    owned = cluster.work / "owned"
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("hpcml/__init__.py", f"open({str(owned)!r}, 'w')\n")
        archive.comment = b"0" * 64
    evil = cluster.work / "evil.zip"
    evil.write_bytes(stream.getvalue()[:-64] + node_archive.seal(stream.getvalue()).encode())
    evil.chmod(0o644)
    held = ("--detach", "--json", "--set", 'slurm.extra=["--hold"]')
    with contextlib.ExitStack() as covered:
        started = {}
        for kind, (text, options) in KINDS.items():
            script = cluster.write(f"library/job-of-{kind}.{'sh' if kind == 'batch' else 'py'}", text)
            done = cluster.run("hpcml", "submit", *held, *options, str(script))
            assert done.returncode == 0, done.stderr
            facts = json.loads(done.stdout)
            library = f"{facts['directory']}/lib.zip"
            covered.enter_context(cluster.covered("n2", f"mount --bind {evil} {library}", library))
            cluster.run("scontrol", "update", f"JobId={facts['job']}", "NodeList=n1,n2", user="root", node="ctl")
            cluster.run("scontrol", "release", facts["job"])
            started[kind] = Path(facts["directory"])
        for kind, directory in started.items():
            with subtests.test(kind):
                status = cluster.wait_status(directory, 120)
                why = json.loads(cluster.run("hpcml", "why", directory.name, "--json").stdout)
                clause = "exited with status 74: lib.zip is missing"
                if kind == "batch":
                    (warning,) = without_late_report(line["text"] for line in why["warnings"])
                    assert status["exit_status"] == 0
                    assert warning.startswith(f"n2 is not watched: hpcml's agent {clause}")
                else:
                    assert why["rule"] == "damaged-library"
                    assert clause in why["cause"]
        assert not owned.exists()
