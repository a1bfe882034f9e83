"""What a user can get wrong: one sentence, its place and a next step, a documented status, no traceback, nothing left."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from hpcml import errors
from world import LAB_SITE, World

Prepare = Callable[[World], object]


class Bad(NamedTuple):
    """One wrong thing. ``says`` are texts that the answer must hold: what is wrong, where, and what to do."""

    id: str
    arguments: tuple[str, ...]
    status: int
    says: tuple[str, ...]
    prepare: Prepare | None = None
    env: dict[str, str] = {}
    without: tuple[str, ...] = ()


def _write(name: str, text: str | bytes, mode: int = 0o644) -> Prepare:
    def prepare(world: World) -> None:
        path = world.top / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        path.chmod(mode)

    return prepare


def _bare_python(world: World) -> None:
    env = world.home / "env"
    (env / "lib/python3.12/site-packages").mkdir(parents=True)
    (env / "pyvenv.cfg").write_text("home = /usr/bin\n")
    (world.project / "n.ipynb").write_text('{"cells": []}')
    _write("home/.config/hpcml/config.toml", f'[runtime]\npython = "{env}/bin/python"\n')(world)


def _profile(name: str, text: str) -> Prepare:
    return _write(f"home/.config/hpcml/profiles/{name}.toml", text)


def _submit(*options: str, script: str = "job.py") -> tuple[str, ...]:
    return ("submit", "--site", "slurm", *options, script)


U, C, N, R, S = errors.USAGE, errors.CONFIG, errors.NOT_FOUND, errors.REFUSED, errors.STORAGE
LAB = ("submit", "--site", "lab")
HAS_LAB = {"HPCML_SYSTEM_CONFIG": str(LAB_SITE)}  # a profile of a site's own

LONG = "x" * 300  # no file system has such a name
JUPYTER = ("jupyter", "--site", "local")
CASES = [
    Bad("jupyter-script", (*JUPYTER, "job.py"), U, ("job.py", "hpcml jupyter --help")),
    Bad("jupyter-no-idle", (*JUPYTER, "--idle", "0"), U, ("less than the minimum of 5 s", "--idle off")),
    Bad("jupyter-no-folder", (*JUPYTER, "--notebook-dir", "none"), N, ("does not exist", "--notebook-dir", "mkdir")),
    Bad("jupyter-missing", JUPYTER, R, ("cryptography, jupyterlab", "env/bin/python' -m pip install"), _bare_python),
    Bad("notebook-missing", ("submit", "--site", "local", "n.ipynb"), R, ("lacks the packages", "nbclient"), _bare_python),
    Bad("unknown-command", ("submitt", "job.py"), U, ("no command 'submitt'", "Did you mean hpcml submit?")),
    Bad("another-word", ("kill",), U, ("no command 'kill'", "Did you mean hpcml cancel?")),
    Bad("another-word-for-an-option", ("tail",), U, ("no command 'tail'", "Did you mean hpcml logs -f?")),
    Bad("setting-as-option", _submit("--workers", "4"), U, ("no option '--workers'", "workers.per_node=N")),
    Bad("array", _submit("--array", "4"), U, ("no option '--array'", "hpcml sweep")),
    Bad("rerun-with-an-option-of-the-script", ("rerun", "last", "--k", "7"), U, ("no option '--k'", "hpcml rerun RUN -- ARGS")),
    Bad("sweep-with-an-option-of-the-script", ("sweep", "job.py", "--k", "7,8"), U, ("no option '--k'", "--grid k=VALUE")),
    Bad("option-of-the-script-before-it", ("submit", "--k", "7", "job.py"), U, ("no option '--k'", "after the script")),
    Bad("sweep-rm", ("sweep", "rm", "train"), N, ("Unknown sweep 'train'", "hpcml sweep SCRIPT")),
    Bad("ls-with-a-word", ("ls", "train"), U, ("arguments: train", "hpcml ls --grep train")),
    Bad("script-as-command", ("job.py",), U, ("no command 'job.py'", "Did you mean hpcml submit job.py?")),
    Bad("unknown-option", ("submit", "--frobnicate", "job.py"), U, ("--frobnicate", "hpcml submit --help")),
    Bad("abbreviated-option", ("submit", "--node", "2", "job.py"), U, ("no option '--node'", "Did you mean --nodes?")),
    Bad("misspelled-script", _submit(script="jbo.py"), N, ("no such script", "Did you mean job.py?")),
    Bad("option-without-value", ("submit", "--nodes"), U, ("--nodes", "expected one argument")),
    Bad("no-script", ("submit", "--nodes", "2"), U, ("SCRIPT is missing", "Name a Python file")),
    Bad("folder-as-script", _submit(script="."), N, ("SCRIPT is a folder", "Name a .py file")),
    Bad("pipe-as-script", _submit(script="pipe"), N, ("not a regular file",), lambda w: os.mkfifo(w.project / "pipe")),
    Bad("empty-script", _submit(script="e.py"), U, ("The script is empty", "Save the script first."), _write("project/e.py", "")),
    Bad("binary-script", _submit(script="b.py"), U, ("not text", "zero bytes"), _write("project/b.py", b"x\0\1\2")),
    Bad("program-as-script", _submit(script="b"), U, ("a compiled program",), _write("project/b", b"\x7fELF\0\1\2")),
    Bad("dashes-as-a-value", ("submit", "--sbatch=--", "job.py"), U, ("--sbatch has no value", "hpcml submit --help")),
    Bad("no-module", ("submit", "--site", "slurm", "-m"), U, ("MODULE is missing", "-m package.module")),
    Bad("no-such-module", ("submit", "--site", "slurm", "-m", "nowhere.part"), R, ("no module 'nowhere.part'", "top-level package")),
    Bad("package-without-main", ("submit", "--site", "slurm", "-m", "pack"), R, ("has no __main__",), _write("project/pack/__init__.py", "")),
    Bad("no-such-program", ("submit", "--site", "slurm", "--", "./nope"), N, ("no such program", "nope")),
    Bad("no-program-on-path", ("submit", "--site", "slurm", "--", "no-program"), N, ("(-- no-program)", "--python")),
    Bad("program-not-executable", ("submit", "--site", "slurm", "--", "./b"), U, ("is not executable", "chmod u+x"), _write("project/b", "#!/bin/sh\n")),
    Bad("program-without-interpreter", ("submit", "--site", "slurm", "--", "./b.R", "1"), U, ("no first line", "submit -- Rscript b.R"),
        _write("project/b.R", "x <- 1\n")),
    Bad("launcher-of-ranks", ("submit", "--site", "slurm", "--nodes", "2", "--", "./torchrun", "a.py"), U,
        ("torchrun starts ranks", "the first of 2 nodes", "--nodes 1"), _write("project/torchrun", "#!/bin/sh\n", 0o755)),
    Bad("python-alone", ("submit", "--site", "slurm", "--", "python3", "-u", "-"), U, ("Python needs a script", "python3 SCRIPT")),
    Bad("mpi-script", _submit(script="m.py"), R, ("needs ranks (MPI.COMM_WORLD)", "m.py:2", "submit -- "),
        _write("project/m.py", "from mpi4py import MPI\nprint(MPI.COMM_WORLD.size)\n")),
    Bad("mpi-that-slurm-lacks", _submit("--ranks", "1", "--mpi", "pmix"), R,
        ("--mpi=none, pmi2, not pmix", "srun --mpi=list", "Use --mpi pmi2"),
        _write("bin/srun", "#!/bin/sh\nprintf 'MPI plugin types are...\\n\\tnone\\n\\tpmi2\\n'\n", 0o755)),
    Bad("options-after-the-script", (*_submit(), "--nodes", "2"), U, ("--nodes comes after job.py", "write before job.py: --nodes 2")),
    Bad("help-of-no-page", ("help", "sweps"), U, ("Did you mean hpcml help sweeps?", "hpcml help topics")),
    Bad("top-interval", ("top", "--interval", "0.1s"), U, ("(--interval)",)),
    Bad("shell-script", _submit(script="b"), U, ("a script for bash, not Python",), _write("project/b", "#!/bin/bash\necho\n")),
    Bad("syntax-error", _submit(script="b.py"), R, ("does not compile", "b.py:2", "  | f(1\n  |  ^"), _write("project/b.py", "\nf(1\n")),
    Bad("script-name-with-newline", _submit(script="a\nb.py"), U, ("line break", "Rename"), _write("project/a\nb.py", "1")),
    Bad("time", _submit("--time", "UNLIMITED"), U, ("--time",)),
    Bad("no-nodes", _submit("--nodes=0"), U, ("--nodes",)),
    Bad("nodes-in-words", _submit("--nodes=two"), U, ("--nodes",)),
    Bad("memory", _submit("--memory-per-node=lots"), U, ("--memory-per-node",)),
    Bad("too-many-nodes", (*LAB, "--partition", "debug", "--nodes", "4", "job.py"), R,
        ("'debug' allows at most 2 nodes, but the run requests 4", "profile lab", "Try --partition boost"), env=HAS_LAB),
    Bad("too-little-for-each-worker", (*LAB, "--memory-per-node", "3000M", "--set", "workers.per_node=64", "job.py"), R,
        ("64 workers share 3000 MiB of a node's memory: each has 47 MiB", "more than 80 MiB to start", "workers.per_node", "--memory-per-node"), env=HAS_LAB),
    Bad("fits-nowhere", (*LAB, "--nodes", "99", "job.py"), R, ("No partition fits the request", "'debug' allows at most 2", "Request fewer"), env=HAS_LAB),
    Bad("no-account", ("submit", "--site", "leonardo", "job.py"), U, ("needs an account", "--account", "hpcml.toml")),
    Bad("gpus-on-local", ("submit", "--site", "local", "--nodes", "2", "--gpus-per-node", "1", "job.py"), R, ("GPU runs use one node",)),
    Bad("image-missing", _submit("--image", "x.sif"), N, ("x.sif",)),
    Bad("image-is-none", _submit("--image", "job.py"), errors.IMAGE, ("not an image", "job.py")),
    Bad("unknown-site", ("submit", "--site", "leonrado", "job.py"), C, ("Unknown site 'leonrado'", "Did you mean leonardo?")),
    Bad("unknown-site-in-environment", ("submit", "job.py"), C, ("Unknown site 'zzz'", "HPCML_SITE", "Known sites"), None,
        {"HPCML_SITE": "zzz"}),
    Bad("bad-name", _submit("--name", "a/b"), U, ("'a/b' is not a valid name", "--name", "letters, digits")),
    Bad("empty-name", _submit("--name", ""), U, ("--name is empty", "Remove the option")),
    Bad("wait-and-detach", _submit("--wait", "--detach"), U, ("--wait and --detach cannot be combined", "Use only one")),
    Bad("script-named-like-an-example", ("submit", "kmaens.py"), errors.NOT_FOUND, ("hpcml new kmeans",)),
    Bad("check-on-local", ("submit", "--site", "local", "--check", "job.py"), U, ("no Slurm", "Remove --check")),
    Bad("set-unknown-key", _submit("--set", "workers.thread=2"), C,
        ("Unknown key 'thread'", "--set: workers.thread", "Did you mean threads?")),
    Bad("set-without-value", _submit("--set", "workers.threads"), C, ("not KEY=VALUE", "--set workers.threads=8")),
    Bad("set-wrong-type", _submit("--set", "workers.threads=many"), C, ("'many' must be a whole number", "--set: workers")),
    Bad("set-bad-choice", _submit("--set", "workers.on_loss=fial"), C, ("'fial' is not allowed", "Did you mean fail?")),
    Bad("env-unknown-key", _submit(), C, ("Unknown key 'thread'", "HPCML_WORKERS__THREAD"), None, {"HPCML_WORKERS__THREAD": "2"}),
    Bad("project-unknown-key", _submit(), C, ("Unknown key 'partitoin'", "hpcml.toml", "Did you mean partition?"),
        _write("project/hpcml.toml", '[defaults]\npartitoin = "x"\n')),
    Bad("project-invalid-toml", _submit(), C, ("not valid TOML", "line 2", "hpcml.toml"), _write("project/hpcml.toml", "[defaults]\nnodes = = 2\n")),
    Bad("project-not-utf8", _submit(), C, ("not valid TOML", "hpcml.toml"), _write("project/hpcml.toml", b"a = '\xff'\n")),
    Bad("project-unknown-site-table", _submit(), C, ("Unknown site 'leonard'", "Did you mean leonardo?"),
        _write("project/hpcml.toml", "[site.leonard]\nextends = 'x'\n")),
    Bad("profile-unknown-key", ("submit", "--site", "mine", "job.py"), C, ("Unknown key 'colour'", "mine.toml", "Valid keys"),
        _profile("mine", "colour = 'red'\n")),
    Bad("profile-extends-nothing", ("submit", "--site", "one", "job.py"), C, ("Unknown site 'slrum'", "one.toml", "Did you mean slurm"),
        _profile("one", "extends = 'slrum'\n")),
    Bad("runs-not-absolute", _submit("--set", "paths.runs=here"), S, ("not an absolute path", "paths.runs: here")),
    Bad("runs-needs-a-variable", _submit("--set", "paths.runs=$WORK/runs"), S, ("WORK is not set", "paths.runs: $WORK/runs")),
    Bad("runs-where-nobody-may-write", _submit("--set", "paths.runs=/proc/x"), S, ("/proc/x", "Choose another runs folder")),
    Bad("home-unset", _submit(), S, ("HOME is not set", "paths.runs"), None, {}, ("HOME",)),
    Bad("sweep-of-ranks", ("sweep", "--ranks", "2", "--at-once", "2", "s.py", "--grid", "k=1,2"), U,
        ("no option '--ranks'", "Submit each sweep point as a separate run")),
    Bad("no-runs", ("status",), N, ("There are no runs", "hpcml submit SCRIPT")),
    Bad("unknown-role", ("logs", "last", "wroker"), U, ("no log 'wroker'", "Did you mean worker?")),
    Bad("ls-bad-number", ("ls", "--last", "many"), U, ("'many' is not a whole number", "--last")),
    Bad("site-nothing", ("site",), U, ("One of these words is missing: ls, show", "hpcml site --help")),
    Bad("site-unknown-verb", ("site", "list"), U, ("'list' is not one of: ls, show, diff, init", "Did you mean hpcml site ls?")),
    Bad("site-init-no-name", ("site", "init"), U, ("site init needs one name", "Write hpcml site init mycluster.")),
    Bad("near-a-command", ("sweeps",), U, ("no command 'sweeps'", "Did you mean hpcml sweep?")),
    Bad("site-init-odd-name", ("site", "init", "../x"), U, ("'../x' is not a valid profile name", "mycluster")),
    Bad("site-init-nothing-there", ("site", "init", "mine", "--refresh"), C, ("no profile to refresh", "hpcml site init mine")),
    Bad("long-folder", (*JUPYTER, "--notebook-dir", LONG, "--dry-run"), S, ("File name too long", LONG[:50])),
    Bad("long-module", ("submit", "--site", "slurm", "-m", f"{LONG}.y"), S, (LONG[:50],)),
    Bad("long-script-of-python", ("submit", "--site", "slurm", "--", "python3", f"{LONG}.py"), S, (LONG[:50],)),
    Bad("ring-of-links", _submit(script="ring"), S, ("ring",), lambda w: (w.project / "ring").symlink_to("ring")),
    Bad("ring-of-links-as-folder", _submit(script="ring/a.py"), S, ("ring",), lambda w: (w.project / "ring").symlink_to("ring")),
    Bad("many-digits", _submit("--ranks", "9" * 5000), U, ("--ranks",)),
    Bad("many-digits-after-zeros", _submit("--ranks", "00001" + "9" * 5000), U, ("--ranks",)),
    Bad("endless-variables", _submit("--env-file", "/dev/zero"), N, ("too large", "/dev/zero")),
    Bad("pack-as-folder", ("pack", "-o", ".", "--force"), S, ("hpcml pack",)),
    Bad("site-init-no-slurm", ("site", "init", "mine"), errors.UNREACHABLE, ("could not be started: sinfo", "Slurm module")),
]  # fmt: skip


AS_JSON_TOO = [bad for bad in CASES if bad.arguments[0] in ("submit", "status", "cancel", "ls", "site")][::6]


def check_words(done_out: str, done_err: str, status: int, says: tuple[str, ...]) -> None:
    assert status in errors.MEANING
    assert "Traceback" not in done_out + done_err
    lines = [line for line in done_err.splitlines() if not line.startswith(("hpcml: note: ", "  asks for "))]
    assert lines[0].startswith("hpcml: ")
    assert re.search(r"\(.+\)\.$", lines[0]), f"no place: {lines[0]}"
    assert len(lines) > 1, f"no next step: {lines[0]}"
    for text in says:
        assert text in done_err, done_err


@pytest.mark.parametrize("bad", CASES, ids=[bad.id for bad in CASES])
def test_a_mistake_is_told_in_words(world: World, bad: Bad) -> None:
    if bad.prepare:
        bad.prepare(world)
    done = world.run(*bad.arguments, env=bad.env, without=bad.without)
    assert done.returncode == bad.status, done.stderr
    check_words(done.stdout, done.stderr, bad.status, bad.says)
    assert done.stdout == ""
    assert world.left() == [], "nothing is left in the runs folder"
    assert world.calls("sbatch") == [], "nothing was sent"
    if bad in AS_JSON_TOO:
        done = world.run(bad.arguments[0], "--json", *bad.arguments[1:], env=bad.env, without=bad.without)
        assert done.returncode == bad.status, done.stderr
        facts = json.loads(done.stdout)
        assert facts["exit_status"] == bad.status
        assert facts["error"]
        assert facts["hint"], "a next step"


def test_the_folder_is_gone(world: World, tmp_path: Path) -> None:
    place = tmp_path / "gone"
    place.mkdir()
    done = world.run("submit", "job.py", cwd=place, before=place.rmdir)
    assert done.returncode == errors.NOT_FOUND
    check_words(done.stdout, done.stderr, done.returncode, ("The current folder no longer exists", "cwd", "cd ~"))


@pytest.mark.parametrize("closed", [(1,), (0, 1, 2)])
def test_closed_standard_streams_are_nowhere(world: World, closed: tuple[int, ...]) -> None:
    """The next file that is opened must not get the number of one, or what is printed would go into it."""

    def close() -> None:
        for number in closed:
            os.close(number)

    done = world.run("submit", "--site", "slurm", "--detach", "job.py", before=close)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    (run,) = world.left()
    for path in (path for path in (world.runs / run).rglob("*") if path.is_file() and path.suffix in (".json", ".sh")):
        assert b"Submitted" not in path.read_bytes(), path
    assert world.run("ls", before=close).returncode == 0


@pytest.mark.parametrize(
    "words", [("ls", "--json"), ("submit", "--help-all"), ("--help",), ("status", "--json", "none")]
)
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_full_output_is_told(world: World, words: tuple[str, ...], unbuffered: str) -> None:
    def fill() -> None:
        os.dup2(os.open("/dev/full", os.O_WRONLY), 1)

    done = world.run(*words, env={"PYTHONUNBUFFERED": unbuffered}, before=fill)
    assert done.returncode == errors.STORAGE, done.stderr
    lines = done.stderr.splitlines()
    assert len(lines) == 2
    assert ("(output)" in lines[0]) == ("none" not in words)


@pytest.mark.parametrize("gone", [False, True])
def test_an_error_that_no_stream_takes_has_a_documented_status(world: World, *, gone: bool) -> None:
    """Of a reader that has gone, and of a full disk; Python itself would exit with 120."""

    def replace() -> None:
        reader, pipe = os.pipe()
        os.close(reader)
        os.dup2(pipe if gone else os.open("/dev/full", os.O_WRONLY), 2)

    done = world.run("status", "none", "--json", before=replace)
    assert done.returncode == (141 if gone else errors.STORAGE)
    assert json.loads(done.stdout)["exit_status"] == errors.NOT_FOUND
