"""`hpcml --host` from the lab's laptop, through a real sshd with certificates, to a real Slurm."""

from __future__ import annotations

import json
import os
import shutil
import signal
import stat
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import lab_ssh
from conftest import KMEANS, Clustered, directory_of
from hpcml import assets, errors
from laptop import Outside, until
from test_wheelhouse import wheel

pytestmark = pytest.mark.lab
HOSTILE = (
    "$(touch pwned)",
    "`id`",
    "it's",
    'say "no"',
    "new\nline",
    "; exit 9",
    "",
    "back\\slash",
    "é",
    "\udcff",
    "--help",
    "!!",
)


@pytest.fixture(scope="module")
def project(outside: Outside) -> Path:
    """A folder of alice's on the laptop, as the laptop names it; the cluster has none of that name."""
    outside.lab.wait_idle(60)
    folder = outside.lab.home("alice") / "laptop project's"
    shutil.rmtree(outside.home / folder.name, ignore_errors=True)
    outside.laptop("mkdir", "-p", str(folder))
    return folder


@pytest.fixture(autouse=True)
def _ends_idle(outside: Outside) -> Iterator[None]:
    for path in outside.home.glob(".hpcml/ssh/*.logins"):  # some tests break the link, and all share one hour
        path.unlink()
    yield
    outside.on("login", "scancel", "--me", "--quiet")
    outside.lab.wait_idle(60)
    assert not staged(outside)


def staged(outside: Outside) -> list[str]:
    folder = outside.lab.home("alice") / ".hpcml/incoming"
    return os.listdir(folder) if folder.is_dir() else []


def serving(outside: Outside) -> list[str]:
    return [
        line for _, line in outside.lab.processes("alice") if "--serve-laptop" in line and "ssh" not in line.split()[0]
    ]


def write(outside: Outside, path: Path, text: str) -> Path:
    done = outside.on(lab_ssh.LAPTOP, "tee", str(path), input=text)
    assert done.returncode == 0, done.stderr
    return path


def hpcml(outside: Outside, project: Path, *words: str, timeout: float = 120) -> subprocess.CompletedProcess[str]:
    return outside.lab.exec(["hpcml", "--host", "lab", *words], node=lab_ssh.LAPTOP, cwd=project, timeout=timeout)


def start(outside: Outside, project: Path, *words: str) -> subprocess.Popen[str]:
    return outside.lab.popen(["hpcml", "--host", "lab", *words], node=lab_ssh.LAPTOP, cwd=project)


def test_kmeans_on_four_nodes_gives_the_laptop_s_result(
    outside: Outside, project: Path, kmeans_here: Clustered
) -> None:
    """Submitted, watched and fetched from the laptop with one login; the same script on this machine agrees."""
    outside.forget()
    logins = outside.logins("login") + outside.logins("login2")
    project /= "kmeans"
    outside.laptop("mkdir", "-p", str(project))
    jobs = assets.folder("jobs") / "workloads"
    outside.laptop("mkdir", "-p", str(project / "gallery"))
    for path in jobs.rglob("*.py"):
        write(outside, project / path.relative_to(jobs), path.read_text())
    done = hpcml(outside, project, "submit", "--nodes", "4", "--wait", "kmeans.py", *KMEANS, timeout=240)
    assert done.returncode == 0, done.stderr + done.stdout
    run = directory_of(done).name
    facts = json.loads(hpcml(outside, project, "status", run, "--json").stdout)
    assert (facts["run"], facts["exit_status"], len(facts["nodes"])) == (run, 0, 4)
    assert run in hpcml(outside, project, "ls").stdout
    fetched = hpcml(outside, project, "fetch", run, "results")
    assert fetched.returncode == 0, fetched.stderr
    assert outside.logins("login") + outside.logins("login2") == logins + 1
    here, there = outside.home / project.parent.name / "kmeans" / "results", directory_of(done) / "out"
    names = {str(path.relative_to(there)) for path in there.rglob("*") if path.is_file()}
    assert {"result.json", "centres.csv", "kmeans.png"} < names
    report = {"report.html", "report.json"}
    assert {str(path.relative_to(here)) for path in here.rglob("*") if path.is_file()} == names | report
    assert all((here / name).read_bytes() == (there.parent / name).read_bytes() for name in report)
    assert all((here / name).read_bytes() == (there / name).read_bytes() for name in names)

    mine = json.loads((here / "result.json").read_text())
    assert mine["inertia"] == pytest.approx(kmeans_here.metrics["inertia"], rel=1e-6)


@pytest.mark.parametrize("status", [3, 255, 0])
def test_the_script_s_status_comes_home(outside: Outside, project: Path, status: int) -> None:
    write(outside, project / "ends.py", f"import sys; sys.exit({status})\n")
    assert hpcml(outside, project, "submit", "--nodes", "1", "--wait", "ends.py").returncode == status


def test_hostile_names_and_words_arrive_unchanged(outside: Outside, project: Path) -> None:
    folder = project / "$(touch pwned) `id`; it's \\"
    outside.laptop("mkdir", "-p", str(folder))
    write(
        outside,
        folder / "-my 'script' $HOME.py",
        "import json, sys, helper\nprint(json.dumps(sys.argv[1:]))\nprint(helper.x)\n",
    )
    write(outside, folder / "helper.py", "x = 'helped'\n")
    done = hpcml(outside, folder, "submit", "--name", "hostile", "--wait", "--", "-my 'script' $HOME.py", *HOSTILE)
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert (tuple(json.loads(first)), second) == (HOSTILE, "helped")
    assert not list(outside.lab.home("alice").glob("**/pwned"))


def test_logs_follow_and_ctrl_c_leaves_nothing_behind(outside: Outside, project: Path) -> None:
    write(outside, project / "says.py", "import time, hpcml\nprint('first', flush=True)\n"
          "while not hpcml.run.should_stop(): time.sleep(0.1)\nprint('last', flush=True)\n")  # fmt: skip
    done = hpcml(outside, project, "submit", "--nodes", "1", "--detach", "--json", "says.py")
    run = json.loads(done.stdout)["run"]
    directory = Path(json.loads(done.stdout)["directory"])
    outside.cluster.wait_event(directory, "driver-started", 60)
    follower = start(outside, project, "logs", "-f", run)
    assert follower.stdout is not None
    assert follower.stdout.readline() == "first\n"
    os.killpg(follower.pid, signal.SIGINT)
    follower.communicate(timeout=180)
    assert follower.returncode == 130
    until(lambda: not serving(outside), 20, lambda: str(serving(outside)))
    assert json.loads(hpcml(outside, project, "status", run, "--json").stdout)["state"] == "RUNNING"
    follower = start(outside, project, "logs", "-f", run)
    assert hpcml(outside, project, "cancel", run).returncode == 0
    out, err = follower.communicate(timeout=180)
    own = [
        line for line in out.splitlines() if not line.startswith("slurmstepd")
    ]  # Slurm may say that it was cancelled
    assert (follower.returncode, own) == (0, ["first", "last"]), err


def test_ctrl_c_detaches_a_submission_that_waits(outside: Outside, project: Path) -> None:
    write(outside, project / "waits.py", "import time, hpcml\nprint('runs', flush=True)\n"
          "while not hpcml.run.should_stop(): time.sleep(0.1)\n")  # fmt: skip
    process = start(outside, project, "submit", "--nodes", "1", "--wait", "waits.py")
    assert process.stdout is not None
    assert process.stdout.readline() == "runs\n"
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=180)
    assert process.returncode == 130
    assert "Detached; the run goes on." in err
    assert "From here: hpcml --host lab logs -f waits-" in err
    assert json.loads(hpcml(outside, project, "status", "waits", "--json").stdout)["state"] == "RUNNING"
    assert hpcml(outside, project, "cancel", "waits").returncode == 0


def test_the_staging_folder_is_alice_s_alone(outside: Outside, project: Path) -> None:
    """Looked at by mallory while the files are there: Slurm's answer is held back meanwhile."""
    write(outside, project / "secret.py", "print('a secret of alice')\n")
    state = outside.lab.state()
    controller = state.daemons["slurmctld"].pid
    incoming = outside.lab.home("alice") / ".hpcml/incoming"
    os.kill(controller, signal.SIGSTOP)
    try:
        process = start(outside, project, "submit", "--nodes", "1", "--detach", "secret.py")
        until(lambda: bool(staged(outside)) and (incoming / staged(outside)[0] / "secret.py").exists(), 30)
        folder = incoming / staged(outside)[0]
        assert outside.on("login", "cat", str(folder / "secret.py")).stdout == "print('a secret of alice')\n"
        for words in (["ls", str(incoming)], ["ls", str(folder)], ["cat", str(folder / "secret.py")]):
            assert outside.on("login", *words, user="mallory").returncode != 0, words
        assert [oct(path.stat().st_mode & 0o777) for path in (incoming, folder)] == ["0o700", "0o700"]
        seen = outside.on("login", "ps", "-eo", "args", user="mallory").stdout
        assert "--serve-laptop" in seen
        assert "secret.py" not in "\n".join(line for line in seen.splitlines() if "serve-laptop" in line)
    finally:
        os.kill(controller, signal.SIGCONT)
    _, err = process.communicate(timeout=180)
    assert process.returncode == 0, err


def test_a_link_that_breaks_while_slurm_is_asked(outside: Outside, project: Path) -> None:
    """The laptop is told which run it may be; it was submitted once, and is found when the link is back."""
    write(outside, project / "once.py", "print('once')\n")
    before = {path.name for path in (outside.lab.home("alice") / ".hpcml/runs").glob("once-*")}
    controller = outside.lab.state().daemons["slurmctld"].pid
    os.kill(controller, signal.SIGSTOP)
    try:
        process = start(outside, project, "submit", "--name", "once", "--nodes", "1", "--detach", "once.py")
        until(lambda: any("sbatch" in line for _, line in outside.lab.processes("alice")), 30)
        outside.close_connection()
        _, err = process.communicate(timeout=180)
    finally:
        os.kill(controller, signal.SIGCONT)
    assert process.returncode == errors.ANSWER_LOST, err
    run = err.split(" status ")[1].strip().rstrip(".")
    until(lambda: not serving(outside), 60)
    facts = json.loads(hpcml(outside, project, "status", run, "--json").stdout)
    assert facts["job"]
    assert {path.name for path in (outside.lab.home("alice") / ".hpcml/runs").glob("once-*")} - before == {run}


def test_a_link_that_breaks_within_the_files(outside: Outside, project: Path) -> None:
    """The login node's hpcml is stopped while it receives, so that the link is cut for sure before the end."""
    folder = project / "large"
    outside.laptop("mkdir", "-p", str(folder))
    write(outside, folder / "large.py", "print('no')\n")
    outside.laptop(
        "sh",
        "-c",
        f"for n in $(seq 40); do head -c 900000 /dev/urandom > '{str(folder).replace(chr(39), chr(39) + chr(92) + chr(39) * 2)}'/f$n; done",
    )
    process = start(outside, folder, "submit", "--name", "large", "--detach", "large.py")
    until(lambda: bool(serving_pids(outside)), 30)
    pid = serving_pids(outside)[0]
    os.kill(pid, signal.SIGSTOP)
    try:
        outside.kill_sessions("login")
        outside.kill_sessions("login2")
        _, err = process.communicate(timeout=180)
    finally:
        os.kill(pid, signal.SIGCONT)
    assert process.returncode == errors.UNREACHABLE, err
    assert "Nothing was submitted." in err
    until(lambda: not serving(outside) and not staged(outside), 30)
    assert not list((outside.lab.home("alice") / ".hpcml/runs").glob("large-*"))


def serving_pids(outside: Outside) -> list[int]:
    return [
        pid for pid, line in outside.lab.processes("alice") if "--serve-laptop" in line and "python" in line.split()[0]
    ]


def test_a_changed_host_key_and_a_refused_login(outside: Outside, project: Path) -> None:
    outside.forget()
    lab_ssh.certify(outside.lab.places, "alice", seconds=1)
    time.sleep(1.5)
    try:
        refused = hpcml(outside, project, "ls")
    finally:
        lab_ssh.certify(outside.lab.places, "alice")
    assert refused.returncode == errors.NO_ACCESS, refused.stderr
    known = outside.home / ".ssh" / "known_hosts"
    kept = known.read_text()
    other = (lab_ssh.folder(outside.lab.places) / "userca.pub").read_text()
    known.write_text(f"@cert-authority login* {other}")
    try:
        changed = hpcml(outside, project, "ls")
    finally:
        known.write_text(kept)
    assert changed.returncode == errors.NO_ACCESS, changed.stderr
    outside.forget()
    assert hpcml(outside, project, "ls").returncode == 0


def test_a_large_result_comes_whole_and_is_taken_up(outside: Outside, project: Path) -> None:
    write(
        outside,
        project / "makes.py",
        "import os, hpcml\nfor n in range(8):\n    (hpcml.run.out / f'part{n}').write_bytes(os.urandom(25_000_000))\n",
    )
    done = hpcml(outside, project, "submit", "--nodes", "1", "--wait", "makes.py")
    assert done.returncode == 0, done.stderr
    target = outside.home / project.name / "parts"
    shutil.rmtree(target, ignore_errors=True)
    process = start(outside, project, "fetch", "makes", "parts")
    until(lambda: target.is_dir() and len(list(target.glob("part*"))) >= 2, 60)
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=180)
    assert process.returncode == 130, err
    whole = list(target.iterdir())
    assert all(path.name.startswith("part") and path.stat().st_size == 25_000_000 for path in whole)
    facts = json.loads(hpcml(outside, project, "fetch", "makes", "parts", "--json").stdout)
    assert facts["here_already"] >= 2
    source = directory_of(done) / "out"
    assert all((target / path.name).read_bytes() == path.read_bytes() for path in source.iterdir())
    shutil.rmtree(target)


def test_a_login_node_without_hpcml_gets_it_with_wheels(outside: Outside, project: Path) -> None:
    """One file and a folder of wheels, sent from the laptop, run and installed there."""
    home = outside.lab.home("alice")
    index = outside.home / project.name / "index"
    outside.laptop("mkdir", "-p", str(project / "index"))
    (home / "hpcml.pyz").unlink(missing_ok=True)  # homes last
    try:
        done = hpcml(outside, project, "pack")
        assert done.returncode == 0, done.stderr
        assert stat.S_IMODE((home / "hpcml.pyz").stat().st_mode) == 0o700
        said = outside.on("login", "/usr/bin/python3", str(home / "hpcml.pyz"), "--version")
        assert said.stdout == outside.laptop("hpcml", "--version").stdout, said.stderr

        for name, requires in (("jinja2", "markupsafe"), ("markupsafe", "")):
            wheel(index, name, "py3-none-any", requires)
        # The laptop's own Python has no pip.
        words = [
            str(outside.lab.places.venv / "bin/python"),
            "-m",
            "hpcml",
            "--host",
            "lab",
            "wheelhouse",
            "--extra",
            "none",
        ]
        pip = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "index", "PIP_CONFIG_FILE": os.devnull}
        done = outside.lab.exec(words, node=lab_ssh.LAPTOP, cwd=project, env=pip, timeout=240)
        assert done.returncode == 0, done.stderr
        house = home / "wheelhouse"
        assert {stat.S_IMODE(path.stat().st_mode) for path in house.iterdir()} == {0o600}
        *_, venv, install = done.stdout.splitlines()
        typed = f"cd && {venv} && {install}".replace("~/hpcml", "~/sent")
        done = outside.lab.exec(["bash", "-c", typed], timeout=240)
        assert done.returncode == 0, done.stderr + done.stdout
        assert outside.on("login", str(home / "sent/bin/hpcml"), "--version").stdout == said.stdout

        again = outside.lab.exec(words, node=lab_ssh.LAPTOP, cwd=project, env=pip, timeout=240)
        assert again.returncode == errors.USAGE, again.stderr
    finally:
        for path in (home / "sent", home / "wheelhouse", index):
            shutil.rmtree(path, ignore_errors=True)
        (home / "hpcml.pyz").unlink(missing_ok=True)
    assert not list(home.glob(".*.hpcml-part"))


# In the place of python3: it gets its program, what is asked and a part of the file, and the rest when the link is gone.
HELD = """#!/bin/sh
{ dd bs=1 count=20000 status=none; while [ ! -e "$HOME/held/go" ]; do sleep 0.05; done; cat; } | /usr/bin/python3 "$@"
"""


def test_a_delivery_whose_link_breaks_leaves_nothing(outside: Outside, project: Path) -> None:
    """It breaks in the middle of the file."""
    home = outside.lab.home("alice")
    held, settings = home / "held", home / ".bashrc"
    before = settings.read_text()

    def half() -> list[Path]:
        return list(home.glob(".*.hpcml-part"))

    held.mkdir()
    (held / "python3").write_text(HELD)
    (held / "python3").chmod(0o755)
    settings.write_text(f"PATH={held}:$PATH\n{before}")
    try:
        process = start(outside, project, "pack")
        until(lambda: bool(half()) or process.poll() is not None, 30)
        assert half(), process.communicate()
        outside.kill_sessions("login")
        outside.kill_sessions("login2")
        _, err = process.communicate(timeout=180)
        (held / "go").touch()
        assert process.returncode == errors.UNREACHABLE, err
        until(lambda: not half(), 30)
        assert not (home / "hpcml.pyz").exists()
    finally:
        (held / "go").touch()
        settings.write_text(before)
        until(lambda: not half(), 30)
        shutil.rmtree(held)


def test_a_terminal_decides_whether_to_wait(outside: Outside, project: Path) -> None:
    """On a terminal `submit` waits, though the login node's hpcml has none."""
    write(outside, project / "short.py", "print('done here')\n")
    command = 'hpcml --host lab submit --nodes 1 short.py; echo "status $?"'
    done = outside.lab.exec(["script", "-qec", command, "/dev/null"], node=lab_ssh.LAPTOP, cwd=project, timeout=240)
    assert "done here" in done.stdout, done.stdout
    assert "status 0" in done.stdout


def test_the_tunnel_takes_the_same_host(outside: Outside, dashboard: tuple[str, Path]) -> None:
    process = outside.lab.popen(["hpcml", "--host", "lab", "tunnel", "--json", dashboard[0]], node=lab_ssh.LAPTOP)
    assert process.stdout is not None
    try:
        port = json.loads(process.stdout.readline())["port"]
        assert outside.status_of(port) == "200"
    finally:
        os.kill(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=180)
    assert process.returncode == 130, err
