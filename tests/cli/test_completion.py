"""Completion by TAB: what the shells make of it on a terminal, and what each word may become."""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from hpcml.cli import commands
from world import World

_SETSID = shutil.which("setsid") or "/usr/bin/setsid"  # makes the terminal the shell's own
PATIENCE = 240.0  # seconds for a shell to answer
# What is typed (⇥ is TAB), and the words that the command then has.
TYPED = (
    ("stat⇥", ["status"]),
    ("submit --site leon⇥", ["submit", "--site", "leonardo"]),
    ("submit --site=leon⇥ jo⇥", ["submit", "--site=leonardo", "job.py"]),
    ("submit --site leonardo -p boost⇥", ["submit", "--site", "leonardo", "-p", "boost_usr_prod"]),
    ("submit --set code.snap⇥fol⇥ job.py", ["submit", "--set", "code.snapshot=folder", "job.py"]),
    ("submit --set=code.snapshot=fol⇥", ["submit", "--set=code.snapshot=folder"]),
    ("submit --profile dask,mem⇥", ["submit", "--profile", "dask,memray"]),
    ("submit --image=ima⇥", ["submit", "--image=image.sif"]),
    ("submit --after tra⇥", ["submit", "--after", "train"]),
    ("submit --after train:f⇥", ["submit", "--after", "train:fail"]),
    ("image bu⇥ rapids-cu13⇥", ["image", "build", "rapids-cu13"]),
    ("fetch train da⇥", ["fetch", "train", "data"]),
    ("tunnel train --service bo⇥", ["tunnel", "train", "--service", "board"]),
    ("submit job.py --site leon⇥", ["submit", "job.py", "--site", "leon"]),  # the script's own
)  # fmt: skip
FUNCTION = {  # in the place of the command: it shows the words that it got
    "bash": 'hpcml() { [ "$1" = --complete ] && { command hpcml "$@"; return; }; printf "<%s>" "$@"; echo "#"; }',
    "fish": 'function hpcml; printf "<%s>" $argv; echo "#"; end',
}
FUNCTION["zsh"] = FUNCTION["bash"]
BEGIN = {
    "bash": ("bash", "--noprofile", "--norc", "-i"),
    "zsh": ("zsh", "-f", "-i"),
    "fish": ("fish", "--no-config", "-i"),
}


def typed_into(shell: list[str], text: str, environment: dict[str, str], folder: Path) -> str:
    """Return what a shell on a terminal prints when a person types."""
    own, its = pty.openpty()
    process = subprocess.Popen(
        [_SETSID, "--ctty", *shell], stdin=its, stdout=its, stderr=its, cwd=folder, env=environment
    )
    os.close(its)
    shown, rest, end = b"", text.encode(), time.monotonic() + PATIENCE
    try:
        while time.monotonic() < end:
            ready, can, _ = select.select([own], [own] if rest else [], [], 1)
            if can:  # in pieces, as a terminal takes no long lines at once
                rest = rest[os.write(own, rest[:64]) :]
            if ready:
                try:
                    piece = os.read(own, 65536)
                except OSError:  # the shell has ended
                    break
                shown += piece
        else:
            pytest.fail(f"{shell[0]} did not end: {shown[-2000:]!r}")
    finally:
        process.kill()
        process.wait()
        os.close(own)
    return shown.decode(errors="replace")


@pytest.mark.parametrize("shell", BEGIN)
def test_on_a_terminal(world: World, shell: str) -> None:
    found = shutil.which(shell)
    if found is None:
        pytest.skip(f"{shell} is not installed here (apt-get install {shell})")
    (world.project / "image.sif").touch()
    (world.project / "data").mkdir()
    assert (
        world.run(
            "submit", "--detach", "--site", "slurm", "--name", "train", "--service", "board=6006", "job.py"
        ).returncode
        == 0
    )
    lines = world.project / "lines"
    lines.write_text(world.run("completion", shell).stdout)
    path = f"{world.command.parent}:{os.environ['PATH']}"
    environment = world.environment | {"PATH": path, "TERM": "dumb", "HPCML_SITE": "slurm"}
    begin = ["autoload -U compinit && compinit -D -u", "unsetopt prompt_cr prompt_sp"] if shell == "zsh" else []
    typed = "".join(f" hpcml {words.replace('⇥', chr(9))}\r" for words, _ in TYPED)
    text = "\r".join([*begin, FUNCTION[shell], ". ./lines", ""]) + typed + "exit\r"
    shown = typed_into([found, *BEGIN[shell][1:]], text, environment, world.project)
    got = [re.findall(r"<(.*?)/?>", line) for line in re.findall(r"^\W*?((?:<[^<>\n]*>)+)#", shown, re.MULTILINE)]
    assert got == [words for _, words in TYPED], shown


# -- what each word may become -----------------------------------------------------------------------------------------


def words_of(world: World, *typed: str, **variables: str) -> list[str]:
    done = world.run("--complete", *typed, env=variables)
    assert (done.returncode, done.stderr) == (0, "")
    return [line.split("\t")[0] for line in done.stdout.splitlines()]


def test_commands_and_options(world: World) -> None:
    assert words_of(world, "") == [*commands.COMMANDS, "help"]
    assert words_of(world, "help", "stat") == words_of(world, "stat") == ["status"]
    assert "--fakeroot" in words_of(world, "image", "build", "--")
    assert "--fakeroot" not in words_of(world, "image", "ls", "--")
    assert words_of(world, "--host", "leo") == ["leonardo"]
    assert words_of(world, "submit", "--dry-run=") == ["--dry-run=script", "--dry-run=summary"]


def test_runs(world: World) -> None:
    for name in ("train", "train", "other"):
        done = world.run("submit", "--detach", "--site", "slurm", "--name", name, "job.py")
        assert done.returncode == 0
    site = {"HPCML_SITE": "slurm"}
    assert words_of(world, "status", "", **site) == ["last", "other", "train"]
    ids = words_of(world, "logs", "train-", **site)
    assert sorted(ids) == [name for name in world.left() if name.startswith("train-")]
    assert words_of(world, "status", "", HPCML_HOST="far") == []  # they are there, and nobody is asked at a TAB
    assert words_of(world, "--host", "slurm", "status", "") == words_of(world, "--host", "far", "status", "") == []
    assert words_of(world, "ls", "--set", "paths.runs=/nowhere", "--name", "", **site) == []


def test_the_services_of_a_run(world: World) -> None:
    site = {"HPCML_SITE": "slurm"}
    assert words_of(world, "tunnel", "--service", "", **site) == ["dashboard", "jupyter"]
    world.submit("--name", "first", "--service", "board=6006")
    directory = world.submit("--name", "ranked", "--ranks", "1")
    services = directory / "attempts/0/services"
    services.mkdir(parents=True)
    for name in ("late", "7107@n2"):
        (services / f"{name}.json").write_text('{"node": "n1"}')
    assert words_of(world, "tunnel", "--service=", **site) == ["--service=late"]
    assert words_of(world, "tunnel", "first", "--service", "", **site) == ["dashboard", "jupyter", "board"]
    assert words_of(world, "--host", "far", "tunnel", "--service", "b", **site) == []


def test_what_is_wrong_is_silent_and_what_a_shell_would_read_is_left_out(world: World) -> None:
    folder = world.home / ".config/hpcml"
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text('[site.slurm.partitions."$(touch here)"]\n[site.slurm.partitions.fine]\n')
    assert words_of(world, "submit", "--site", "slurm", "-p", "") == ["fine"]
    (folder / "config.toml").write_text("this is not TOML")
    assert words_of(world, "status", "") == []


def test_a_project_s_file_drives_no_terminal(world: World) -> None:
    """It may have come with somebody else's code, and a shell shows what it says of a word."""
    text = r"calm \u001b]0;owned\u0007 \u009b31m \u202e"
    (world.project / "hpcml.toml").write_text(f'[qos.calm]\ndescription = "{text}"\n')
    done = world.run("--complete", "submit", "--qos", "")
    word, _, description = done.stdout.rstrip("\n").partition("\t")
    assert (word, description[:4]) == ("calm", "calm")
    assert description.isprintable(), ascii(description)
