"""What runs a role inside an image: the words, what is bound, and what is refused."""

from __future__ import annotations

import os
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest

from hpcml import assets
from hpcml.errors import ConfigError
from hpcml.failures import role_end
from hpcml.failures.end import Reason
from hpcml.failures.note import Note, read_note
from hpcml.failures.rules import BY_NAME
from hpcml.paths import RunPaths
from hpcml.plan import container
from hpcml.request.record import RunRequest
from hpcml.sites import schema
from matrix import site_of

PATHS = RunPaths(Path("/runs/a-1"))


def site(**runtime: Any) -> schema.Site:
    return site_of({"runtime": runtime})


def spec(cwd: str = "/home/alice/p", **more: Any) -> RunRequest:
    return RunRequest.of(Path("/home/alice/p/a.py"), (), Path(cwd), **more)


def words(made: schema.Site, asked: RunRequest, gpus: int = 0) -> tuple[str, ...]:
    return container.entry(made, asked.changed(gpus_per_node=gpus), PATHS)


def test_which_image() -> None:
    assert container.image_of(site(), spec()) == ""
    assert container.image_of(site(), spec(image="a.sif")) == "/home/alice/p/a.sif"
    assert container.image_of(site(kind="image", image="/i/b.sif"), spec()) == "/i/b.sif"
    assert container.image_of(site(kind="image", image="/i/b.sif"), spec(image="/c.sif")) == "/c.sif"
    assert container.image_of(site(image="/i/b.sif"), spec()) == "", "an image that the profile has and does not use"
    for runtime, words_ in (
        ({"kind": "image"}, "runtime.image is not set"),
        ({"kind": "image", "image": "b.sif"}, "not an absolute path"),
    ):
        with pytest.raises(ConfigError, match=words_):
            container.image_of(site(**runtime), spec())


def test_the_words() -> None:
    made = words(site(binds=["/data:/data:ro"], options=["--writable-tmpfs"]), spec(image="/i/a.sif"))
    assert made[:5] == ("/bin/sh", "/runs/a-1/image.sh", "apptainer", "exec", "--cleanenv")
    assert "--nv" not in made
    assert made[-1] == "--writable-tmpfs", "the image comes behind"
    binds = [made[at + 1] for at, word in enumerate(made) if word == "--bind"]
    assert binds == [
        "/runs/a-1:/runs/a-1",
        "/runs/a-1/lib.zip:/runs/a-1/lib.zip:ro",
        "/home/alice/p:/home/alice/p",
        "/data:/data:ro",
    ]
    assert made[made.index("--home") + 1] == "/runs/a-1/home"
    assert not {"--contain", "--containall", "--ipc", "--pid", "--no-mount=dev"} & set(made)


def test_gpus_and_the_interpreter_inside() -> None:
    own = site(kind="image", image="/a.sif", python="/opt/conda/bin/python", container="singularity")
    made = words(own, spec(), gpus=4)
    assert made[2] == "singularity"
    assert "--nv" in made
    assert container.interpreter(own) == "/opt/conda/bin/python"
    assert container.interpreter(site(python="/usr/bin/python3.9")) == "python3", "that one is the host's"


@pytest.mark.parametrize("bind", ["data", "/data:inside", "/data:/inside:rx", "/a:/b:ro:x", "/a:/b,c", "/a\\b", "/a "])
def test_binds_that_are_none(bind: str) -> None:
    with pytest.raises(ConfigError, match="is not a valid bind"):
        words(site(binds=[bind]), spec(image="/a.sif"))


@pytest.mark.parametrize("folder", ["/home/a,b", "/home/a:b", "/home/a\\b", "/home/a "])
def test_folders_that_cannot_be_bound(folder: str) -> None:
    with pytest.raises(ConfigError, match="cannot be bound"):
        words(site(), spec(cwd=folder, image="/a.sif"))
    assert words(site(), spec(cwd="/home/a b", image="/a.sif")), "a space is no trouble"


def test_scratch_is_bound_where_its_path_is_known_beforehand() -> None:
    for scratch, bound in (("/local", True), ("$TMPDIR/x", False)):
        made = words(site_of({"paths": {"scratch": scratch}}), spec(image="/a.sif"))
        assert (f"{scratch}:{scratch}" in made) is bound


FAKE = """#!/bin/sh
[ "$2" = --help ] && { echo "apptainer exec --no-eval"; exit 0; }
printf '%s\\n' "$@"; env | grep -E '^APPTAINERENV_(CUPY_CACHE_DIR|PMI_RANK)='; exit 0
"""


def enter(tmp_path: Path, kernels: str, *command: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Run image.sh as a run in tmp_path/runs would, with a program that says how it was called."""
    (tmp_path / "bin").mkdir(exist_ok=True)
    program = tmp_path / "bin/apptainer"
    program.write_text(FAKE)
    program.chmod(0o755)
    run = tmp_path / "runs/a-1"
    (run / "attempts/0/exit").mkdir(parents=True, exist_ok=True)
    more = {"HPCML_ATTEMPT": "0", "HPCML_NODE": "n2", **more}
    environment = {"PATH": f"{program.parent}:{os.environ['PATH']}", "HPCML_RUN_DIR": str(run), "HPCML_CONTAINER_ENV": ""}  # fmt: skip
    script = assets.folder("templates") / "image.sh"
    return subprocess.run(["/bin/sh", str(script), "apptainer", "exec", "--nv", "/i/a.sif", *(command or ("true",))], text=True, check=False,
                          env=environment | {"HPCML_CUPY_CACHE": kernels} | more, capture_output=True, timeout=30)  # fmt: skip


def note_of(tmp_path: Path, role: str) -> Note:
    return read_note(RunPaths(tmp_path / "runs/a-1").attempt(0).note_of(role, "n2"))


def test_no_shell_inside_reads_a_value_again(tmp_path: Path) -> None:
    assert "--no-eval" in enter(tmp_path, "").stdout.splitlines()


def test_a_tmpdir_that_cannot_be_bound(tmp_path: Path) -> None:
    """It is known on the node only: the profile's setup lines may set it."""
    (place := tmp_path / "a,b").mkdir()
    done = enter(tmp_path, "", TMPDIR=str(place))
    assert (done.returncode, "TMPDIR cannot be bound" in done.stderr) == (88, True)
    assert note_of(tmp_path, "true").reason == Reason.TMPDIR_NOT_BOUND
    (line := tmp_path / "a,b\nc").mkdir()
    enter(tmp_path, "", "python", "-m", "hpcml.node", "worker", TMPDIR=str(line))
    note = note_of(tmp_path, "worker")
    assert (note.reason, note.what.endswith(f"{tmp_path}/a,b c")) == (Reason.TMPDIR_NOT_BOUND, True)
    assert role_end.not_entered("FATAL: another", 88, note).hint == BY_NAME[Reason.TMPDIR_NOT_BOUND].remedy


def test_a_container_program_that_is_missing_is_noted(tmp_path: Path) -> None:
    done = enter(tmp_path, "", PATH="/nowhere")
    assert (done.returncode, note_of(tmp_path, "true").reason) == (88, Reason.NO_CONTAINER_PROGRAM)


def test_srun_s_tasks_alone_take_their_connection_along(tmp_path: Path) -> None:
    last = {
        role: enter(tmp_path, "", "python3", "-m", "hpcml.kinds", role, PMI_RANK="3").stdout for role in ("mpi", "rank")
    }
    assert ["APPTAINERENV_PMI_RANK=3" in last[role] for role in ("mpi", "rank")] == [True, False]


def test_folders_that_the_code_has_links_to_are_bound_where_the_node_has_them(tmp_path: Path) -> None:
    here, gone = tmp_path / "a here ", tmp_path / "gone"
    here.mkdir()
    (tmp_path / "runs/a-1").mkdir(parents=True)
    (tmp_path / "runs/a-1/sources").write_text(f"{gone}\n{here}\n")
    done = enter(tmp_path, "")
    assert done.returncode == 0, done.stderr
    assert f"--bind\n{here}:{here}\n" in done.stdout
    assert str(gone) not in done.stdout


def test_compiled_kernels_outlive_the_run_in_a_folder_of_the_user_s_own(tmp_path: Path) -> None:
    folder = tmp_path / f"runs/.kernels-{os.getuid()}"
    for _ in range(2):
        done = enter(tmp_path, "ab12")
        assert done.returncode == 0, done.stderr
        assert f"--bind\n{folder}/ab12:{folder}/ab12\n" in done.stdout
        assert done.stdout.splitlines()[-1] == f"APPTAINERENV_CUPY_CACHE_DIR={folder}/ab12"
        assert not done.stderr
    assert [stat.S_IMODE(path.stat().st_mode) for path in (folder, folder / "ab12")] == [0o700, 0o700]
    assert "CUPY" not in enter(tmp_path, "").stdout


@pytest.mark.parametrize("how", ["a link", "another user's"])
def test_kernels_are_not_loaded_from_what_somebody_else_laid_there(tmp_path: Path, how: str) -> None:
    folder = tmp_path / f"runs/.kernels-{os.getuid()}"
    (tmp_path / "mine/ab12").mkdir(parents=True)
    folder.parent.mkdir()
    if how == "a link":
        folder.symlink_to(tmp_path / "mine")
    elif os.getuid():
        pytest.skip("only root can give a folder to another user")
    else:
        (tmp_path / "mine").rename(folder)
        os.chown(folder, 65534, 65534)
    done = enter(tmp_path, "cd34")
    assert not (folder / "cd34").exists(), "something was made in a folder that is not the user's"
    done = enter(tmp_path, "ab12")
    assert done.returncode == 0, "the run goes on without"
    assert "CUPY" not in done.stdout
    assert str(folder) not in done.stdout
    assert f"{folder} is not your folder" in done.stderr


@pytest.mark.parametrize("how", ["open", "above", "another user's", "sticky"])
def test_no_scratch_where_somebody_else_could_put_another(tmp_path: Path, how: str) -> None:
    """From inside, in a user namespace, another user's folder looks like root's: image.sh looks before."""
    place = tmp_path / "above/place"
    place.mkdir(parents=True)
    if how == "another user's":
        if os.getuid():
            pytest.skip("only root can give a folder to another user")
        os.chown(place, 65534, 65534)
    else:
        (place.parent if how == "above" else place).chmod(0o1777 if how == "sticky" else 0o777)
    done = enter(tmp_path, "", TMPDIR=str(place))
    if how == "sticky":
        assert (done.returncode, done.stderr) == (0, "")
    else:
        assert done.returncode == 88
        assert (
            f"hpcml: other users may replace the contents of {place.parent if how == 'above' else place} on"
            in done.stderr
        )
        assert note_of(tmp_path, "true").reason == Reason.TMPDIR_OPEN
        assert not done.stdout
