"""`hpcml image` with executables on PATH in place of Apptainer: what is there afterwards, statuses and words."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from hpcml import errors
from image_program import DEFINITION, GPU_LABELS, Program, image
from tests.fixtures.images import sif_file
from world import World, until


@pytest.fixture
def program(world: World) -> Program:
    return Program(world)


def left(world: World) -> list[str]:
    return sorted(os.listdir(world.project))


BEFORE = ["job.py", "own.def"]


# -- build ----------------------------------------------------------------------------------------------------------


def test_a_build(world: World, program: Program) -> None:
    program.install()
    done = image(world, "build", "--build-arg", "SIZE=7", "own.def", "out.sif", status=0)
    assert left(world) == sorted([*BEFORE, "out.sif", "out.sif.json"])
    out = world.project / "out.sif"
    assert out.read_bytes() == program.image.read_bytes()
    assert os.access(out, os.X_OK)
    record = json.loads((world.project / "out.sif.json").read_text())
    assert record["digest"] == f"sha256:{hashlib.sha256(out.read_bytes()).hexdigest()}"
    assert record["definition"] == {
        "name": "own.def",
        "digest": f"sha256:{hashlib.sha256(DEFINITION.encode()).hexdigest()}",
    }
    assert (record["arguments"], record["program"], record["labels"]) == (
        {"SIZE": "7"},
        "Apptainer 1.4.5",
        sif_file.SAID,
    )
    assert record["digest"] in done.stdout
    assert "INFO:    Starting build..." in done.stderr  # passed on
    command = program.words()[-1]
    assert command.startswith("build ")
    assert "--build-arg SIZE=7" in command
    assert command.endswith("own.def")
    assert ("--fakeroot" in command) == (os.getuid() != 0)


def test_a_name_of_hpcml_s_own_and_the_record_as_json(world: World, program: Program) -> None:
    program.install()
    done = image(world, "build", "--json", "--no-fakeroot", "cpu", status=0)
    assert json.loads(done.stdout)["image"] == str(world.project / "cpu.sif")
    assert program.words()[-1].endswith("containers/cpu.def")


def test_an_image_is_replaced_only_by_force(world: World, program: Program) -> None:
    program.install()
    (world.project / "own.sif").write_text("mine")
    image(world, "build", "own.def", status=errors.USAGE, says=("file with this name", "own.sif", "--force"))
    assert program.words() == ["--version"]
    image(world, "build", "own.def", "--force", "own.sif", status=0)
    assert (world.project / "own.sif").read_bytes() == program.image.read_bytes()


FAILS = {
    "exit": ('echo half >"$target"; echo "FATAL:   While performing build: the moon is full"; exit 255', errors.IMAGE,
             ("did not build the image", "| FATAL:   While performing build: the moon is full")),
    "quota": ('echo half >"$target"; echo "write: Disk quota exceeded" >&2; exit 1', errors.STORAGE,
              ("ran out of space", "APPTAINER_TMPDIR", "| write: Disk quota exceeded")),
    "nothing": ("true", errors.IMAGE, ("reported success but wrote no image",)),
    "rubbish": ('echo rubbish >"$target"', errors.IMAGE, ("not an image (SIF)",)),
}  # fmt: skip


@pytest.mark.parametrize("how", FAILS)
def test_a_build_that_fails_leaves_nothing(world: World, program: Program, how: str) -> None:
    text, status, says = FAILS[how]
    program.install(build=text)
    (world.project / "own.sif").write_text("mine")
    image(world, "build", "--force", "own.def", status=status, says=says)
    assert left(world) == sorted([*BEFORE, "own.sif"])
    assert (world.project / "own.sif").read_text() == "mine"


def _state(stat: Path) -> str:
    """Return the letter of a process's state, X where there is none any more."""
    try:
        return stat.read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "X"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_an_interrupted_build_is_ended_and_leaves_nothing(
    world: World, program: Program, number: signal.Signals
) -> None:
    # The pid is written when all have started: dash passes a SIGINT within its fork on to nobody.
    last = """sh -c 'echo $PPID >"$FAKE_STATE/pid"; exec sleep 300'; :"""
    work = f'mkdir "$APPTAINER_TMPDIR/rootfs"; echo half >"$target"; {last}'
    program.install(build=work)
    temporary = world.top / "temporary"
    temporary.mkdir()
    environment = world.environment | {"TMPDIR": str(temporary)}
    process = subprocess.Popen([str(world.command), "image", "build", "own.def"], env=environment, cwd=world.project,
                               stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)  # fmt: skip
    with process:
        pid = world.state / "pid"
        until(lambda: pid.exists() and pid.read_text())
        process.send_signal(number)
        assert process.wait(120) == 130
    stat = Path(f"/proc/{int(pid.read_text())}/stat")
    until(lambda: _state(stat) in "ZX")  # it has been killed, and dies when it runs
    assert left(world) == BEFORE
    assert list(temporary.iterdir()) == []


KNOWN = "apptainer version 1.4.5"
BEFOREHAND: dict[str, tuple[tuple[str, ...], int, tuple[str, ...], str]] = {
    "too-old": (("own.def",), errors.IMAGE, ("Singularity 3.8.7 does not support the build arguments", "Apptainer 1.2"), "singularity version 3.8.7-1.el8"),
    "another-program": (("own.def",), errors.IMAGE, ("neither Apptainer nor Singularity", "| GNU bash"), "GNU bash, version 5.2"),
    "unknown-argument": (("--build-arg", "SIZ=1", "own.def",), errors.USAGE, ("no build argument SIZ", "Did you mean SIZE?"), KNOWN),
    "no-argument": (("--build-arg", "SIZE", "own.def",), errors.USAGE, ("'SIZE' is not KEY=VALUE",), KNOWN),
    "no-definition": (("cpuu",), errors.NOT_FOUND, ("cannot be read: No such file", "Did you mean cpu?"), KNOWN),
    "folder": ((".",), errors.NOT_FOUND, ("cannot be read: the path is a folder",), KNOWN),
    "nowhere": (("own.def", "no/where/a.sif",), errors.NOT_FOUND, ("folder for the image does not exist", "no/where"), KNOWN),
    "no-space": (("big.def",), errors.STORAGE, ("of free space, but", "the build needs about", "APPTAINER_TMPDIR"), KNOWN),
    "no-value": (("needs.def",), errors.USAGE, ("build argument THIS has no value", "--build-arg THIS=VALUE"), KNOWN),
    "no-name": ((), errors.USAGE, ("DEFINITION is missing", "hpcml image build --help"), KNOWN),
    "three-names": (("a", "b", "c",), errors.USAGE, ("Unrecognized arguments: c", "--help"), KNOWN),
    "gpu": (("--gpu", "own.def",), errors.USAGE, ("There is no option '--gpu'", "--help"), KNOWN),
}  # fmt: skip


def test_what_is_known_beforehand_is_told_beforehand(world: World, program: Program, subtests: pytest.Subtests) -> None:
    says = ("There is no apptainer and no singularity on this machine", "Load the site's module")
    image(world, "build", "own.def", status=errors.IMAGE, says=says)
    words = ("build", "--program", "apptainer-suid", "own.def")
    image(world, *words, status=errors.IMAGE, says=("no apptainer-suid on this machine",))
    assert left(world) == BEFORE
    (world.project / "big.def").write_text(DEFINITION.replace("1M", "900000T"))
    (world.project / "needs.def").write_text(DEFINITION.replace("{{ SIZE }}", "{{ THIS }}"))
    for which, (asked, status, said, version) in BEFOREHAND.items():
        with subtests.test(which=which):
            program.install(version)
            image(world, "build", *asked, status=status, says=said)
            assert left(world) == sorted([*BEFORE, "big.def", "needs.def"])
            assert not [line for line in program.words() if line.startswith("build")]


def test_a_program_that_fails_or_is_for_another_machine(world: World, program: Program) -> None:
    says = ("when hpcml called it with --version", "| libseccomp.so.2")
    program.install(version="x'; echo 'libseccomp.so.2: cannot open shared object file' >&2; exit 127; '")
    image(world, "build", "own.def", status=errors.IMAGE, says=says)
    (world.bin / "apptainer").write_bytes(b"\x7fELF rubbish")
    image(world, "build", "own.def", status=errors.IMAGE, says=("could not be started", "Exec format error"))


def test_the_profile_says_which_program(world: World, program: Program) -> None:
    program.install("singularity-ce version 4.1.0", name="singularity")
    image(world, "build", "own.def", status=0, says=("SingularityCE 4.1.0 builds own.def",))
    program.install()
    image(world, "build", "--force", "own.def", status=0, says=("Apptainer 1.4.5 builds",))
    chosen = ("--set", "runtime.container=singularity", "--force")
    image(world, "build", *chosen, "own.def", status=0, says=("SingularityCE 4.1.0 builds",))


# -- show and ls ----------------------------------------------------------------------------------------------------


def test_show(world: World, program: Program) -> None:
    path = sif_file.make(world.project / "a.sif", GPU_LABELS | {"maintainer": "us"})
    says = (
        "kind       rapids",
        "cuda       12",
        "dask 2026.7.1",
        "label      maintainer us",
        "  | From: python:3.12-slim",
    )
    image(world, "show", "a.sif", status=0, says=says)
    facts = json.loads(image(world, "show", "--json", "a.sif", status=0).stdout)
    assert (facts["kind"], facts["architecture"], facts["labels"]["maintainer"]) == ("rapids", "x86_64", "us")
    assert facts["digest"] == f"sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}"
    assert program.words() == []


@pytest.mark.parametrize("command", ["show", "check"])
def test_what_is_no_image(world: World, command: str) -> None:
    image(world, command, "job.py", status=errors.IMAGE, says=("not an image (SIF)", "job.py", "hpcml image build"))
    image(world, command, "nope.sif", status=errors.NOT_FOUND, says=("No such file", "nope.sif"))
    image(world, command, ".", status=errors.IMAGE, says=("a folder, not an image file",))
    image(world, command, status=errors.USAGE, says=("IMAGE is missing",))


def test_ls(world: World) -> None:
    image(world, "ls", status=0, says=("There are no images in",))
    image(world, "ls", "nope", status=errors.NOT_FOUND, says=("folder cannot be listed", "nope"))
    folder = world.home / ".hpcml" / "images"
    folder.mkdir(parents=True)
    sif_file.make(folder / "good.sif", GPU_LABELS)
    (folder / "bad.sif").write_text("rubbish")
    (folder / ".good.sif.1.new").write_text("half")
    done = image(world, "ls", status=0, says=("rapids cuda 12", "rapids 26.10", "The file is not an image"))
    assert len(done.stdout.splitlines()) == 2
    rows = json.loads(image(world, "ls", "--json", str(folder), status=0).stdout)
    assert ["error" in row for row in rows] == [True, False]


def test_an_image_gets_the_script_s_folder_only_where_the_run_needs_it(world: World) -> None:
    path = sif_file.make(world.project / "a.sif")
    elsewhere = world.top / "elsewhere"
    elsewhere.mkdir()
    world.script = elsewhere / "job.py"
    world.script.write_text("print('hello')\n")
    words = ["--image", str(path)]
    assert (world.submit(*words) / "sources").read_text() == ""
    assert (world.submit("--set", "code.snapshot=none", *words) / "sources").read_text() == f"{elsewhere}\n"


def test_a_submission_reads_the_labels(world: World) -> None:
    """Labels that do not belong together end it before Slurm gets the job; that there are none is a note."""
    skewed = sif_file.make(world.project / "skewed.sif", sif_file.SAID | {"org.hpcml.distributed": "2020.1.0"})
    for mode in ("--wait", "--dry-run=script"):
        done = world.run("submit", "--site", "slurm", mode, "--image", str(skewed), "job.py")
        assert done.returncode == errors.IMAGE, done.stderr
        assert "distributed 2020.1.0" in done.stderr
        assert ("#SBATCH" in done.stdout) == (mode == "--dry-run=script")  # the script is shown all the same
    assert not world.calls("sbatch")
    plain = sif_file.make(world.project / "plain.sif", {})
    for mode in ("--check", "--dry-run=script"):
        done = world.run("submit", "--site", "slurm", mode, "--image", str(plain), "job.py")
        assert done.returncode == 0, done.stderr
        assert "note: the image has no labels of hpcml" in done.stderr
        assert "did not start the image" in done.stderr
