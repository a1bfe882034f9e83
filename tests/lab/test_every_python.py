"""Each way to a Python of one's own, with one command: on the login node, and from the laptop.

A uv project and a script with inline metadata with a real uv, which takes packages from a folder; an environment as
conda makes them; a virtual environment; and the Python of a module, which only works after the module was loaded.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import lab_ssh
from conftest import Cluster
from laptop import Outside

pytestmark = pytest.mark.lab
SIZE = ("--nodes", "1", "--cpus-per-node", "1", "--memory-per-node", "600M")

BODY = "import os, sys, greeting\nprint('used', sys.prefix, greeting.WORD, os.environ.get('OWN_LIBRARY'), flush=True)\n"
METADATA = '# /// script\n# requires-python = ">=3.11"\n# dependencies = ["greeting"]\n# ///\n'
PROJECT = '[project]\nname = "mine"\nversion = "1"\nrequires-python = ">=3.11"\ndependencies = ["greeting"]\n'
# The project itself is one that must be built, as `uv init` makes them, by a program that would leave a file.
PROJECT += '[build-system]\nrequires = []\nbuild-backend = "builds"\nbackend-path = ["."]\n'
BUILDS = "import os\nopen(os.path.expanduser('~/built'), 'w')\nraise SystemExit(9)\n"

# What alice has on the cluster: $1 is her folder there.
PREPARE = r"""set -eu
mkdir -p "$1/wheels" ~/.config/uv ~/.conda/envs; cd "$1"
python3 - <<'END'
import zipfile
with zipfile.ZipFile("wheels/greeting-1.0-py3-none-any.whl", "w") as wheel:
    wheel.writestr("greeting.py", "WORD = 'from-uv'\n")
    wheel.writestr("greeting-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: greeting\nVersion: 1.0\n")
    wheel.writestr("greeting-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
    names = ("greeting.py", "greeting-1.0.dist-info/METADATA", "greeting-1.0.dist-info/WHEEL")
    wheel.writestr("greeting-1.0.dist-info/RECORD", "".join(f"{name},,\n" for name in names))
END
printf 'offline = true\nno-index = true\nfind-links = ["%s/wheels"]\n' "$1" >~/.config/uv/uv.toml

python3 -m venv --without-pip venv
echo "WORD = 'from-venv'" >"$(echo venv/lib/python3.*/site-packages)/greeting.py"

# A whole Python without a pyvenv.cfg, as conda's and those of modules are: $1 its folder, $2 what it greets with.
whole() {
  system=$(readlink -f /usr/bin/python3) name=$(basename "$(readlink -f /usr/bin/python3)")
  mkdir -p "$1/bin" "$1/lib/$name/site-packages"
  cp "$system" "$1/bin/$name"; ln -s "$name" "$1/bin/python"; ln -s "$name" "$1/bin/python3"
  for entry in "/usr/lib/$name"/*; do [ -e "$1/lib/$name/${entry##*/}" ] || ln -s "$entry" "$1/lib/$name"; done
  ln -sfn site-packages "$1/lib/$name/dist-packages"   # where Debian's Python looks
  echo "WORD = '$2'" >"$1/lib/$name/site-packages/greeting.py"
}
rm -rf ~/.conda/envs/science; whole ~/.conda/envs/science from-conda; mkdir ~/.conda/envs/science/conda-meta
whole apps/own/3 from-module
cat >modules.sh <<END
module() { [ "\$*" = "load own/3" ] || { echo "no module: \$*" >&2; return 1; }; export PATH="$1/apps/own/3/bin:\$PATH" OWN_LIBRARY=loaded; }
export -f module
END
"""


class Way(NamedTuple):
    """What somebody types, and what must have been used."""

    script: str
    words: tuple[str, ...]
    here: str  # the Python's folder, or the beginning of its name
    origin: str
    word: str  # what the environment's module says
    before: str = ""  # lines of the shell before the command


def ways(folder: Path, home: Path, *, laptop: bool) -> dict[str, Way]:
    """Return the ways by their names, as they are typed on the login node or on the laptop."""
    made = f"{home}/.hpcml/runs/.environments/"
    source = shlex.join(["source", f"{folder}/modules.sh"])
    modules = ("--set", f"runtime.setup={json.dumps([source])}", "--set", 'runtime.modules=["own/3"]')
    loaded = f"{source}; module load own/3"
    active = shlex.join(["source", f"{folder}/venv/bin/activate"])
    venv = f"{folder}/venv/bin/python"
    origin = "uv.lock of the project that the laptop sent, by uv" if laptop else f"{folder}/project/uv.lock, by uv"
    return {
        "uv project": Way("project/scripts/job.py", (), made, origin, "from-uv"),
        "metadata": Way("meta.py", (), made, "inline metadata of meta.py, by uv", "from-uv"),
        "conda": Way("bare.py", ("--python", "science"), f"{home}/.conda/envs/science/bin/python", "--python", "from-conda"),
        "venv": Way("bare.py", ("--python", f"{folder}/venv"), venv, "--python", "from-venv") if laptop
        else Way("bare.py", (), venv, "VIRTUAL_ENV, the active environment", "from-venv", active),
        "module": Way("bare.py", (*modules, "--python", "python3"), f"{folder}/apps/own/3/bin/python3", "--python",
                      "from-module", "" if laptop else loaded),
    }  # fmt: skip


class Place(NamedTuple):
    """Where somebody types: commands begin with ``words``, in a folder of a node."""

    outside: Outside
    node: str
    folder: Path
    words: tuple[str, ...]

    def type(self, *words: str, before: str = "", folder: str = "") -> Any:
        """Type a command of hpcml; return what it says in JSON."""
        line = "\n".join(filter(None, (before, f"exec {shlex.join([*self.words, *words])}")))
        done = self.outside.lab.exec(["bash", "-c", line], node=self.node, cwd=self.folder / folder, timeout=120)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)


@pytest.fixture(scope="module")
def mine(outside: Outside) -> Iterator[Path]:
    """A folder of alice's on the cluster with all that is needed; the lock is what uv writes."""
    folder = outside.lab.home("alice") / "every python's"
    outside.on("login", "rm", "-rf", str(folder), f"{outside.lab.home('alice')}/.hpcml/runs/.environments")
    done = outside.on("login", "bash", "-c", PREPARE, "bash", str(folder))
    assert done.returncode == 0, done.stderr
    write(outside, "login", folder)
    # uv leaves a file in the folder for temporary files that all users may write
    words = ("env", f"TMPDIR={folder}", "uv", "lock", "--quiet", "--project", f"{folder}/project")
    lock = outside.on("login", *words)
    assert lock.returncode == 0, lock.stderr
    yield folder
    outside.on("login", "rm", "-rf", str(folder), f"{outside.lab.home('alice')}/.config/uv")


def write(outside: Outside, node: str, folder: Path) -> None:
    """Put the scripts and the project of this module on a node."""
    texts = {
        "bare.py": BODY,
        "meta.py": METADATA + BODY,
        "project/pyproject.toml": PROJECT,
        "project/scripts/job.py": BODY,
        "project/builds.py": BUILDS,
    }
    for name, text in texts.items():
        outside.on(node, "mkdir", "-p", str((folder / name).parent))
        assert outside.on(node, "tee", str(folder / name), input=text).returncode == 0


@pytest.mark.parametrize("where", ["login", "laptop"])
def test_each_python_with_one_command(outside: Outside, mine: Path, where: str, subtests: pytest.Subtests) -> None:
    """It runs, it is shown before the queue, and it is in the plan and in JSON; rerun has the same in another shell."""
    home = outside.lab.home("alice")
    if where == "login":
        place = Place(outside, "login", mine, ("hpcml",))
    else:
        folder = home / "python's laptop"
        write(outside, lab_ssh.LAPTOP, folder)
        lock = (mine / "project/uv.lock").read_text()
        outside.on(lab_ssh.LAPTOP, "tee", str(folder / "project/uv.lock"), input=lock)
        place = Place(outside, lab_ssh.LAPTOP, folder, ("hpcml", "--host", "lab"))
    typed = ways(mine, home, laptop=where == "laptop")
    started = {}
    for name, way in typed.items():
        with subtests.test(name):
            words = ("submit", "--detach", "--json", *SIZE, *way.words, way.script)
            first = place.type(*words, before=way.before)
            started[name] = (first, place.type("rerun", "--detach", "--json", first["run"]))
    cluster = Cluster(outside.lab)
    for name, (first, again) in started.items():
        way = typed[name]
        with subtests.test(name):
            plans = []
            for facts in (first, again):
                directory = Path(facts["directory"])
                ended = cluster.wait_status(directory)
                log = (directory / "logs/script.log").read_text()
                assert ended["exit_status"] == 0, log
                plan = json.loads((directory / "plan.json").read_text())
                plans.append((plan["python"], plan["python_from"]))
                assert plan["python"].startswith(way.here)
                assert plan["python_from"].endswith(way.origin)
                prefix = str(Path(plan["python"]).parent.parent)
                module = "loaded" if name == "module" else "None"
                assert f"used {prefix} {way.word} {module}" in log
                asked = json.loads(outside.on("login", "hpcml", "status", directory.name, "--json").stdout)["asked"]
                assert (asked["python"], asked["python_from"]) == plans[-1]
            assert plans[0] == plans[1]
    assert outside.on("login", "test", "-e", f"{home}/built").returncode == 1, "nothing was built"
