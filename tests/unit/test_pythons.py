"""Which Python a run uses: how an environment is found by path, name and activation, and what is refused or told."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

import pytest

from hpcml.config_trust import Origin
from hpcml.errors import HpcmlError, NotFoundError, ScriptError, UsageError
from hpcml.request.record import RunRequest
from hpcml.runs import environments, packages, pythons
from hpcml.sites import lookup
from hpcml.workload_forms import Form
from tests.said import says

PYTHON = Path(os.path.realpath(sys.executable))
VERSION = f"{sys.version_info[0]}.{sys.version_info[1]}"
DASK = ("dask", "distributed", "cryptography")


def environment(folder: Path, *modules: str, version: str = VERSION, conda: bool = False) -> Path:
    """Make the files of a virtual environment, or of one of conda; return its folder."""
    site_packages = folder / f"lib/python{version}/site-packages"
    site_packages.mkdir(parents=True)
    (folder / "bin").mkdir()
    if conda:
        (folder / "conda-meta").mkdir()
        (folder / f"bin/python{version}").write_bytes(PYTHON.read_bytes()[:64])
        (folder / f"bin/python{version}").chmod(0o755)
        (folder / "bin/python").symlink_to(f"python{version}")
    else:
        (folder / "pyvenv.cfg").write_text(
            f"home = /usr/bin\ninclude-system-site-packages = false\nversion = {version}.1\n"
        )
        (folder / "bin/python").symlink_to(PYTHON)
    for module in modules:
        (site_packages / module).mkdir()
        (site_packages / module / "__init__.py").touch()
    return folder


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with a script, in which nothing of this shell counts."""
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX", "CONDA_EXE", "CONDA_ENVS_PATH", "CONDA_ENVS_DIRS", "PYTHONPATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HPCML_SYSTEM_CONFIG", str(tmp_path / "etc"))
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    work = tmp_path / "work"
    work.mkdir()
    (work / "job.py").write_text("import tabulate\n")
    monkeypatch.chdir(work)
    return tmp_path


def choose(*settings: str, late: bool = True, dry_run: bool = False, **values: object) -> pythons.Chosen:
    site = lookup.load("local", dict(os.environ), None, settings)
    spec = RunRequest.of(Path("job.py").resolve(), (), Path.cwd(), **values)
    decision = pythons.typed(site, spec, dry_run=dry_run)
    return decision if spec.python else pythons.choose(site, spec, late, dry_run=dry_run)


def test_a_path_means_an_environment_or_its_python(world: Path, subtests: pytest.Subtests) -> None:
    mine = environment(world / "work/mine")
    environment(world / "work/project/.venv")
    for text, expected in (
        ("mine", mine), ("./mine", mine), (str(mine), mine), ("mine/bin/python", mine), ("../work/mine/", mine),
        ("project", world / "work/project/.venv"), ("python3", Path("/usr")),
    ):  # fmt: skip
        with subtests.test(text=text):
            chosen = choose(python=text)
            assert Path(os.path.normpath(chosen.loaded.site.runtime.python)).parent.parent == expected
            named = chosen.loaded.layers.named("runtime", "python")
            assert (named.origin, pythons.origin(chosen.loaded)) == (Origin.TYPED, "--python")


def test_a_name_means_a_conda_environment(world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And no conda is started: the program here would leave a file."""
    root = environment(world / "conda", conda=True)
    (root / "condabin").mkdir()
    (root / "bin/conda").write_text(f"#!/bin/sh\ntouch {world}/started\n")
    (root / "bin/conda").chmod(0o755)
    mine = environment(root / "envs/mine", conda=True)
    for variable, value in (("CONDA_EXE", f"{root}/bin/conda"), ("PATH", f"{root}/bin:/usr/bin")):
        with monkeypatch.context() as patch:
            patch.setenv(variable, value)
            assert choose(python="mine").loaded.site.runtime.python == f"{mine}/bin/python"
            assert choose(python="base").loaded.site.runtime.python == f"{root}/bin/python"
            with pytest.raises(NotFoundError) as caught:
                choose(python="mime")
            assert "Did you mean mine?" in caught.value.hint
    elsewhere = environment(world / "group/envs/other", conda=True)
    (world / "home/.conda").mkdir(parents=True)
    (world / "home/.conda/environments.txt").write_text(f"{elsewhere}\n")
    assert choose(python="other").loaded.site.runtime.python == f"{elsewhere}/bin/python"
    (world / "home/.condarc").write_text(f"channels:\n  - x\nenvs_dirs:\n  - {root}/envs\n")
    assert choose(python="mine").loaded.site.runtime.python == f"{mine}/bin/python"
    assert not (world / "started").exists()


def test_a_name_of_several_environments_is_refused_with_their_paths(world: Path) -> None:
    first = environment(world / "home/.conda/envs/mine", conda=True)
    second = environment(world / "work/mine")
    with pytest.raises(UsageError, match="several environments") as caught:
        choose(python="mine")
    assert str(first) in caught.value.hint
    assert str(second) in caught.value.hint
    assert choose(python="./mine").loaded.site.runtime.python == f"{second}/bin/python"


def test_what_cannot_run_a_run_is_refused(world: Path, subtests: pytest.Subtests) -> None:
    environment(world / "work/old", version="3.9")
    (world / "work/old/bin/python").unlink()
    (world / "work/old/bin/python3.9").touch(0o755)
    (world / "work/old/bin/python").symlink_to("python3.9")
    (world / "work/empty").mkdir()
    os.mkfifo(world / "work/pipe")
    for text, words in (
        ("old", "is Python 3.9, but hpcml needs Python 3.11 or newer"), ("nope", "no Python environment 'nope'"),
        ("./job.py", "cannot be executed"), ("empty", "not a Python environment"), ("pipe", "cannot be executed"),
        ("a\0b", "no Python environment"),
    ):  # fmt: skip
        with subtests.test(text=text), pytest.raises(HpcmlError, match=words) as caught:
            choose(python=text)
        assert ("looked for the folder" in caught.value.hint) == ("no Python environment" in words)
    mine = environment(world / "work/mine")
    for settings, image in (
        (("runtime.python=/usr/bin/python3",), ""), ((), "x.sif"), (("runtime.kind=image",), ""),
    ):  # fmt: skip
        with subtests.test(settings=settings, image=image), pytest.raises(UsageError, match="--python"):
            choose(*settings, python=str(mine), image=image)


def test_an_environment_whose_python_is_of_another_account(world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message names the file that the link leads to."""
    python, see = environment(world / "work/mine") / "bin/python", Path.stat

    def closed(path: Path, **how: bool) -> os.stat_result:
        if path == python:
            raise PermissionError(13, "Permission denied", str(path))
        return see(path, **how)

    monkeypatch.setattr(Path, "stat", closed)
    with pytest.raises(UsageError, match="Permission denied") as caught:
        choose(python="mine")
    assert f"{PYTHON} of " in caught.value.message


def test_the_active_environment_is_used_if_it_has_what_the_run_needs(
    world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = environment(world / "mine", "tabulate", *DASK)
    monkeypatch.setenv("VIRTUAL_ENV", str(mine))
    for late in (True, False):
        chosen = choose(late=late)
        assert chosen.loaded.site.runtime.python == f"{mine}/bin/python"
        assert chosen.loaded.layers.named("runtime", "python").origin.foreign, "it is not started here"
        assert pythons.origin(chosen.loaded) == "VIRTUAL_ENV, the active environment"
        assert chosen.notes == ()
    assert choose("runtime.python=/usr/bin/python3").loaded.site.runtime.python == "/usr/bin/python3"
    assert choose(image="x.sif").loaded.site.runtime.python == ""
    monkeypatch.setenv("VIRTUAL_ENV", sys.prefix)
    assert (choose().loaded.site.runtime.python, choose().notes) == ("", ())


def test_an_active_environment_that_is_not_used_is_named_with_the_line_to_type(
    world: Path, monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
) -> None:
    base = environment(world / "base", "tabulate", conda=True)
    (base / "condabin").mkdir()
    lacking = environment(world / "lacking", "dask")
    no_dask = environment(world / "no dask", "tabulate")
    old = environment(world / "old", "tabulate", version="3.9", conda=True)
    gone = world / "gone"
    pipe = environment(world / "pipe", "tabulate")
    (pipe / "pyvenv.cfg").unlink()
    os.mkfifo(pipe / "pyvenv.cfg")
    huge = environment(world / "huge", "tabulate")
    os.truncate(huge / "pyvenv.cfg", 1 << 40)
    for variable, prefix, late, why in (
        ("CONDA_PREFIX", base, True, "it is conda's base environment"),
        ("VIRTUAL_ENV", lacking, True, "it lacks tabulate"),
        ("VIRTUAL_ENV", no_dask, False, "it lacks dask, distributed, cryptography"),
        ("CONDA_PREFIX", old, True, "it is Python 3.9, but hpcml needs Python 3.11 or newer"),
        ("VIRTUAL_ENV", gone, True, "it has no bin/python that you can read"),
        ("VIRTUAL_ENV", pipe, True, "hpcml cannot read which packages it has"),
        ("VIRTUAL_ENV", huge, True, "hpcml cannot read which packages it has"),
    ):  # fmt: skip
        with subtests.test(why=why), monkeypatch.context() as patch:
            patch.setenv(variable, str(prefix))
            chosen = choose(late=late)
            assert chosen.loaded.site.runtime.python == ""
            (note,) = chosen.notes
            line = f"--python {shlex.quote(str(prefix))}"
            steps: tuple[str, ...] = ("install", line) if why.startswith("it lacks") else (f"use it: {line}",)
            if prefix in (old, gone):  # which --python refuses too
                steps = ()
                assert "--python" not in note
            assert note == says(f"hpcml does not use the active environment {prefix}, because {why}", *steps)


def test_an_inactive_environment_beside_the_script_is_named(
    world: Path, monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
) -> None:
    """Whatever it has; but not where the run uses it, or another Python that the user named."""
    (world / "work/venv").mkdir()
    (world / "work/venv/pyvenv.cfg").touch()
    assert choose().notes == (), "no environment"
    beside, other = environment(world / "work/.venv"), environment(world / "other", "tabulate")
    line = says(f"{beside} is not used, and it lacks tabulate", "install what it lacks", f"--python {beside}")
    assert (choose().notes, choose().always) == ((line,), (line,))
    (whole := beside / f"lib/python{VERSION}/site-packages/tabulate").mkdir()
    line = f"the environment {beside} is not used; the run uses {sys.executable}. To use it: --python {beside}"
    assert choose().notes == (line,)
    assert choose(late=False).notes[0] == says("lacks dask", "install", f"--python {beside}")
    with monkeypatch.context() as patch:
        patch.setattr(pythons, "too_old", lambda _: "is Python 3.9")
        (note,) = choose().notes
        assert note == says(f"{beside} is not used, and it is Python 3.9")
        assert "--python" not in note, "which refuses it too"
    whole.rmdir()
    for settings, values in (
        (("runtime.python=/usr/bin/python3",), {}), ((), {"image": "x.sif"}), ((), {"python": "/usr/bin/python3"}),
        ((), {"interpreter": ("/usr/bin/python3",)}), ((), {"form": Form.PROGRAM}),
    ):  # fmt: skip
        with subtests.test(settings=settings, values=values):
            assert not [note for note in choose(*settings, **values).notes if "not used" in note]
    with monkeypatch.context() as patch:
        patch.setattr(sys, "prefix", str(beside))
        assert choose().notes == ()
    for active in (beside, other):  # the first lacks tabulate, which another note says
        monkeypatch.setenv("VIRTUAL_ENV", str(active))
        assert not [note for note in choose().notes if "not used" in note]
    monkeypatch.delenv("VIRTUAL_ENV")
    monkeypatch.chdir(world)
    (world / "job.py").symlink_to("work/sub/job.py")
    (world / "work/sub").mkdir()
    (world / "work/sub/job.py").touch()
    environment(world / "venv")
    assert f"--python {world}/venv" in choose().notes[0], "of the current folder"


def test_of_two_active_environments_the_first_on_path_is_used_and_the_other_named(
    world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = environment(world / "one", "tabulate"), environment(world / "two", "tabulate", conda=True)
    monkeypatch.setenv("VIRTUAL_ENV", str(one))
    monkeypatch.setenv("CONDA_PREFIX", str(two))
    for first, second in ((one, two), (two, one)):
        monkeypatch.setenv("PATH", f"{first}/bin:{second}/bin:/usr/bin")
        chosen = choose()
        assert chosen.loaded.site.runtime.python == f"{first}/bin/python"
        assert f"To use it: --python {second}" in chosen.notes[0]
    (note,) = choose("runtime.python=/usr/bin/python3").notes
    assert f"because the run uses /usr/bin/python3 (--set). To use it: --python {two}" in note


def test_an_environment_that_another_account_may_change(world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is never used by itself; where the user types it, each submission says who it is."""
    mine = environment(world / "mine", "tabulate")
    monkeypatch.setenv("VIRTUAL_ENV", str(mine))
    mine.chmod(0o777)
    told = f"everybody can replace files in {mine}"
    chosen = choose()
    assert chosen.loaded.site.runtime.python == ""
    assert told in chosen.notes[0]
    typed = choose(python=str(mine))
    assert typed.loaded.site.runtime.python == f"{mine}/bin/python"
    assert typed.always[0].startswith(told)
    mine.chmod(0o755)
    (mine / "pyvenv.cfg").chmod(0o666)
    assert f"everybody can write to {mine}/pyvenv.cfg" in choose().notes[0]
    (mine / "pyvenv.cfg").chmod(0o644)
    packages_folder = mine / f"lib/python{VERSION}/site-packages"
    for mode, place, how in (
        (0o1777, packages_folder, "write to"),
        (0o777, packages_folder.parent, "replace files in"),
    ):
        place.chmod(mode)
        assert f"everybody can {how} {place}" in choose().notes[0]
        assert f"everybody can {how} {place}" in choose(python=str(mine)).always[0]
        place.chmod(0o755)
    assert choose().notes == ()
    conda = environment(world / "conda", conda=True)
    (world / "python").symlink_to(conda / f"bin/python{VERSION}")
    (conda / f"lib/python{VERSION}/site-packages").chmod(0o777)
    assert f"everybody can write to {conda}/lib" in environments.who_may_change(world / "python")
    if os.geteuid() == 0:
        os.chown(mine / "pyvenv.cfg", 12345, 12345)
        assert f"{mine}/pyvenv.cfg belongs to uid 12345" in choose().notes[0]


def test_an_environment_in_a_folder_that_every_node_has_of_its_own(
    world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = environment(world / "mine", "tabulate")
    monkeypatch.setattr(environments, "_OF_A_MACHINE", (str(mine),))
    monkeypatch.setenv("VIRTUAL_ENV", str(mine))
    assert choose().loaded.site.runtime.python == f"{mine}/bin/python", "all processes of the local site are here"
    told = f"{mine} is in {mine}, which every node has of its own"
    chosen = choose("scheduler=slurm")
    assert chosen.loaded.site.runtime.python == ""
    assert told in chosen.notes[0]
    assert choose("scheduler=slurm", python=str(mine)).always[0].startswith(told)


def test_programs_of_the_environment_come_first(world: Path) -> None:
    from hpcml.runs import script_or_program

    mine = environment(world / "mine")
    (mine / "bin/torchrun").touch(0o755)
    site = lookup.load("local", dict(os.environ), None)
    for words, expected in (
        (["--", "torchrun", "job.py"], f"{mine}/bin/torchrun"), (["--", "python", "job.py"], f"{mine}/bin/python"),
        (["--", "env", "job.py"], "env"),
    ):  # fmt: skip
        spec = RunRequest(script_or_program.code(words, Path.cwd()), python=str(mine))
        code = pythons.typed(site, spec, dry_run=False).spec.code
        assert (*code.interpreter, str(code.script))[0] == expected
        assert code.interpreter or code.programs == f"{mine}/bin"


def test_an_environment_is_read_without_being_started(world: Path) -> None:
    mine = environment(world / "mine", "one")
    for name in ("x.pth", "y.dist-info"):
        os.mkfifo(mine / f"lib/python{VERSION}/site-packages" / name)
    found = packages.Environment(f"{mine}/bin/python")
    assert (found.readable, found.certain, found.lacking(["one", "two", "os", "hpcml"])) == (True, True, ["two"])
    with pytest.raises(ScriptError, match=r"lacks the packages two, three") as caught:
        packages.check_packages(["one", "two", "three"], f"{mine}/bin/python", "here")
    assert f"{mine}/bin/python -m pip install two three" in caught.value.hint
    (mine / "pyvenv.cfg").write_text("home = /usr/bin\nuv = 0.9\ninclude-system-site-packages = false\n")
    with pytest.raises(ScriptError, match=r"lacks the package two") as caught:
        packages.check_packages(["two"], f"{mine}/bin/python", "here")
    assert f"uv pip install --python {mine}/bin/python two" in caught.value.hint
