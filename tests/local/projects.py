"""Small projects laid out as public ones are: how each finds its root, where its data is, and where it writes.

A project is its files, the folder below it that the command is typed in, and the command's words.
"""

from __future__ import annotations

from typing import NamedTuple


class Project(NamedTuple):
    """A project and how it is run."""

    files: dict[str, str]
    words: tuple[str, ...] = ("scripts/train.py",)
    folder: str = "."


_USE = """
import json, os
data = os.path.join(ROOT, "data", "a.csv")
out = os.path.join(ROOT, "results")
os.makedirs(out, exist_ok=True)
values = [int(word) for word in open(data).read().split()]
with open(os.path.join(out, "r.json"), "w") as file:
    json.dump(sum(values), file)
print(sum(values), os.path.relpath(data, ROOT))
"""
_DATA = {"data/a.csv": "1\n2\n3\n"}
_PATHLIB = "from pathlib import Path\n"
_OS = "import os, sys\nfrom os import path\n"


def _train(text: str, name: str = "scripts/train.py", **more: str) -> dict[str, str]:
    return {name: text + _USE, **_DATA, **more}


PROJECTS = {
    "pathlib": Project(_train(_PATHLIB + "ROOT = Path(__file__).resolve().parent.parent\n")),
    "read and write": Project({"scripts/train.py": _PATHLIB + "ROOT = Path(__file__).resolve().parent.parent\n"
                               "print((ROOT / 'data' / 'a.csv').read_text())\n(ROOT / 'results').mkdir(exist_ok=True)\n"
                               "(ROOT / 'results' / 'r.csv').write_text('1\\n')\n", **_DATA}),
    "parents": Project(_train(_PATHLIB + "ROOT = Path(__file__).absolute().parents[1]\n"), folder="scripts",
                       words=("train.py",)),
    "dirname": Project(_train(_OS + "ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))\n")),
    "join": Project(_train(_OS + "ROOT = path.join(path.dirname(path.realpath(__file__)), '..')\n")),
    "pardir": Project(_train(_OS + "HERE = os.path.dirname(os.path.abspath(__file__))\n"
                                   "ROOT = os.path.normpath(os.path.join(HERE, os.pardir))\n")),
    "text": Project(_train("HERE = '/'.join(__file__.split('/')[:-1])\nROOT = HERE + '/..'\n")),
    "git": Project({**_train(_PATHLIB + "ROOT = next(p for p in Path(__file__).resolve().parents"
                                        " if (p / '.git').exists())\n"), ".git/HEAD": "ref: refs/heads/main\n"}),
    "pyproject": Project({**_train(_PATHLIB + "ROOT = Path(__file__).resolve().parent\n"
                                   "while not (ROOT / 'pyproject.toml').exists():\n    ROOT = ROOT.parent\n"),
                          "pyproject.toml": "[project]\nname = 'x'\n"}),
    "sibling": Project({"scripts/train.py": "from config import ROOT\n" + _USE, **_DATA,
                        "scripts/config.py": _PATHLIB + "ROOT = Path(__file__).resolve().parents[1]\n"}),
    "settings": Project({"scripts/train.py": "import settings\nROOT = settings.Paths.root\n" + _USE, **_DATA,
                         "scripts/settings/__init__.py": "from .paths import Paths\n",
                         "scripts/settings/paths.py": _PATHLIB + "class Paths:\n"
                                                      "    root = Path(__file__).resolve().parent.parent.parent\n"}),
    "source": Project({"scripts/train.py": _OS + "sys.path.insert(0, os.path.join(os.path.dirname(__file__), '..',"
                                                 " 'src'))\nfrom tool.paths import ROOT\n" + _USE, **_DATA,
                       "src/tool/__init__.py": "",
                       "src/tool/paths.py": _PATHLIB + "ROOT = Path(__file__).resolve().parents[2]\n"}),
    "append": Project({"scripts/train.py": _PATHLIB + "import sys\n"
                       "sys.path.append(str(Path(__file__).resolve().parent.parent))\nfrom utils import ROOT\n" + _USE,
                       "utils/__init__.py": _PATHLIB + "ROOT = Path(__file__).resolve().parents[1]\n", **_DATA}),
    "package": Project({"src/pkg/__init__.py": "", "src/pkg/train.py": "from .paths import ROOT\n" + _USE, **_DATA,
                        "src/pkg/paths.py": _PATHLIB + "ROOT = Path(__file__).resolve().parents[2]\n"},
                       words=("-m", "pkg.train"), folder="src"),
    "deep": Project({"experiments/a/b/run.py": _PATHLIB + "ROOT = Path(__file__).resolve().parents[3]\n" + _USE, **_DATA},
                    words=("experiments/a/b/run.py",)),
    "beside": Project({"train.py": _PATHLIB + "ROOT = Path(__file__).resolve().parent\n" + _USE, **_DATA},
                      words=("train.py",)),
    "relative": Project({"train.py": "open('plain.txt', 'w').write('x')\nprint(1)\n"}, words=("train.py",)),
    "again": Project({**_train(_PATHLIB + "ROOT = Path(__file__).resolve().parent.parent\n"),
                      "results/r.json": "5", "results/other.json": "7"}),
    "log": Project({"scripts/train.py": _PATHLIB + "LOG = Path(__file__).resolve().parents[1] / 'logs' / 'all.log'\n"
                    "with LOG.open('a') as file:\n    file.write('one more\\n')\nprint(LOG.read_text())\n",
                    "logs/all.log": "before\n"}),
    "chdir": Project({"scripts/train.py": "import os\nos.chdir(os.path.dirname(os.path.abspath(__file__)))\n"
                      "print(open('../data/a.csv').read())\nopen('../out.txt', 'w').write('x')\n"
                      "open('here.txt', 'w').write('y')\n", **_DATA}),
    "link": Project({"scripts/train.py": _PATHLIB + "OUT = Path(__file__).resolve().parents[1] / 'ckpt'\n"
                     "(OUT / 'step_1').mkdir(parents=True)\n(OUT / 'step_1' / 'w').write_text('w')\n"
                     "(OUT / 'last').symlink_to('step_1')\nprint((OUT / 'last' / 'w').read_text())\n"}),
    "large": Project({**_train(_PATHLIB + "ROOT = Path(__file__).resolve().parent.parent\n"),
                      "data/a.csv": "1\n" * 800_000}),
    "beyond": Project({"proj/scripts/train.py": _PATHLIB + "ROOT = Path(__file__).resolve().parents[2]\n" + _USE,
                       "proj/pyproject.toml": "", **_DATA}, words=("proj/scripts/train.py",)),
    "shell": Project({"scripts/run.sh": '#!/bin/sh\ncd "$(dirname "$0")/.."\nmkdir -p results\n'
                                        'wc -l < data/a.csv | tee results/r.txt\n', **_DATA},
                     words=("--", "scripts/run.sh")),
}  # fmt: skip
