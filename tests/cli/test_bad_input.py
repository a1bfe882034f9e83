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


def _write(name: str, text: str | bytes) -> Prepare:
    def prepare(world: World) -> None:
        path = world.top / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())

    return prepare


def _executable(name: str, text: str) -> Prepare:
    def prepare(world: World) -> None:
        _write(name, text)(world)
        (world.top / name).chmod(0o755)

    return prepare


def _bare_python(world: World) -> None:
    env = world.home / "env"
    (env / "lib/python3.12/site-packages").mkdir(parents=True)
    (env / "pyvenv.cfg").write_text("home = /usr/bin\n")
    (world.project / "n.ipynb").write_text('{"cells": []}')
    _write("home/.config/hpcml/config.toml", f'[runtime]\npython = "{env}/bin/python"\n')(world)


def _toml(text: str) -> Prepare:
    return _write("project/hpcml.toml", text)


def _profiles(**texts: str) -> Prepare:
    def prepare(world: World) -> None:
        for name, text in texts.items():
            _write(f"home/.config/hpcml/profiles/{name}.toml", text)(world)

    return prepare


def _submit(*options: str, script: str = "job.py") -> tuple[str, ...]:
    return ("submit", "--site", "slurm", *options, script)


U, C, N, R, S = errors.USAGE, errors.CONFIG, errors.NOT_FOUND, errors.REFUSED, errors.STORAGE
LAB = ("submit", "--site", "lab")
HAS_LAB = {"HPCML_SYSTEM_CONFIG": str(LAB_SITE)}  # a profile of a site's own
BAD_TIMES = ("abc", "0", "-5", "UNLIMITED", " ", "9" * 30)  # tests/unit/test_units.py has all
BAD_NUMBERS = ("0", "-1", "two", "1.5", "1e3", "٣", "9" * 20, "+2", "0x4", "1-4")

JUPYTER = ("jupyter", "--site", "local")
CASES = [
    Bad("jupyter-script", (*JUPYTER, "job.py"), U, ("job.py", "hpcml jupyter --help")),
    Bad("jupyter-idle", (*JUPYTER, "--idle", "soon"), U, ("'soon'", "--idle", "--idle off")),
    Bad("jupyter-no-idle", (*JUPYTER, "--idle", "0"), U, ("less than the minimum of 5 s", "--idle off")),
    Bad("jupyter-no-folder", (*JUPYTER, "--notebook-dir", "none"), N, ("does not exist", "--notebook-dir", "mkdir")),
    Bad("jupyter-file", (*JUPYTER, "--notebook-dir", "job.py"), N, ("is not a folder", "--notebook-dir")),
    Bad("jupyter-missing", JUPYTER, R, ("lacks the package jupyterlab", "env/bin/python -m pip install"), _bare_python),
    Bad("notebook-missing", ("submit", "--site", "local", "n.ipynb"), R, ("lacks the package nbclient",), _bare_python),
    Bad("jupyter-modes", (*JUPYTER, "--wait", "--detach"), U, ("--wait and --detach cannot be combined",)),
    Bad("jupyter-nodes", ("jupyter", "--site", "slurm", "--nodes", "0"), U, ("--nodes",)),
    *(Bad(f"doctor-nodes-{text}", ("doctor", "--site", "local", "--node", f"--nodes={text}"), U, ("--nodes",)) for text in BAD_NUMBERS[:3]),
    Bad("unknown-command", ("submitt", "job.py"), U, ("no command 'submitt'", "Did you mean hpcml submit?")),
    *(Bad(f"word-{word}", (word,), U, (f"no command '{word}'", f"Did you mean hpcml {meant}")) for word, meant in
      (("stop", "cancel?"), ("kill", "cancel?"), ("delete", "rm?"), ("clean", "rm --failed"), ("list", "ls?"), ("ps", "ls?"), ("queue", "ls?"),
       ("tail", "logs -f?"), ("dashboard", "tunnel?"))),
    *(Bad(f"option{option}", _submit(option, "4"), U, (f"no option '{option}'", says)) for option, says in
      (("--workers", "workers.per_node=N"), ("--workers-per-node", "workers.per_node=N"), ("--modules", "runtime.modules"),
       ("--array", "hpcml sweep"))),
    Bad("rerun-with-an-option-of-the-script", ("rerun", "last", "--k", "7"), U, ("no option '--k'", "hpcml rerun RUN -- --k")),
    Bad("script-as-command", ("job.py",), U, ("no command 'job.py'", "Did you mean hpcml submit job.py?")),
    Bad("unknown-top-option", ("--verbose",), U, ("no option '--verbose'", "hpcml --help")),
    Bad("unknown-option", ("submit", "--frobnicate", "job.py"), U, ("--frobnicate", "hpcml submit --help")),
    Bad("abbreviated-option", ("submit", "--node", "2", "job.py"), U, ("no option '--node'", "Did you mean --nodes?")),
    Bad("sbatch-option-of-hpcml", _submit("--sbatch=--output=x"), U, ("hpcml sets --output itself and does not pass your value to sbatch", "hpcml logs")),
    Bad("memory-by-cpu", ("submit", "--mem-per-cpu=1G", "job.py"), U, ("--memory-per-node", 'slurm.remove=["--mem"]')),
    Bad("sbatch-option-unknown-here", ("submit", "--ntasks=4", "job.py"), U, ("no option '--ntasks'", "--nodes")),
    Bad("misspelled-script", _submit(script="jbo.py"), N, ("no such script", "Did you mean job.py?")),
    Bad("option-without-value", ("submit", "--nodes"), U, ("--nodes", "expected one argument")),
    Bad("no-script", ("submit", "--nodes", "2"), U, ("SCRIPT is missing", "Name a Python file")),
    Bad("nothing-behind-dashes", ("submit", "--"), U, ("SCRIPT is missing",)),
    Bad("missing-script", _submit(script="nope.py"), N, ("no such script", "nope.py", "before SCRIPT")),
    Bad("script-below-a-file", _submit(script="job.py/x.py"), N, ("no such script", "job.py/x.py")),
    Bad("folder-as-script", _submit(script="."), N, ("SCRIPT is a folder", "Name a .py file")),
    Bad("device-as-script", _submit(script="/dev/null"), N, ("not a regular file", "/dev/null")),
    Bad("pipe-as-script", _submit(script="pipe"), N, ("not a regular file",), lambda w: os.mkfifo(w.project / "pipe")),
    Bad("empty-script", _submit(script="e.py"), U, ("The script is empty", "Save the script first."), _write("project/e.py", "")),
    Bad("binary-script", _submit(script="b.py"), U, ("not text", "zero bytes"), _write("project/b.py", b"x\0\1\2")),
    Bad("program-as-script", _submit(script="b"), U, ("a compiled program",), _write("project/b", b"\x7fELF\0\1\2")),
    Bad("dashes-as-a-value", ("submit", "--sbatch=--", "job.py"), U, ("--sbatch has no value", "hpcml submit --help")),
    Bad("dashes-as-a-short-value", ("submit", "-J--", "job.py"), U, ("--name has no value",)),
    Bad("no-module", ("submit", "--site", "slurm", "-m"), U, ("MODULE is missing", "-m package.module")),
    Bad("no-such-module", ("submit", "--site", "slurm", "-m", "nowhere.part"), R, ("no module 'nowhere.part'", "top-level package")),
    Bad("module-by-file", ("submit", "--site", "slurm", "-m", "./x/y"), U, ("not a module name",)),
    Bad("package-without-main", ("submit", "--site", "slurm", "-m", "pack"), R, ("has no __main__",), _write("project/pack/__init__.py", "")),
    Bad("no-such-program", ("submit", "--site", "slurm", "--", "./nope"), N, ("no such program", "nope")),
    Bad("program-not-on-path", ("submit", "--site", "slurm", "--", "nope"), N, ("no program 'nope' on PATH", "./program")),
    Bad("program-not-executable", ("submit", "--site", "slurm", "--", "./b"), U, ("is not executable", "chmod u+x"), _write("project/b", "#!/bin/sh\n")),
    Bad("program-without-interpreter", ("submit", "--site", "slurm", "--", "./b.R", "1"), U, ("no first line", "submit -- Rscript b.R"),
        _write("project/b.R", "x <- 1\n")),
    Bad("launcher-of-ranks", ("submit", "--site", "slurm", "--nodes", "2", "--", "./torchrun", "a.py"), U,
        ("torchrun starts ranks", "the first of 2 nodes", "--nodes 1"), _executable("project/torchrun", "#!/bin/sh\n")),
    Bad("python-alone", ("submit", "--site", "slurm", "--", "python3", "-u", "-"), U, ("Python needs a script", "python3 SCRIPT")),
    Bad("mpi-script", _submit(script="m.py"), R, ("needs ranks (MPI.COMM_WORLD)", "m.py:2", "submit -- "),
        _write("project/m.py", "from mpi4py import MPI\nprint(MPI.COMM_WORLD.size)\n")),
    Bad("mpi-that-slurm-lacks", _submit("--ranks", "1", "--mpi", "pmix"), R,
        ("srun has no --mpi=pmix here, only: none, pmi2", "srun --mpi=list", "Use --mpi pmi2"),
        _executable("bin/srun", "#!/bin/sh\nprintf 'MPI plugin types are...\\n\\tnone\\n\\tpmi2\\n'\n")),
    Bad("options-after-the-script", (*_submit(), "--nodes", "2"), U, ("--nodes comes after job.py", "job.py -- --nodes 2")),
    Bad("options-after-the-script-of-submit", ("submit", "job.py", "--nodes", "2", "--dry-run"), U,
        ("type: hpcml submit --nodes 2 --dry-run job.py.",)),
    Bad("new-in-no-folder", ("new", "nowhere/first"), S, ("nowhere/first.py cannot be written: No such file or directory",)),
    Bad("help-of-no-command", ("help", "submt"), U, ("Did you mean hpcml submit?",)),
    Bad("help-of-no-page", ("help", "sweps"), U, ("Did you mean hpcml help sweeps?", "hpcml help topics")),
    Bad("help-of-no-topic", ("help", "xyzzy", "--plugh"), U, ("There is no help on 'xyzzy --plugh'", "hpcml help topics")),
    *(Bad(f"top-interval-{text}", ("top", "--interval", text), U, ("(--interval)",)) for text in ("soon", "0", "0.1s")),
    Bad("shell-script", _submit(script="b"), U, ("a script for bash, not Python",), _write("project/b", "#!/bin/bash\necho\n")),
    Bad("syntax-error", _submit(script="b.py"), R, ("does not compile", "b.py:2", "  | f(1\n  |  ^"), _write("project/b.py", "\nf(1\n")),
    Bad("script-name-with-newline", _submit(script="a\nb.py"), U, ("line break", "Rename"), _write("project/a\nb.py", "1")),
    Bad("no-name-for-script", _submit(script=""), N, ("SCRIPT is a folder",)),
    *(Bad(f"time-{text[:9]!r}", _submit("--time", text), U, ("--time",)) for text in BAD_TIMES),
    *(Bad(f"nodes-{text[:9]!r}", _submit(f"--nodes={text}"), U, ("--nodes",)) for text in BAD_NUMBERS),
    Bad("no-cpus", _submit("--cpus-per-node", "x"), U, ("'x' is not a whole number", "--cpus-per-node 4")),
    Bad("minus-gpus", _submit("--gpus-per-node", "-1"), U, ("--gpus-per-node",)),
    *(Bad(f"memory-{text!r}", _submit(f"--memory-per-node={text}"), U, ("--memory-per-node",)) for text in
      ("lots", "-4G", "1k", "9" * 40)),
    Bad("too-many-nodes", (*LAB, "--partition", "debug", "--nodes", "4", "job.py"), R,
        ("'debug' allows at most 2 nodes, but the run requests 4", "profile lab", "Try --partition boost"), env=HAS_LAB),
    Bad("too-long", (*LAB, "--partition", "debug", "--time", "2h", "job.py"), R,
        ("'debug' allows a time limit of at most 00:30:00, but the run requests 02:00:00", "Try --partition boost"), env=HAS_LAB),
    Bad("too-many-gpus", (*LAB, "--partition", "boost", "--gpus-per-node", "5", "job.py"), R,
        ("'boost' has 4 GPUs per node, but the run requests 5", "Request fewer"), env=HAS_LAB),
    Bad("too-many-cpus", (*LAB, "--partition", "boost", "--cpus-per-node", "9", "job.py"), R, ("has 8 CPUs", "Request fewer"), env=HAS_LAB),
    Bad("too-much-memory", (*LAB, "--partition", "boost", "--memory-per-node", "1T", "job.py"), R, ("has 3500M", "Request fewer"), env=HAS_LAB),
    Bad("too-little-for-each-worker", (*LAB, "--memory-per-node", "3000M", "--set", "workers.per_node=64", "job.py"), R,
        ("64 workers share 3000 MiB of a node's memory: each has 47 MiB", "more than 80 MiB to start", "workers.per_node", "--memory-per-node"), env=HAS_LAB),
    Bad("a-limit-below-what-a-worker-needs", ("submit", "--site", "slurm", "--set", "workers.memory_limit=27MiB", "job.py"), R,
        ("workers.memory_limit is 27 MiB", "more than 80 MiB to start", "remove it")),
    Bad("fits-nowhere", (*LAB, "--nodes", "99", "job.py"), R, ("No partition fits the request", "'debug' allows at most 2", "Request fewer"), env=HAS_LAB),
    Bad("gpus-in-a-cpu-partition", ("submit", "--site", "leonardo", "--account", "a", "--partition", "dcgp_usr_prod",
        "--gpus-per-node", "4", "job.py"), R, ("has no GPUs per node", "Try --partition boost_usr_prod")),
    Bad("no-account", ("submit", "--site", "leonardo", "job.py"), U, ("needs an account", "--account", "hpcml.toml")),
    Bad("gpus-on-local", ("submit", "--site", "local", "--nodes", "2", "--gpus-per-node", "1", "job.py"), R, ("GPU runs use one node",)),
    Bad("image-missing", _submit("--image", "x.sif"), N, ("x.sif",)),
    Bad("image-is-none", _submit("--image", "job.py"), errors.IMAGE, ("not an image", "job.py")),
    Bad("image-checked", _submit("--check", "--image", "job.py"), errors.IMAGE, ("not an image", "job.py")),
    Bad("stage-unknown", _submit("--set", "runtime.stage=bcast"), C, ("runtime.stage", "sbcast")),
    Bad("stage-to", _submit("--image", "x.sif", "--set", "runtime.stage=copy", "--set", "runtime.stage_to=here"), C,
        ("not an absolute path", "runtime.stage_to")),
    Bad("image-not-named", _submit("--set", "runtime.kind=image"), C, ("runtime.image is not set", "--image")),
    Bad("image-bind", _submit("--image", "x.sif", "--set", 'runtime.binds=["data"]'), C, ("'data' is not a valid bind", "runtime.binds")),
    Bad("protocol-unknown", _submit("--set", "network.protocol=ib"), C, ("'ib' is not allowed", "auto, tls, ucx")),
    Bad("unknown-site", ("submit", "--site", "leonrado", "job.py"), C, ("Unknown site 'leonrado'", "Did you mean leonardo?")),
    Bad("unknown-site-in-environment", ("submit", "job.py"), C, ("Unknown site 'zzz'", "HPCML_SITE", "Known sites"), None,
        {"HPCML_SITE": "zzz"}),
    Bad("bad-name", _submit("--name", "a/b"), U, ("'a/b' is not a valid name", "--name", "letters, digits")),
    Bad("hidden-name", _submit("--name", ".a"), U, ("'.a' is not a valid name",)),
    Bad("long-name", _submit("--name", "a" * 65), U, ("at most 64",)),
    Bad("empty-name", _submit("--name", ""), U, ("--name is empty", "Remove the option")),
    Bad("empty-account", _submit("--account", " "), U, ("--account is empty",)),
    Bad("newline-in-account", _submit("--account", "a\nb"), U, ("line break", "Remove this character")),
    Bad("wait-and-detach", _submit("--wait", "--detach"), U, ("--wait and --detach cannot be combined", "Use only one")),
    Bad("script-named-like-an-example", ("submit", "kmaens.py"), errors.NOT_FOUND, ("hpcml new kmeans",)),
    Bad("dry-run-and-check", _submit("--dry-run", "--check"), U, ("cannot be combined",)),
    Bad("check-on-local", ("submit", "--site", "local", "--check", "job.py"), U, ("no Slurm", "Remove --check")),
    Bad("set-unknown-key", _submit("--set", "workers.thread=2"), C,
        ("Unknown key 'thread'", "--set: workers.thread", "Did you mean threads?")),
    Bad("set-unknown-table", _submit("--set", "worker.threads=2"), C, ("Unknown key 'worker'", "Did you mean workers?")),
    Bad("set-without-value", _submit("--set", "workers.threads"), C, ("not KEY=VALUE", "--set workers.threads=8")),
    Bad("set-wrong-type", _submit("--set", "workers.threads=many"), C, ("'many' must be a whole number", "--set: workers")),
    Bad("set-negative", _submit("--set", "workers.threads=-1"), C, ("-1 must be a whole number",)),
    Bad("set-bad-choice", _submit("--set", "workers.on_loss=fial"), C, ("'fial' is not allowed", "Did you mean fail?")),
    Bad("set-bad-duration", _submit("--set", "deadlines.workers=soon"), C, ("'soon' is not a duration", "deadlines.workers")),
    Bad("set-empty-duration", _submit("--set", "deadlines.workers=''"), C, ("is not a duration", "deadlines.workers")),
    Bad("set-value-below-value", _submit("--set", "workers=1"), C, ("must be a table", "--set: workers")),
    Bad("set-below-a-value", _submit("--set", "name=x", "--set", "name.x=1"), C, ("not a table", "--set")),
    Bad("no-workers", _submit("--set", "workers.per_node=0"), U, ("workers.per_node", "at least 1")),
    Bad("env-unknown-key", _submit(), C, ("Unknown key 'thread'", "HPCML_WORKERS__THREAD"), None, {"HPCML_WORKERS__THREAD": "2"}),
    Bad("env-wrong-type", _submit(), C, ("must be a whole number", "HPCML_WORKERS__THREADS"), None,
        {"HPCML_WORKERS__THREADS": "x"}),
    Bad("project-unknown-key", _submit(), C, ("Unknown key 'partitoin'", "hpcml.toml", "Did you mean partition?"),
        _toml('[defaults]\npartitoin = "x"\n')),
    Bad("project-wrong-type", _submit(), C, ("must be true or false", "hpcml.toml", "without quotes"),
        _toml('[resources]\nexclusive = "yes"\n')),
    Bad("project-list-of-numbers", _submit(), C, ("must be a list of strings", "runtime.modules"),
        _toml("[runtime]\nmodules = [1]\n")),
    Bad("project-invalid-toml", _submit(), C, ("not valid TOML", "line 2", "hpcml.toml"), _toml("[defaults]\nnodes = = 2\n")),
    Bad("project-not-utf8", _submit(), C, ("not valid TOML", "hpcml.toml"), _write("project/hpcml.toml", b"a = '\xff'\n")),
    Bad("project-unknown-site-table", _submit(), C, ("Unknown site 'leonard'", "Did you mean leonardo?"),
        _toml("[site.leonard]\nextends = 'x'\n")),
    Bad("project-site-is-a-text", _submit(), C, ("'site' must contain", "[site.leonardo]"), _toml("site = 'lab'\n")),
    Bad("project-bad-time", _submit(), C, ("not a time limit", "defaults.time"), _toml("[defaults]\ntime = 'soon'\n")),
    Bad("profile-unknown-key", ("submit", "--site", "mine", "job.py"), C, ("Unknown key 'colour'", "mine.toml", "Valid keys"),
        _profiles(mine="colour = 'red'\n")),
    Bad("profile-ring", ("submit", "--site", "one", "job.py"), C, ("in a circle: one → two → one", "Remove 'extends'"),
        _profiles(one="extends = 'two'\n", two="extends = 'one'\n")),
    Bad("profile-extends-nothing", ("submit", "--site", "one", "job.py"), C, ("Unknown site 'slrum'", "one.toml", "Did you mean slurm"),
        _profiles(one="extends = 'slrum'\n")),
    Bad("profile-bad-limit", ("submit", "--site", "one", "job.py"), C, ("not a time limit", "partitions.p.max_time"),
        _profiles(one="[partitions.p]\nmax_time = 'x'\n")),
    Bad("profile-bad-extra", ("submit", "--site", "slurm", "--set", 'slurm.extra=["exclusive"]', "job.py"), C,
        ("'exclusive' is not an sbatch option", "slurm.extra", "--constraint=gpu")),
    Bad("profile-variable", _submit("--set", "environment={\"A B\"='x'}"), C, ("'A B' is not a valid variable name", "environment")),
    Bad("set-unknown-choice", _submit("--set", "code.snapshot=all"), C, ("'all' is not allowed", "Allowed:")),
    Bad("runs-not-absolute", _submit("--set", "paths.runs=here"), S, ("not an absolute path", "paths.runs: here")),
    Bad("runs-needs-a-variable", _submit("--set", "paths.runs=$WORK/runs"), S, ("WORK is not set", "paths.runs: $WORK/runs")),
    Bad("runs-with-colon", _submit("--set", "paths.runs=/tmp/a:b"), C, ("contains ':'", "paths.runs", "Choose another")),
    Bad("runs-below-a-file", _submit("--set", "paths.runs=/dev/null/x"), S, ("Not a directory", "/dev/null", "paths.runs=")),
    Bad("runs-where-nobody-may-write", _submit("--set", "paths.runs=/proc/x"), S, ("/proc/x", "Choose another runs folder")),
    Bad("home-unset", _submit(), S, ("HOME is not set", "paths.runs"), None, {}, ("HOME",)),
    Bad("sweep-of-ranks", ("sweep", "--ranks", "2", "--at-once", "2", "s.py", "--grid", "k=1,2"), U,
        ("no option '--ranks'", "Submit each sweep point as a separate run")),
    Bad("sweep-verb", ("sweep", "tabel", "fit"), N, ("no script 'tabel'", "Did you mean hpcml sweep table?")),
    Bad("no-runs", ("status",), N, ("There are no runs", "hpcml submit SCRIPT")),
    Bad("no-runs-logs", ("logs",), N, ("There are no runs",)),
    Bad("no-runs-cancel", ("cancel", "x"), N, ("There are no runs",)),
    Bad("cancel-without-run", ("cancel",), U, ("RUN", "hpcml cancel --help")),
    Bad("unknown-role", ("logs", "last", "wroker"), U, ("no log 'wroker'", "Did you mean worker?")),
    Bad("ls-bad-number", ("ls", "--last", "many"), U, ("'many' is not a whole number", "--last")),
    Bad("site-nothing", ("site",), U, ("One of these words is missing: ls, show", "hpcml site --help")),
    Bad("site-unknown-verb", ("site", "list"), U, ("'list' is not one of: ls, show, diff, init", "Did you mean hpcml site ls?")),
    Bad("site-unlike-any-verb", ("site", "it's"), U, ("'it's' is not one of: ls, show, diff, init", "hpcml site --help")),
    Bad("site-init-no-name", ("site", "init"), U, ("site init needs one name", "Write hpcml site init mycluster.")),
    Bad("site-ls-a-name", ("site", "ls", "lab"), U, ("site ls accepts no profile", "Write hpcml site ls.")),
    Bad("image-unknown-verb", ("image", "list"), U, ("'list' is not one of: build, show, check, ls", "Did you mean hpcml image ls?")),
    Bad("near-a-command", ("sweeps",), U, ("no command 'sweeps'", "Did you mean hpcml sweep?")),
    Bad("site-init-odd-name", ("site", "init", "../x"), U, ("'../x' is not a valid profile name", "mycluster")),
    Bad("site-init-elsewhere", ("site", "ls", "--probe"), U, ("--probe is an option of hpcml site init only", "Remove --probe")),
    Bad("site-init-nothing-there", ("site", "init", "mine", "--refresh"), C, ("no profile to refresh", "hpcml site init mine")),
    Bad("site-init-bad-time", ("site", "init", "mine", "--deadline", "soon"), U, ("'soon' is not a duration", "--deadline")),
    Bad("site-init-no-slurm", ("site", "init", "mine"), errors.UNREACHABLE, ("could not be started: sinfo", "Slurm module")),
    Bad("site-unknown", ("site", "show", "labb"), C, ("Unknown site 'labb'", "Did you mean lab?"), env=HAS_LAB),
]  # fmt: skip


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
        _told_as_json(world, bad)


AS_JSON_TOO = [bad for bad in CASES if bad.arguments[0] in ("submit", "status", "cancel", "ls", "site")][::6]


def _told_as_json(world: World, bad: Bad) -> None:
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


@pytest.mark.parametrize("closed", [(0,), (1,), (2,), (0, 1, 2)])
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
