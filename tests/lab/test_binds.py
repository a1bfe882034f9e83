"""Folders with odd names inside an image: each is there and the right one, or refused in words before Slurm is asked."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from beside import PART
from conftest import Cluster
from hpcml import errors

pytestmark = pytest.mark.lab

ON_N1 = ("--nodes", "1", "--nodelist", "n1", *PART)

ODD = ("plain", "a space", " before", 'a"quote', "it's", "a=sign", "ä", "a$HOME", "a`id`", "a;b", "a*b", "#a", "%a",
       "-a", "a&b", "a|b", "~a", "(a)", "[a]", "{a}")  # fmt: skip
REFUSED = ("a,comma", "a\\backslash", "behind ")
LOOK = """
import json, pathlib, sys
folder = pathlib.Path(sys.argv[1])
found = {path.name: (path / "file").read_text() for path in folder.iterdir() if (path / "file").exists()}
pathlib.Path("made here").touch()
print(json.dumps(found))
"""


@pytest.mark.beside
def test_folders_with_odd_names(cluster: Cluster, image: Path) -> None:
    """All of them as runtime.binds in one run; submitted from one of them, with the runs in another and scratch in a third."""
    top = cluster.write("binds/x", "").parent
    for name in ODD:
        cluster.write(f"binds/{name}/file", name)
    script = cluster.write("binds/a\"quote/it's a script.py", LOOK)
    binds = json.dumps([str(top / name) for name in ODD])
    done = cluster.run(
        "hpcml", "submit", *ON_N1, "--image", str(image), "--wait", "--set", f"runtime.binds={binds}",
        "--set", f"paths.runs={top}/a `id` $HOME/runs", "--set", f"paths.scratch={top}/a;b", str(script), str(top),
        cwd=script.parent, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {name: name for name in ODD}
    assert (script.parent / "made here").exists()


@pytest.mark.parametrize("name", REFUSED)
def test_what_bind_would_divide_is_refused(cluster: Cluster, image: Path, name: str) -> None:
    script = cluster.write(f"{name}/script.py", "print('ran')")
    asked: tuple[tuple[Path, tuple[str, ...]], ...] = (
        (script.parent, ()),
        (cluster.work, ("--set", f"runtime.binds={json.dumps([str(script.parent)])}")),
        (cluster.work, ("--set", f"paths.scratch={script.parent}")),
        (cluster.work, ("--set", f"paths.runs={script.parent}")),
    )
    for folder, options in asked if name == name.rstrip() else asked[:2]:  # --set takes blanks off a bare text
        done = cluster.run("hpcml", "submit", "--image", str(image), *options, "--wait", str(script), cwd=folder)
        assert done.returncode == errors.CONFIG, done.stderr
        says = ("cannot be bound into an image", "is no bind", "The folder for runs holds '\\'")
        assert any(words in done.stderr for words in says), done.stderr
        assert script.parent.name in done.stderr.replace("\\\\", "\\")
    before = cluster.run("squeue", "--me", "--noheader").stdout
    assert before == ""


@pytest.mark.beside
@pytest.mark.parametrize("name", ["a space.sif", "a,comma.sif", "a:colon.sif", "a$HOME.sif"])
def test_an_image_s_own_name_is_free(cluster: Cluster, image: Path, name: str) -> None:
    link = cluster.work / name
    cluster.run("ln", "-sf", str(image), str(link))
    ended = cluster.submit("print('ran')", *ON_N1, "--image", str(link))
    assert (ended.code, ended.out) == (0, "ran\n"), ended.err


@pytest.mark.beside
def test_a_tmpdir_that_cannot_be_bound(cluster: Cluster, image: Path) -> None:
    """It is known on the node only: the profile's setup lines may set it."""
    setup = 'runtime.setup=["export TMPDIR=/tmp/a,b; mkdir -p /tmp/a,b"]'
    ended = cluster.submit("print('ran')", *ON_N1, "--image", str(image), "--set", setup)
    cluster.run("rmdir", "/tmp/a,b", node="n1")
    assert ended.code == errors.IMAGE, ended.err
    assert "TMPDIR cannot be bound" in ended.err
    assert "/tmp/a,b" in ended.err


@pytest.mark.beside
def test_the_host_s_devices_are_inside(cluster: Cluster, image: Path) -> None:
    """InfiniBand's /dev/infiniband is one of them; nobody has to bind it."""
    code = "import json, os; print(json.dumps(sorted(os.listdir('/dev'))))"
    outside = set(json.loads(cluster.run("python", "-c", code, node="n1").stdout))
    ended = cluster.submit(code, *ON_N1, "--image", str(image))
    assert outside - set(json.loads(ended.out.splitlines()[-1])) <= {"core", "initctl", "log"}


@pytest.mark.beside
def test_a_read_only_bind_to_another_place(cluster: Cluster, image: Path) -> None:
    data = cluster.write("the data/file", "seen").parent
    script = (
        "import pathlib\nplace = pathlib.Path('/mnt/its data')\nprint((place / 'file').read_text())\n"
        "try:\n    (place / 'new').touch()\nexcept OSError as error:\n    print(error.strerror)\n"
    )
    bind = json.dumps([f"{data}:/mnt/its data:ro"])
    ended = cluster.submit(script, *ON_N1, "--image", str(image), "--set", f"runtime.binds={bind}")
    assert ended.out.splitlines()[-2:] == ["seen", "Read-only file system"], ended.err
