"""The environment that a script or its project describes: what uv is asked for, and what it is never asked for.

uv is a program here that writes down its words and makes an environment's files, or fails as uv does.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from hpcml.config_trust import Origin
from hpcml.errors import HpcmlError, ScriptError, StorageError
from hpcml.request.record import RunRequest
from hpcml.runs import pythons, uv_environments
from hpcml.sites import lookup
from tests.said import says

VERSION = f"python{sys.version_info[0]}.{sys.version_info[1]}"
SCRIPT = """# /// script
# requires-python = ">=3.11"
# dependencies = ["tabulate", "numpy>=2; python_version < '4'"]
# ///
import tabulate
"""
LOCK = """version = 1
[[package]]
name = "tabulate"
version = "0.9.0"
source = { registry = "https://index" }
[[package]]
name = "mine"
version = "0.1"
source = { virtual = "." }
"""
UV = f"""#!{sys.executable}
import json, os, pathlib, sys
with open(os.environ["CALLS"], "a") as calls:
    calls.write(json.dumps(sys.argv[1:]) + "\\n")
if os.environ.get("FAILS"):
    sys.exit(os.environ["FAILS"])
folder = pathlib.Path(os.environ["VIRTUAL_ENV"])
assert os.environ["UV_PROJECT_ENVIRONMENT"] == str(folder) and not folder.exists()
(folder / "bin").mkdir(parents=True)
(folder / "bin/python").symlink_to(os.path.realpath(sys.executable))
(folder / "pyvenv.cfg").write_text("uv = 1\\ninclude-system-site-packages = false\\n")
for name in os.environ["HAS"].split():
    (folder / "lib/{VERSION}/site-packages" / name).mkdir(parents=True)
"""


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder below a home, with uv on PATH."""
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX", "PYTHONPATH", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    programs, work = tmp_path / "bin", tmp_path / "home/work"
    programs.mkdir()
    work.mkdir(parents=True)
    (programs / "uv").write_text(UV)
    (programs / "uv").chmod(0o755)
    for name, value in (
        ("HOME", work.parent), ("PATH", f"{programs}:/usr/bin:/bin"), ("CALLS", tmp_path / "calls"), ("HAS", "tabulate"),
        ("HPCML_SYSTEM_CONFIG", tmp_path / "etc"),
    ):  # fmt: skip
        monkeypatch.setenv(name, str(value))
    monkeypatch.chdir(work)
    return work


def calls(work: Path) -> list[list[str]]:
    file = work.parents[1] / "calls"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def choose(script: str = "job.py", *, late: bool = True, dry_run: bool = False, python: str = "") -> pythons.Chosen:
    site = lookup.load("local", dict(os.environ), None)
    spec = RunRequest.of(Path(script).resolve(), (), Path.cwd(), python=python)
    decision = pythons.typed(site, spec, dry_run=dry_run)
    return decision if spec.python else pythons.choose(site, spec, late, dry_run=dry_run)


def python_of(chosen: pythons.Chosen) -> str:
    return chosen.loaded.site.runtime.python


def project(folder: Path, lock: str = LOCK, python: str = ">=3.11") -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "pyproject.toml").write_text(f'[project]\nname = "mine"\nrequires-python = "{python}"\n')
    (folder / "uv.lock").write_text(lock)
    (folder / "job.py").write_text("import tabulate\n")
    return folder


def test_the_metadata_of_a_script_is_read_with_any_line_ends_and_in_a_long_script(tmp_path: Path) -> None:
    """Otherwise the run would silently have another environment."""
    script = tmp_path / "job.py"
    for text in (SCRIPT.replace("\n", "\r\n"), "x = 1\n" * 200_000 + SCRIPT):
        script.write_bytes(text.encode())
        assert (uv_environments.metadata(script) or {}).get("requires-python") == ">=3.11"


def test_uv_makes_the_environment_of_a_script_once(work: Path) -> None:
    (work / "job.py").write_text(SCRIPT)
    dry = choose(dry_run=True)
    assert calls(work) == []
    assert "lets uv make the environment" in dry.notes[0]
    chosen = choose()
    (words,) = calls(work)
    assert words == ["sync", "--script", str(work / "job.py"), "--active", "--python", ">=3.11,>=3.11", "--no-build",
                     "--no-progress", "--no-config"]  # fmt: skip
    python = Path(python_of(chosen))
    assert python.parents[2] == work.parent / ".hpcml/runs/.environments"
    assert pythons.origin(chosen.loaded) == "inline metadata of job.py, by uv"
    assert chosen.loaded.layers.named("runtime", "python").origin is Origin.PROJECT, "it is not started here"
    assert [python_of(choose()), python_of(choose(dry_run=True))] == [str(python)] * 2
    assert len(calls(work)) == 1, "an environment that is complete is not looked into"
    (work / "job.py.lock").write_text(LOCK)
    (work.parent / ".config/uv").mkdir(parents=True)
    (work.parent / ".config/uv/uv.toml").touch()
    assert python_of(choose()) != str(python)
    assert "--frozen" in calls(work)[1]
    assert calls(work)[1][-2:] == ["--config-file", f"{work.parent}/.config/uv/uv.toml"]
    assert python_of(choose(python="/usr/bin/python3")) == "/usr/bin/python3"


def test_a_project_is_its_venv_or_what_uv_makes_of_its_lock(work: Path) -> None:
    project(work)
    (work / "scripts").mkdir()
    (work / "scripts/job.py").write_text("import tabulate\n")
    chosen = choose("scripts/job.py")
    (words,) = calls(work)
    assert words[:6] == ["sync", "--project", str(work), "--frozen", "--no-install-project", "--no-install-workspace"]
    assert "--no-build" in words
    assert pythons.origin(chosen.loaded) == f"{work}/uv.lock, by uv"
    packages = work / ".venv/lib" / VERSION / "site-packages"
    packages.mkdir(parents=True)
    (work / ".venv/bin").mkdir()
    (work / ".venv/bin/python").symlink_to(os.path.realpath(sys.executable))
    (work / ".venv/pyvenv.cfg").write_text("include-system-site-packages = false\n")
    (packages / "tabulate").mkdir()
    (packages / "tabulate-0.9.0.dist-info").mkdir()
    chosen = choose()
    assert (python_of(chosen), chosen.notes) == (f"{work}/.venv/bin/python", ())
    (packages / "tabulate-0.9.0.dist-info").rename(packages / "tabulate-0.8.9.dist-info")
    (note,) = choose().notes
    assert f"differs from uv.lock: tabulate 0.8.9 (locked: 0.9.0). To update it: uv sync --project {work}" in note
    (packages / "tabulate").rmdir()
    chosen = choose()
    assert (python_of(chosen), len(calls(work))) == ("", 1)
    assert chosen.notes[0] == says(
        "uses hpcml's own Python", f"does not use the project {work}, because it lacks tabulate"
    )


def test_the_project_itself_is_not_built(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `uv init` makes projects: uv leaves out what has the project's name, and nothing else."""
    lock = LOCK.replace("{ virtual", "{ editable")
    project(work, lock)
    chosen = choose()
    assert pythons.origin(chosen.loaded) == f"{work}/uv.lock, by uv"
    (work / "job.py").write_text("import tabulate, mine\n")
    (note,) = choose().notes
    assert "because it lacks mine; " in note
    assert note.endswith(f"uv sync --project {work}")
    project(work, lock.replace('"mine"', '"other"'))
    assert "uv must build other" in choose().notes[0]
    project(work, lock.replace('"mine"', '"my-own"'))
    (work / "pyproject.toml").write_text('[project]\nname = "My.Own"\n')
    assert pythons.origin(choose().loaded) == f"{work}/uv.lock, by uv"


def test_a_project_folder_that_is_typed(work: Path) -> None:
    project(work / "other")
    (work / "job.py").write_text("print(1)\n")
    dry = choose(python="other", dry_run=True)
    assert [note for note in dry.notes if "lets uv make" not in note] == []
    chosen = choose(python="other")
    assert "/.environments/" in python_of(chosen)
    assert pythons.origin(chosen.loaded) == "--python"
    project(work / "built", LOCK.replace('virtual = "."', 'editable = "."').replace('"mine"', '"other"'))
    with pytest.raises(ScriptError, match="uv must build other") as caught:
        choose(python="built")
    assert f"uv sync --project {work}/built" in caught.value.hint


BUILT = (
    "# dependencies = ['x @ file:///tmp/x']", "# dependencies = ['x @ git+https://x/y']",
    "# [tool.uv.sources]\n# x = { path = '../x', editable = true }", "# [tool.uv.sources]\n# x = { workspace = true }",
    "# [tool.uv.sources]\n# x = [{ git = 'https://x' }]", "# [tool.uv]\n# keyring-provider = 'subprocess'",
    "# [tool.uv]\n# override-dependencies = ['x @ file:///tmp/x']",
)  # fmt: skip


def test_nothing_of_a_description_is_built_or_started(work: Path, subtests: pytest.Subtests) -> None:
    """uv builds editable packages also with --no-build, and takes a path for a version of Python."""
    script = work / "job.py"
    for lines in BUILT:
        with subtests.test(lines=lines):
            script.write_text(f"# /// script\n{lines}\n# ///\n")
            with pytest.raises(ScriptError, match=r"uv must build x|its metadata sets tool\.uv\.") as caught:
                choose()
            assert "uv sync --script" in caught.value.hint
    assert calls(work) == []
    for text in (f"{work}/evil", "pypy", "3.12 --script x", "cpython@/x"):
        with subtests.test(python=text):
            script.write_text(f"# /// script\n# requires-python = {json.dumps(text)}\n# ///\n")
            choose()
            words = calls(work)[-1]
            assert words[words.index("--python") + 1] == ">=3.11"
    script.unlink()
    for source in ("editable = 'x'", "directory = 'x'", "git = 'https://x'", "path = 'x.tar.gz'"):
        with subtests.test(source=source):
            project(work, LOCK.replace('virtual = "."', source))
            chosen = choose()
            assert python_of(chosen) == ""
            assert "uv must build mine" in chosen.notes[0]
            assert f"uv sync --project {work}" in chosen.notes[0]
    project(work, python=f"{work}/evil")
    (work / ".python-version").write_text(f"{work}/evil\n")
    choose()
    words = calls(work)[-1]
    assert words[words.index("--python") + 1] == ">=3.11"


def test_what_fails_is_told_with_the_line_to_type(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (work / "job.py").write_text(SCRIPT)
    with monkeypatch.context() as patch:
        patch.setenv("FAILS", "error: building from source is disabled")
        with pytest.raises(ScriptError, match="uv could not make the environment: it exited with status 1") as caught:
            choose()
    assert caught.value.quote == ("error: building from source is disabled",)
    assert f"uv sync --script {work}/job.py" in caught.value.hint
    folder = work.parent / ".hpcml/runs/.environments"
    assert os.listdir(folder) == []
    with monkeypatch.context() as patch:
        patch.setenv("HAS", "tabulate")
        with pytest.raises(ScriptError, match="lacks the packages dask, distributed, cryptography") as caught:
            choose(late=False)
        assert "uv add --script job.py dask distributed cryptography" in caught.value.hint
    with monkeypatch.context() as patch:
        patch.setenv("PATH", "/usr/bin:/bin")
        assert "/.environments/" in python_of(choose()), "it is there"
        (work / "job.py").write_text(SCRIPT.replace("tabulate", "other"))
        with pytest.raises(ScriptError, match="uv, which makes this environment, is not on PATH"):
            choose()
    (work / "job.py").write_text("# /// script\n# dependencies = [\n# ///\n")
    with pytest.raises(ScriptError, match="not valid TOML"):
        choose()
    project(work, LOCK.replace("tabulate", "other"))
    (note,) = choose(late=False).notes
    assert "uv.lock lacks dask, distributed, cryptography" in note


def test_attacks_by_the_files_of_a_description(work: Path, subtests: pytest.Subtests) -> None:
    (work / "job.py").write_text(SCRIPT)
    folder = work.parent / ".hpcml/runs/.environments"
    folder.parent.mkdir(parents=True)
    (work / "elsewhere").mkdir()
    folder.symlink_to(work / "elsewhere")
    with pytest.raises(StorageError, match="not yours, or is a link"):
        choose()
    folder.unlink()
    made = Path(python_of(choose())).parents[1]
    (link,) = (path for path in folder.iterdir() if path.is_symlink())
    for target in ("/usr", "../../evil", str(made)):
        with subtests.test(target=target):
            link.unlink()
            link.symlink_to(target)
            assert python_of(choose()) != f"{target}/bin/python"
    count = len(calls(work))
    (work / "job.py").write_text("import tabulate\n")
    for name in ("uv.lock", "pyproject.toml"):
        with subtests.test(name=name):
            for write in (
                os.mkfifo,
                lambda path: Path(path).write_bytes(b"\xff\0"),
                lambda path: os.truncate(path, 1 << 40),
            ):
                project(work)
                if write is not os.mkfifo:
                    write(str(work / name))
                else:
                    (work / name).unlink()
                    os.mkfifo(work / name)
                try:
                    choose(dry_run=True)
                except HpcmlError as error:
                    pytest.fail(str(error))
                (work / name).unlink()
    project(work)
    (work / "uv.lock").chmod(0o666)
    (note,) = choose().notes
    assert "does not use the project" in note
    assert "everybody can write to the file" in note
    (work / "uv.lock").chmod(0o644)
    if os.geteuid() == 0:
        os.chown(work / "pyproject.toml", 12345, 12345)
        assert "the file belongs to uid 12345" in choose().notes[0]
    assert len(calls(work)) == count


def test_a_home_is_no_project(work: Path) -> None:
    project(work.parent)
    (work / "job.py").write_text("print(1)\n")
    spec = RunRequest.of(work / "job.py", (), work)
    assert uv_environments.project_of(spec.code) is None
