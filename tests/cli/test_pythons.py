"""The Python of a run in what is shown and recorded, and in what is submitted again."""

from __future__ import annotations

import json
import os
import shlex
import sys
from pathlib import Path

from hpcml import errors
from remote_world import Laptop
from tests.said import says
from world import World

LOCK = 'version = 1\n[[package]]\nname = "x"\nsource = { git = "y" }\n'  # of a package that must be built
MODULE = 'module() {{ echo loading; [ "$2" = own ] && export PATH={}/bin:$PATH; }}'
SLURM = ("--site", "slurm")
VERSION = f"python{sys.version_info[0]}.{sys.version_info[1]}"


def environment(folder: Path, *modules: str) -> Path:
    """Make the files of a virtual environment; return its folder."""
    packages = folder / "lib" / VERSION / "site-packages"
    packages.mkdir(parents=True)
    (folder / "bin").mkdir()
    (folder / "pyvenv.cfg").write_text("home = /usr/bin\ninclude-system-site-packages = false\n")
    (folder / "bin/python").symlink_to(os.path.realpath(sys.executable))
    for module in modules:
        (packages / module).mkdir()
    return folder


def recorded(directory: Path) -> tuple[str, str]:
    """Return the Python of a run, and who named it, after the batch script was seen to use it."""
    made = json.loads((directory / "plan.json").read_text())
    assert made["python"] == made["steps"][-1]["command"][0]
    return made["python"], made["python_from"]


def test_a_named_python_is_shown_recorded_and_kept_by_rerun(world: World) -> None:
    python = str(environment(world.project / "mine") / "bin/python")
    done = world.run("submit", *SLURM, "--python", "mine", "job.py")
    assert done.returncode == 0, done.stderr
    assert f"python     {python} (--python)" in done.stderr
    assert f"{python} (--python)" in world.run("submit", *SLURM, "--python", "mine", "--dry-run", "job.py").stdout
    first = world.directory()
    assert recorded(first) == (python, "--python")
    again = world.made("rerun", first.name, cwd=world.home)
    assert recorded(again) == (python, "--python")
    assert json.loads((again / "request.json").read_text())["site"]["runtime.python"]["by"] == "line", (
        "not started here"
    )
    other = str(environment(world.home / "other") / "bin/python")
    assert recorded(world.made("rerun", again.name, "--python", "other", cwd=world.home)) == (other, "--python")
    asked = world.answers("status", first.name)["asked"]
    assert (asked["python"], asked["python_from"]) == (python, "--python")
    assert f"Python {python} (--python)" in " ".join(world.run("status", first.name).stdout.split())


def test_a_repeated_program_has_the_environment_first_on_path(world: World) -> None:
    mine, other = (environment(world.project / name) / "bin" for name in ("mine", "other"))

    def programs(*words: str) -> str:
        return str(json.loads((world.made(*words) / "plan.json").read_text())["inside"]["code"]["programs"])

    assert programs("submit", *SLURM, "--ranks", "1", "--python", "mine", "--", "bash", "x.sh") == str(mine)
    assert programs("rerun", "last") == str(mine)
    assert programs("rerun", "last", "--python", "other") == str(other)
    assert programs("rerun", "last", "--set", f"runtime.python={mine}/python") == ""


def test_the_active_environment_is_kept_by_rerun_in_another_shell(world: World) -> None:
    mine = environment(world.project / "mine")
    world.environment["VIRTUAL_ENV"] = str(mine)
    first = world.submit()
    assert recorded(first) == (f"{mine}/bin/python", "VIRTUAL_ENV, the active environment")
    world.environment["VIRTUAL_ENV"] = str(environment(world.project / "other"))
    assert recorded(world.made("rerun", first.name)) == recorded(first)
    del world.environment["VIRTUAL_ENV"]
    assert recorded(world.made("rerun", first.name)) == recorded(first)


def test_hpcml_s_own_python_is_kept_in_a_shell_with_an_active_environment(world: World) -> None:
    """By rerun, by rerun of that, and by a sweep; an option still counts."""
    first = world.submit()
    world.run("sweep", *SLURM, "--name", "s", "--grid", "k=1", "job.py")
    mine = environment(world.project / "mine")
    world.environment["VIRTUAL_ENV"] = str(mine)
    for words in (
        ("rerun", first.name),
        ("rerun", "last"),
        ("sweep", *SLURM, "--name", "s", "--grid", "k=1,2", "job.py"),
    ):
        before = set(world.left())
        done = world.run(*words)
        (new,) = set(world.left()) - before
        assert recorded(world.runs / new) == (sys.executable, "")
        assert "because the repeated run used hpcml's own" in " ".join(done.stderr.split())
    assert recorded(world.made("rerun", first.name, "--python", "mine")) == (f"{mine}/bin/python", "--python")


def test_an_inactive_environment_beside_the_script_is_named_at_each_submission(world: World) -> None:
    """Once in the record too; status names the Python that the run has."""
    mine = environment(world.project / ".venv")
    for words in (("--dry-run",), ("--dry-run", "--json"), ("--json",)):
        done = world.run("submit", *SLURM, *words, "job.py")
        assert " ".join(done.stderr.split()).count(f"To use it: --python {shlex.quote(str(mine))}") == 1
    run = world.directory()
    assert sum(str(mine) in note for note in json.loads((run / "submission.json").read_text())["notes"]) == 1
    assert world.answers("status", run.name)["asked"]["python"] == sys.executable
    assert "is not used" not in world.run("submit", *SLURM, "--python", ".venv", "job.py").stderr


def test_a_program_s_name_is_that_of_the_job_after_its_modules(world: World) -> None:
    """The modules run here, but not if a project's file names them; one that fails is quoted."""
    apps = environment(world.home / "apps")
    setup = MODULE.format(shlex.quote(str(apps)))
    words = ("--set", f"runtime.setup={json.dumps([setup])}", "--set", 'runtime.modules=["own"]', "--python", "python")
    assert recorded(world.submit(*words)) == (f"{apps}/bin/python", "--python")
    done = world.run("submit", *SLURM, *words[:2], "--set", 'runtime.modules=["other"]', *words[4:], "job.py")
    assert done.returncode == errors.USAGE
    assert " ".join(done.stderr.split()) == says("runtime.setup and runtime.modules failed", "(--python python)")
    assert "| loading" in done.stderr
    world.script.with_name("hpcml.toml").write_text(f"[runtime]\nsetup = [{json.dumps(setup)}]\nmodules = ['own']\n")
    path = f"{environment(world.home / 'shell')}/bin:{world.environment['PATH']}"
    done = world.run("submit", *SLURM, "--dry-run", "--python", "python", "job.py", env={"PATH": path})
    assert f"{world.home}/shell/bin/python (--python)" in done.stdout
    assert "hpcml.toml: runtime.setup, so it looked on" in " ".join(done.stderr.split())


def test_a_sweep_that_is_continued_keeps_its_python(world: World) -> None:
    mine = environment(world.project / "mine", "dask", "distributed", "cryptography")
    other = environment(world.project / "other", "dask", "distributed", "cryptography")
    named = (f"{mine}/bin/python", "VIRTUAL_ENV, the active environment")

    def swept(grid: str, *words: str) -> tuple[str, str]:
        before = {name for name in world.left() if name.startswith("s-")}
        done = world.run("sweep", *SLURM, "--name", "s", "--grid", grid, *words, "job.py")
        assert done.returncode == 0, done.stderr
        (new,) = {name for name in world.left() if name.startswith("s-")} - before
        return recorded(world.runs / new)

    world.environment["VIRTUAL_ENV"] = str(mine)
    assert swept("k=1") == named
    world.environment["VIRTUAL_ENV"] = str(other)
    assert [swept("k=1,2"), swept("k=1,2,3")] == [named, named]
    assert swept("k=1,2,3,4", "--python", "other") == (f"{other}/bin/python", "--python")


def test_a_dask_run_whose_python_lacks_dask_is_refused(world: World) -> None:
    python = environment(world.project / "mine") / "bin/python"
    world.script.write_text("from dask.distributed import Client\n")
    done = world.run("submit", *SLURM, "--python", "mine", "job.py")
    assert done.returncode == errors.REFUSED, done.stderr
    said = " ".join(done.stderr.split())
    assert "lacks the packages dask, distributed, cryptography (--python). Nothing was submitted." in said
    assert "-m pip install dask distributed cryptography. To use another Python: --python PATH." in said
    assert world.left() == []
    done = world.run("submit", *SLURM, "--python", "mine", "--dry-run", "job.py")
    assert done.returncode == 0
    assert "the submission would be refused" in " ".join(done.stderr.split())
    assert world.run("submit", *SLURM, "--python", "mine", "--ranks", "1", "job.py").returncode == errors.REFUSED
    world.script.write_text("print(1)\n")
    assert world.run("submit", *SLURM, "--python", "mine", "--ranks", "1", "job.py").returncode == 0
    (python.parents[1] / f"lib/{VERSION}/site-packages/dask").mkdir()
    done = world.run("submit", *SLURM, "--python", "mine", "--set", "workers.start=early", "job.py")
    assert "lacks the packages distributed, cryptography" in " ".join(done.stderr.split())


def test_a_refusal_names_other_environments(world: World) -> None:
    """The active one and why it is not used, the project's uv.lock, and a .venv beside the script that has the module."""
    (world.project / "pyproject.toml").write_text('[project]\nname = "mine"\n')
    (world.project / "uv.lock").write_text(LOCK)
    active = environment(world.home / "active")
    world.script.write_text("import tabulate_nobody_has\n")
    done = world.run("submit", *SLURM, "job.py", env={"VIRTUAL_ENV": str(active)})
    assert done.returncode == errors.REFUSED
    said = " ".join(done.stderr.split())
    assert f"does not use the active environment {active}, because it lacks tabulate_nobody_has" in said
    assert "because uv must build x" in said
    assert said.index("uv must build") < said.index("The script imports 'tabulate_nobody_has'")
    (world.project / "uv.lock").unlink()
    mine = environment(world.project / ".venv", "tabulate_nobody_has")
    done = world.run("submit", *SLURM, "job.py")
    assert f"The environment {mine} has it. To use it: --python {shlex.quote(str(mine))}." in " ".join(
        done.stderr.split()
    )
    world.script.write_text("import tabulate_nobody_has, json\nfrom dask.distributed import Client\n")
    said = " ".join(world.run("submit", *SLURM, "job.py").stderr.split())
    step = f"{shlex.quote(f'{mine}/bin/python')} -m pip install dask distributed cryptography."
    assert said.endswith(f"To use it: --python {shlex.quote(str(mine))}. First install what it lacks: {step}")
    dry = world.run("submit", *SLURM, "--dry-run", "job.py", env={"VIRTUAL_ENV": str(active)})
    assert " ".join(dry.stderr.split()).count("does not use the active environment") == 1


def test_pythonpath_that_hides_dask_is_named_before_the_queue(world: World) -> None:
    environment(world.project / "mine", "dask", "distributed", "cryptography")
    (world.home / "old/dask").mkdir(parents=True)
    (world.home / "old/dask/__init__.py").touch()
    words = ("submit", *SLURM, "--python", "mine", "--set", "workers.start=early", "--dry-run", "job.py")
    done = world.run(*words, env={"PYTHONPATH": str(world.home / "old")})
    assert done.returncode == 0, done.stderr
    assert "whose dask hides the dask of the run's Python: remove this folder from PYTHONPATH" in " ".join(
        done.stderr.split()
    )
    assert "hides" not in world.run(*words).stderr


def test_from_a_laptop_only_the_option_counts(laptop: Laptop) -> None:
    """Not what the login shell activates there; and not what is active on the laptop."""
    mine = environment(laptop.far / "mine")
    laptop.tell(VIRTUAL_ENV=str(mine))
    laptop.world.environment["VIRTUAL_ENV"] = str(environment(laptop.world.home / "other"))
    done = laptop.run("submit", "--dry-run", "job.py")
    assert done.returncode == 0, done.stderr
    assert "VIRTUAL_ENV" not in done.stdout + done.stderr
    assert "active environment" not in done.stdout + done.stderr
    done = laptop.run("submit", "--dry-run", "--python", "mine", "job.py")
    assert f"{mine}/bin/python (--python)" in done.stdout, done.stderr
    for words in (("submit", "--python", "mine", "job.py"), ("rerun", "last")):
        done = laptop.run(*words)
        assert done.returncode == 0, done.stderr
        assert f"{mine}/bin/python (--python)" in done.stderr


def test_a_laptop_sends_a_uv_project_and_names_a_lock_that_it_does_not_send(laptop: Laptop) -> None:
    """uv is called on the login node, for what was sent."""
    project = laptop.world.project
    (project / "pyproject.toml").write_text('[project]\nname = "mine"\n')
    (project / "uv.lock").write_text("version = 1\n")
    (project / "scripts").mkdir()
    (project / "scripts/job.py").write_text("print(1)\n")
    done = laptop.run("submit", "--dry-run", "scripts/job.py")
    assert "uv.lock of the project leads above" in " ".join(done.stderr.split())
    assert "uv, which makes this environment" in done.stderr
    typed = laptop.run("submit", "--dry-run", "--python", "python3", "scripts/job.py")
    assert f"hpcml does not send {project}/uv.lock" in " ".join(typed.stderr.split())
    uv = laptop.far.parent / "far-bin/uv"
    made = shlex.quote(str(environment(laptop.far / "made", "dask")))
    uv.write_text(f'#!/bin/sh\ncp -r {made} "$UV_PROJECT_ENVIRONMENT"\n')
    uv.chmod(0o755)
    done = laptop.run("submit", "--dry-run", "job.py")
    assert "lets uv make the environment of" in done.stderr
    laptop.world.bin.joinpath("cp").symlink_to("/bin/cp")
    done = laptop.run("submit", "job.py")
    assert done.returncode == 0, done.stderr
    assert f"{laptop.far}/.hpcml/runs/.environments/" in done.stderr
