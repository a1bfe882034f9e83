"""Projects that find their files by ``__file__``, on nodes, from the laptop, and with another account in the way."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

import lab_ssh
from conftest import Cluster, directory_of
from lab_state import wait_for
from labs import Lab
from laptop import Outside
from projects import PROJECTS, Project

pytestmark = pytest.mark.lab
FIVE = ("pathlib", "sibling", "source", "git", "again")
WRITE = """
import json, os, sys
for name, text in json.load(sys.stdin).items():
    os.makedirs(os.path.dirname(name) or ".", exist_ok=True)
    with open(name, "w") as file:
        file.write(text)
"""
TREE = """
import json, os
print(json.dumps({os.path.relpath(os.path.join(place, name)): open(os.path.join(place, name)).read()
                  for place, _, names in os.walk(".") for name in names if "__pycache__" not in place}))
"""


def put(lab: Lab, folder: Path, project: Project, node: str = "login") -> None:
    lab.exec(["mkdir", "-p", str(folder)], node=node)
    done = lab.exec([sys.executable, "-c", WRITE], node=node, cwd=folder, input=json.dumps(project.files))
    assert done.returncode == 0, done.stderr


def tree(lab: Lab, folder: Path, node: str = "login") -> dict[str, str]:
    done = lab.exec([sys.executable, "-c", TREE], node=node, cwd=folder)
    found: dict[str, str] = json.loads(done.stdout)
    return found


def plain(lab: Lab, folder: Path, project: Project) -> tuple[str, dict[str, str]]:
    """Return what a project prints with plain Python, and its files afterwards."""
    put(lab, folder, project)
    done = lab.exec([sys.executable, *project.words], cwd=folder / project.folder)
    assert done.returncode == 0, done.stderr
    return done.stdout, tree(lab, folder)


@pytest.mark.beside
@pytest.mark.parametrize("name", FIVE)
def test_files_and_values_on_a_node_are_as_with_plain_python(cluster: Cluster, name: str) -> None:
    project, place = PROJECTS[name], cluster.work / f"project-{name}"
    said, files = plain(cluster.lab, place / "alone", project)
    put(cluster.lab, place / "run", project)
    done = cluster.run("hpcml", "submit", "--wait", *project.words, cwd=place / "run" / project.folder)
    assert done.returncode == 0, done.stderr
    assert done.stdout == said
    assert tree(cluster.lab, place / "run") == files


@pytest.mark.beside
@pytest.mark.parametrize("name", [*FIVE, "relative"])
def test_a_laptop_fetches_the_files_and_does_not_send_them_again(cluster: Cluster, outside: Outside, name: str) -> None:
    project, place = PROJECTS[name], cluster.work / f"from-laptop-{name}"
    said, files = plain(outside.lab, place / "alone", project)
    folder = place / "proj"
    put(outside.lab, folder, project, lab_ssh.LAPTOP)

    def hpcml(*words: str) -> str:
        done = outside.lab.exec(["hpcml", "--host", "lab", *words], node=lab_ssh.LAPTOP, cwd=folder, timeout=150)
        assert done.returncode == 0, done.stderr
        runs.append(directory_of(done)) if words[0] == "submit" else None
        return done.stdout

    runs: list[Path] = []
    assert hpcml("submit", "--wait", *project.words) == said
    hpcml("fetch", runs[0].name, "fetched")
    expected = {name: text for name, text in files.items() if project.files.get(name) != text}
    there = tree(outside.lab, folder, lab_ssh.LAPTOP)
    own = project.files
    assert {name: text for name, text in there.items() if name in own} == own
    assert {name: text for name, text in there.items() if name.startswith("fetched/code/")} == {
        f"fetched/code/{name}": text for name, text in expected.items()
    }
    hpcml("submit", "--wait", *project.words)
    assert not (runs[1] / "code/fetched").exists()
    hpcml("rm", runs[0].name, "--yes")


def test_another_account_cannot_lead_the_files_elsewhere(cluster: Cluster) -> None:
    """In a project that is open to all, mallory puts a link and a folder of hers where results will go."""
    text = (
        "import time, hpcml\nfrom pathlib import Path\nROOT = Path(__file__).resolve().parent.parent\n"
        "for name in ('results', 'logs', 'own'):\n    (ROOT / name).mkdir()\n"
        "    (ROOT / name / 'authorized_keys').write_text('x')\n"
        "while not (hpcml.run.out / 'go').exists():\n    time.sleep(0.1)\n"
    )
    place = cluster.work / "open-project"
    put(cluster.lab, place, Project({"scripts/train.py": text}))
    secret = cluster.work / "secret"
    cluster.run("mkdir", "-p", str(secret))
    cluster.run("chmod", "777", str(place))
    for folder in (cluster.home, cluster.work.parent, cluster.work):
        cluster.run("chmod", "o+x", str(folder))
    done = cluster.run("hpcml", "submit", "--json", "scripts/train.py", cwd=place)
    assert done.returncode == 0, done.stderr
    directory = Path(json.loads(done.stdout)["directory"])
    assert wait_for((directory / "code/own/authorized_keys").exists, 60)
    planted = cluster.lab.exec(
        ["sh", "-c", f"ln -s '{secret}' '{place}/results' && mkdir -m 777 '{place}/logs'"], user="mallory", cwd="/"
    )
    assert planted.returncode == 0, planted.stderr
    cluster.run("touch", str(directory / "out" / "go"))
    status = cluster.wait_status(directory)
    assert status["exit_status"] == 0
    record = json.loads((directory / "written.json").read_text())  # written before the end is
    assert {name for name, *_ in record["left"]} == {"results/authorized_keys", "logs/authorized_keys"}
    assert list(record["brought"]) == ["own/authorized_keys"]
    assert not list(secret.iterdir())
    assert not list((place / "logs").iterdir())
    answer = json.loads(cluster.run("hpcml", "status", directory.name, "--json").stdout)
    assert "belongs to hpcml-mallory" in " ".join(one["why"] for one in answer["not_brought"])
