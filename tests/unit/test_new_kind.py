"""What one more kind of run takes: the folder that docs/kinds.md shows, and its row in the table of kinds."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from hpcml.errors import ROLE_LOST
from hpcml.failures.end import End
from tests import new_kind

MAIN = "import sys; from hpcml.cli.main import main; sys.exit(main(sys.argv[1:]))"


class Copy(NamedTuple):
    """A copy of hpcml with the kind, and a home."""

    folder: Path
    changed: list[str]

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        environment = {"HOME": str(self.folder / "home"), "PATH": "/usr/bin:/bin", "PYTHONPATH": str(self.folder)}
        return subprocess.run([sys.executable, "-c", MAIN, *words], env=environment, cwd=self.folder / "home",
                              capture_output=True, text=True, check=False, timeout=240)  # fmt: skip

    def prepared(self) -> Path:
        """Prepare a run, and return its directory."""
        done = self.run("submit", "--site", "slurm", "--prepare", "--json", "--echo", "--nodes", "2", "a.py")
        assert done.returncode == 0, done.stderr
        return Path(json.loads(done.stdout)["directory"])


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Copy:
    folder = tmp_path_factory.mktemp("copy")
    (folder / "home").mkdir()
    (folder / "home/a.py").write_text("print('hello')\n")
    return Copy(folder, new_kind.install(folder))


def test_one_file_outside_its_folder_changes(copy: Copy) -> None:
    assert copy.changed == ["hpcml/kinds/__init__.py"]


def test_a_dry_run_shows_its_processes_and_its_own_lines(copy: Copy) -> None:
    done = copy.run("submit", "--site", "slurm", "--dry-run", "--echo", "--nodes", "2", "a.py")
    assert done.returncode == 0, done.stderr
    lines = [line.split(maxsplit=1) for line in done.stdout.splitlines()]
    assert ["processes", "echo: 2 echos (1 on each node)"] in lines
    assert ["echoes", "one on each of 2 nodes"] in lines
    script = copy.run("submit", "--site", "slurm", "--dry-run=script", "--echo", "--nodes", "2", "a.py").stdout
    assert "-m hpcml.kinds echo" in script
    assert subprocess.run(["bash", "-n"], input=script, text=True, check=False).returncode == 0


def test_its_option_is_for_its_runs_alone(copy: Copy) -> None:
    assert "one echo on each node" in copy.run("submit", "--help-all").stdout
    refused = copy.run("submit", "--site", "slurm", "--dry-run", "--echo", "--profile", "dask", "a.py")
    assert "--profile is for runs of kind dask" in refused.stderr
    assert "echo (one log of each node)" in " ".join(copy.run("logs", "--help").stdout.split())


def test_status_logs_and_why_speak_of_it(copy: Copy) -> None:
    run = copy.prepared()
    inside = json.loads((run / "plan.json").read_text())["inside"]
    assert (inside["kind"], inside["of_kind"]) == ("echo", {"every": 0.2})

    def write(*events: dict[str, object]) -> None:
        with (run / "events.jsonl").open("a") as file:
            file.writelines(json.dumps({"time": 1.0, "attempt": 0, **event}) + "\n" for event in events)

    write({"event": "allocated", "nodes": ["n1", "n2"], "job": "7", "node": "n1"}, {"event": "echo-heard", "count": 1})
    (run / "logs").mkdir(exist_ok=True)
    (run / "logs/echo-n1.log").write_text("the echo of n1\n")
    shown = json.loads(copy.run("status", "--json", run.name).stdout)
    assert (shown["workers"], shown["expected"]) == (1, 2)
    assert "the echo of n1" in copy.run("logs", run.name, "echo").stdout
    end = End(ROLE_LOST, "script", "hpcml", "the echoes were lost", role="echo")
    (run / "status.json").write_text(json.dumps(end.as_json()))
    assert json.loads(copy.run("status", "--json", run.name).stdout)["message"] == "the echoes were lost"
    why = json.loads(copy.run("why", "--json", run.name).stdout)
    assert why["cause"] == "the echoes were lost"
