"""What can be submitted beside a Python file: a module by its name, any program, a notebook."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

import pytest

from homes import HPCML, Here, here
from test_code import put
from tests.said import in_order, says

pytestmark = pytest.mark.local
__all__ = ["here"]


def submit(here: Here, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([HPCML, "submit", "--wait", *words], cwd=here.folder, env={**here.environment, **variables},
                          capture_output=True, text=True, timeout=120, check=False)  # fmt: skip


MODULE = """
import sys, json, os
from . import other
from .deep.part import h
from distributed import Client
import beside
client = Client()
print(json.dumps({"sum": sum(client.gather(client.map(h, [1, 2, 3]))), "name": __name__, "package": __package__,
                  "spec": __spec__.name, "argv": sys.argv[1:], "file": sys.argv[0] == __file__, "cwd": os.getcwd(),
                  "copy": __file__.startswith(os.environ["HPCML_RUN_DIR"]), "beside": beside.here, "other": other.value}))
"""
PACKAGE = {
    "pack/__init__.py": "", "pack/train.py": MODULE, "pack/__main__.py": "from pack import train",
    "pack/other.py": "value = 7", "pack/deep/part.py": "def h(x):\n    return 10 * x", "beside.py": "here = 1",
}  # fmt: skip


def test_a_module_runs_as_under_python_m(here: Here) -> None:
    put(here.folder, PACKAGE)
    done = submit(here, "-m", "pack.train", "--k", "-m")
    assert done.returncode == 0, done.stderr + done.stdout
    told = json.loads(done.stdout)
    assert told == {
        "sum": 60, "name": "__main__", "package": "pack", "spec": "pack.train", "argv": ["--k", "-m"], "file": True,
        "cwd": str(here.folder), "copy": True, "beside": 1, "other": 7,
    }  # fmt: skip


def test_a_top_level_package_runs_as_under_python_m(here: Here) -> None:
    put(here.folder, {"thing/__init__.py": "", "thing/__main__.py": "print('main of', __package__, __file__)"})
    done = submit(here, "-m", "thing")
    assert done.returncode == 0, done.stderr + done.stdout
    assert done.stdout == f"main of thing {Path(here.status()['directory'])}/code/thing/__main__.py\n"


PROGRAM = """#!/bin/bash
printf '%s\\n' "$@" "$PWD" "$(cat "$(dirname "$0")/data.txt")" "${DASK_SCHEDULER_ADDRESS%%:*}"
ls "$DASK_DISTRIBUTED__COMM__TLS__CA_FILE" >/dev/null || exit 1
"$PYTHON" use.py || exit 1
unset PYTHONINSPECT
"$PYTHON" -m nbconvert --to notebook --execute --ExecutePreprocessor.kernel_name=python3 --output done.ipynb n.ipynb || exit 1
exit 7
"""
OPENS = """import tool
from distributed import Client, LocalCluster
client = Client(LocalCluster(n_workers=7))
print(client.submit(tool.f, 1).result(), len(client.nthreads()))
"""
TOOL = "def f(x):\n    return x + 1\n"


def test_a_program_has_the_cluster_and_its_status_is_the_run_s(here: Here) -> None:
    """What it starts opens the run's cluster, as a script does: a Python file, and the kernel of a notebook."""
    notebook(here, OPENS)
    put(here.folder, {"bin/run": PROGRAM, "bin/data.txt": "data", "tool.py": TOOL, "use.py": OPENS})
    (here.folder / "bin/run").chmod(0o755)
    inspect = ("PYTHONINSPECT", "1")  # with it Python ends with 1 after sys.exit()
    done = submit(here, "--set", f"environment.{'='.join(inspect)}", "--", "bin/run", "a b", "--nodes",
                  **dict([inspect]), PYTHON=sys.executable)  # fmt: skip
    assert done.returncode == 7, done.stderr
    exits = Path(here.status()["directory"]) / "attempts/0/exit"
    here.until(lambda: [*exits.glob("supervisor@*")])  # the step writes it after the run's end is known
    (end,) = exits.glob("supervisor@*")
    assert end.read_text() == "7\n"
    note = (
        "line 3",
        "LocalCluster(n_workers=7)",
        "1 worker on 1 node (one thread per CPU",
        "--set workers.per_node=7).",
    )
    said = ["a b", "--nodes", str(here.folder), "data", "tls", says("hpcml: use.py, ", *note), "2 1"]
    assert done.stdout.splitlines()[:7] == said
    (cell,) = json.loads((here.folder / "done.ipynb").read_text())["cells"]
    assert sorted("".join(one["text"]) for one in cell["outputs"]) == ["2 1\n", says("hpcml: ", *note, "\n")]


VENV = """
import os, sys
import only_in_venv
from distributed import Client
print(sys.argv[1:], sys.prefix, sys.warnoptions, only_in_venv.x, os.path.dirname(__file__) == os.environ["HPCML_RUN_DIR"] + "/code")
from pack import tool
print(Client().submit(tool.f, 1).result())
sys.exit(7)
"""


def test_a_venv_s_python_keeps_its_packages_and_runs_the_copy(here: Here, tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", with_pip=False)
    (site,) = (tmp_path / "venv/lib").glob("python3.*/site-packages")
    put(
        site,
        {"only_in_venv.py": "x = 3", "rest.pth": "\n".join(entry for entry in sys.path if "site-packages" in entry)},
    )
    put(here.folder, {"train.py": VENV, "pack/__init__.py": "", "pack/tool.py": TOOL})
    python = str(tmp_path / "venv/bin/python")
    path = f"{tmp_path}/venv/bin:{here.environment['PATH']}"
    done = submit(here, "--", "python", "-W", "error::BytesWarning", "train.py", "--nodes", PATH=path)
    assert done.returncode == 7, done.stderr
    told = ["--nodes"], f"{tmp_path}/venv", ["error::BytesWarning"], 3, True
    assert done.stdout.splitlines() == [" ".join(map(str, told)), "2"]
    note = f"{python} runs the script, but {sys.executable} (runtime.python) runs the workers"
    assert note in " ".join(done.stderr.split())
    run = Path(here.status()["directory"])
    assert sorted(path.name for path in (run / "code").iterdir() if not path.name.startswith(".")) == [
        "pack",
        "train.py",
    ]


def notebook(here: Here, *cells: str) -> None:
    """Write a notebook whose kernel is one of another machine."""
    common: dict[str, Any] = {"cell_type": "code", "metadata": {}, "execution_count": None, "outputs": []}
    table = {"nbformat": 4, "nbformat_minor": 4, "cells": [{**common, "source": text} for text in cells],
             "metadata": {"kernelspec": {"name": "conda-env-x", "display_name": "x", "language": "python"}}}  # fmt: skip
    beside = "import warnings\ndef h(x):\n    return 10 * x\ndef w():\n    warnings.warn('old')\n"
    put(here.folder, {"n.ipynb": json.dumps(table), "beside.py": beside})


def test_a_notebook_is_executed_in_the_run_s_cluster_and_kept_where_a_cell_fails(here: Here) -> None:
    notebook(
        here, "from dask.distributed import Client, LocalCluster\nimport beside\nclient = Client(LocalCluster(n_workers=7))",
        "import os\nprint(sum(client.gather(client.map(beside.h, [1, 2]))), len(client.ncores()), os.getcwd())\nbeside.w()", "1 + 1",
        "import nowhere_here", "print('never')",
    )  # fmt: skip
    done = submit(here, "--nodes", "2", "n.ipynb")
    assert done.returncode == 1
    assert f"30 2 {here.folder}" in done.stdout.splitlines()
    assert f"{here.folder}/beside.py:5: UserWarning: old" in done.stdout.splitlines(), "the original, not the copy"
    assert "cell 4 failed" in done.stdout
    assert re.search(in_order("ModuleNotFoundError", "named 'nowhere_here'"), done.stdout)
    assert "never" not in done.stdout.replace("print('never')", "")
    assert done.stderr.splitlines()[-1].startswith(f"hpcml: {sys.executable}, which ran the script, has no module")
    cells = json.loads(Path(here.status()["directory"], "out", "n.ipynb").read_text())["cells"]
    assert cells[1]["outputs"][0]["text"][0].startswith("30 2")
    assert cells[2]["outputs"][0]["data"]["text/plain"] == ["2"]
    assert [len(cell["outputs"]) for cell in cells[2:]] == [1, 1, 0]


def test_a_notebook_whose_kernel_dies_has_failed(here: Here) -> None:
    notebook(here, "print('first')", "import os\nos._exit(0)", "print('never')")
    done = submit(here, "n.ipynb")
    assert done.returncode == 1
    assert "the notebook's kernel has ended" in done.stdout
    cells = json.loads(Path(here.status()["directory"], "out", "n.ipynb").read_text())["cells"]
    assert [len(cell["outputs"]) for cell in cells] == [1, 0, 0]


TROUBLE = """
import pathlib
import hpcml

def write(dask_worker):
    path = pathlib.Path(dask_worker.local_directory).parents[1] / "nccl-1.log"
    path.write_text("n1: NCCL WARN Call to connect failed\\n")

hpcml.connect().run(write)
"""


def test_what_nccl_wrote_of_troubles_is_in_the_workers_log(here: Here) -> None:
    put(here.folder, {"trouble.py": TROUBLE})
    done = submit(here, "trouble.py")
    assert done.returncode == 0, done.stderr
    assert "NCCL WARN" in "".join(
        path.read_text() for path in Path(here.status()["directory"]).glob("logs/worker*.log")
    )


def test_a_module_of_the_working_folder_hides_none_of_the_roles_own(here: Here) -> None:
    put(here.folder, {"queue.py": "raise ImportError('of the user')", "src/job.py": "print('ran')"})
    done = submit(here, "src/job.py", PYTHONPATH=str(here.folder))
    assert (done.returncode, done.stdout) == (0, "ran\n"), done.stderr
