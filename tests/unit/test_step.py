"""step.sh: what it gives a role's process, and when it starts a worker task again."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

from hpcml import assets
from hpcml.failures.note import read_note
from hpcml.paths import RunPaths

STEP = str(assets.folder("templates") / "step.sh")


def step(run: Path, role: str, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    RunPaths(run).attempt(0).exits.mkdir(parents=True, exist_ok=True)
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONHASHSEED", "PYTHONPATH")}
    environment |= {"HPCML_RUN_DIR": str(run), "HPCML_ATTEMPT": "0", "HPCML_NODE": "n1", **variables}
    return subprocess.run(["/bin/sh", STEP, role, *command], env=environment, cwd=run, capture_output=True, text=True,
                          timeout=240, check=False)  # fmt: skip


def test_all_workers_hash_a_string_alike(tmp_path: Path) -> None:
    hashes = {step(tmp_path, "worker", sys.executable, "-c", "print(hash('a'))").stdout for _ in range(2)}
    assert len(hashes) == 1


def test_a_status_is_that_of_the_role_though_python_would_become_interactive(tmp_path: Path) -> None:
    assert (
        step(tmp_path, "supervisor", sys.executable, "-c", "import sys; sys.exit(0)", PYTHONINSPECT="1").returncode == 0
    )
    assert (RunPaths(tmp_path).attempt(0).exits / "supervisor@n1").read_text() == "0\n"


def test_a_role_imports_nothing_of_the_working_folder(tmp_path: Path) -> None:
    (tmp_path / "queue.py").write_text("raise SystemExit('taken')")
    (tmp_path / "mine").mkdir()
    done = step(tmp_path, "scheduler", sys.executable, "-Pc", "import os, queue; print(os.environ['PYTHONPATH'])",
                PYTHONPATH=f"{tmp_path}:{tmp_path / 'mine'}::x")  # fmt: skip
    assert (done.returncode, done.stdout) == (0, f"{tmp_path / 'mine'}\n"), done.stderr


def test_a_worker_task_that_was_killed_starts_again_unless_the_run_has_ended(tmp_path: Path) -> None:
    for name, starts in (("goes on", 3), ("ended", 1)):
        run = tmp_path / name.replace(" ", "-")
        killed = f"echo started; [ {name!r} != ended ] || : >attempts/0/ended; kill -KILL $$"
        done = step(run, "worker", "sh", "-c", killed, HPCML_RESTARTS="2")
        assert (done.returncode, done.stdout.count("started")) == (137, starts), name


def began_before(folder: Path) -> tuple[Path, Path]:
    """Return the directory of processes that started ahead, and that of the run which they have become."""
    ahead, run = folder / "ahead", folder / "the run"
    (run / "attempts/0/exit").mkdir(parents=True)
    ahead.mkdir()
    (ahead / "attempts").symlink_to(run / "attempts")
    return ahead, run


def test_a_worker_task_that_started_ahead_starts_again_in_the_run(tmp_path: Path) -> None:
    """It does not wait for its run once more: nobody names the run a second time."""
    ahead, run = began_before(tmp_path)
    killed = 'echo "$HPCML_RUN_DIR:${HPCML_AHEAD-}"; kill -KILL $$'
    done = step(ahead, "worker", "sh", "-c", killed, HPCML_RESTARTS="1", HPCML_AHEAD="1")
    assert done.stdout == f"{ahead}:1\n{run}:\n", done.stderr


def test_what_is_left_of_a_run_is_looked_for_in_the_run_that_the_supervisor_has_become(tmp_path: Path) -> None:
    ahead, run = began_before(tmp_path)
    (ahead / "sweep.sh").write_text('echo "sweeps $1"\n')
    assert step(ahead, "supervisor", "true", HPCML_AHEAD="1").stdout == f"sweeps {run}\n"
    (tmp_path / "sweep.sh").write_text('echo "sweeps $1"\n')
    assert step(tmp_path, "supervisor", "true").stdout == f"sweeps {tmp_path}\n"


def test_a_role_starts_only_with_the_first_node_s_library(tmp_path: Path) -> None:
    """Also not with one that is whole, but another: a node may have an older copy of the file."""
    library, good = RunPaths(tmp_path).library, b"x" * 99
    seal = hashlib.sha256(good).hexdigest()
    for content, starts in ((good, True), (b"y" * 99, False), (b"", False), (None, False)):
        library.unlink(missing_ok=True)
        if content is not None:
            library.write_bytes(content + hashlib.sha256(content).hexdigest().encode())
        done = step(tmp_path, "worker", "echo", "started", HPCML_LIBRARY=seal)
        assert (done.returncode, done.stdout) == ((0, "started\n") if starts else (74, "")), content
        note = RunPaths(tmp_path).attempt(0).note_of("worker", "n1")
        assert (read_note(note).reason if note.exists() else "") == ("" if starts else "damaged-library")
    assert f"damaged or missing: ls: cannot access '{library}'" in done.stderr
    assert (RunPaths(tmp_path).attempt(0).exits / "worker@n1").read_text() == "74\n"
    assert step(tmp_path, "worker", "echo", "started").returncode == 0, "the first node could not compute a digest"


def test_what_step_sh_sets_itself_is_named(tmp_path: Path) -> None:
    """The user's settings of Dask go before it, and after what is in the environment."""
    command = ("sh", "-c", 'echo "$OMP_NUM_THREADS $MKL_NUM_THREADS:$HPCML_PRESET"')
    done = step(tmp_path, "worker", *command, OMP_NUM_THREADS="4", MKL_NUM_THREADS="", OPENBLAS_NUM_THREADS="2")
    assert done.stdout == "4 1: MKL_NUM_THREADS\n"
