"""Projects that find their files by ``__file__``: the same files and values as with plain Python."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from homes import HPCML, Here, here
from projects import PROJECTS, Project

pytestmark = pytest.mark.local
__all__ = ["here"]


def put(folder: Path, project: Project) -> Path:
    for name, text in project.files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        if name.endswith(".sh"):
            path.chmod(0o755)
    return folder


def tree(folder: Path) -> dict[str, str]:
    """Return what is below a folder: the text of files, where links lead, and folders."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if "__pycache__" not in path.parts:
            what = str(path.readlink()) if path.is_symlink() else path.read_text() if path.is_file() else "/"
            found[str(path.relative_to(folder))] = what
    return found


def submit(here: Here, folder: Path, project: Project) -> subprocess.CompletedProcess[str]:
    return subprocess.run([HPCML, "submit", "--wait", *project.words], cwd=folder / project.folder, text=True,
                          env=here.environment, capture_output=True, timeout=240, check=False)  # fmt: skip


@pytest.mark.parametrize("name", PROJECTS)
def test_files_and_values_are_as_with_plain_python(here: Here, tmp_path: Path, name: str) -> None:
    project = PROJECTS[name]
    alone, run = (put(tmp_path / one / "proj", project) for one in ("alone", "run"))
    words = [*project.words[1:]] if project.words[0] == "--" else [sys.executable, *project.words]
    plain = subprocess.run(words, cwd=alone / project.folder, text=True, capture_output=True, check=True, timeout=60)
    done = submit(here, run, project)
    assert done.returncode == 0, done.stderr
    assert done.stdout == plain.stdout
    assert tree(run) == tree(alone), done.stderr


def test_a_conflict_is_named_by_status_and_keeps_the_run_from_rm(here: Here, tmp_path: Path) -> None:
    project = PROJECTS["pathlib"]
    text = project.files["scripts/train.py"]
    mine = f"open({str(tmp_path / 'proj/results/r.json')!r}, 'w').write('mine')\n"  # somebody else, meanwhile
    files = {**project.files, "scripts/train.py": text + mine, "results/r.json": "before"}
    folder = put(tmp_path / "proj", Project(files))
    done = submit(here, folder, project)
    assert done.returncode == 0
    assert (folder / "results/r.json").read_text() == "mine"
    sentence = "Only the run's folder code/ has 1 file of the script: results/r.json (the original folder has another"
    assert sentence in done.stderr
    status = json.loads(here.run("status", "--json").stdout)
    assert [one["name"] for one in status["not_brought"]] == ["results/r.json"]
    refused = here.run("rm", "last")
    assert refused.returncode == 1
    assert "only the run's folder code/ has 1 file" in refused.stderr
    assert here.run("rm", "last", "--yes").returncode == 0


def test_a_killed_run_is_settled_by_the_next_status(here: Here, tmp_path: Path) -> None:
    text = PROJECTS["pathlib"].files["scripts/train.py"]
    kill = "import signal\nos.killpg(os.getpgid(os.getppid()), signal.SIGKILL)\n"
    project = Project({**PROJECTS["pathlib"].files, "scripts/train.py": text + kill})
    folder = put(tmp_path / "proj", project)
    done = submit(here, folder, project)
    assert done.returncode != 0
    status = json.loads(here.run("status", "--json").stdout)
    assert "torn-down" not in status["times"]
    assert status["brought"] == ["results/r.json"]
    assert status["original"] == str(folder)
    assert (folder / "results/r.json").read_text() == "6"
