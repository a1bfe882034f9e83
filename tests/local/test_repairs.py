"""A run of a site with ``repairs = false`` has Dask, RAPIDS and cloudpickle as they were released; test_local.py has one with repairs."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from homes import CONNECT, Here, here
from hpcml import repairs

__all__ = ["here"]  # the fixture
pytestmark = pytest.mark.local

SCRIPT = f"""{CONNECT}
import json, multiprocessing
def place():
    return sys._getframe().f_code.co_filename
def look():
    import os, sys
    loader = sys.modules.get("rapids_dask_dependency.dask_loader")
    return [os.environ.get("{repairs.OFF[0]}", ""), type(getattr(loader, "importlib", sys)).__name__]
if __name__ == "__main__":
    roles = [look(), *client.run(look).values(), client.run_on_scheduler(look)]
    facts = {{"place": client.submit(place).result(), "roles": roles}}
    facts["sum"] = sum(client.gather(client.map(lambda number: number, range(40))))
    (hpcml.run.out / "facts.json").write_text(json.dumps(facts))
"""


def found(here: Here) -> dict[str, Any]:
    (path,) = here.folder.glob(".hpcml/runs/*/out/facts.json")
    facts: dict[str, Any] = json.loads(path.read_text())
    assert facts["sum"] == 780
    return facts


def assert_repaired(here: Here) -> None:
    finder = "_Importlib" if "rapids_dask_dependency.dask_loader" in sys.modules else "module"
    facts = found(here)
    assert facts["place"].endswith("/my script.py")
    assert facts["roles"] == [["", finder]] * 4


def test_a_site_turns_all_repairs_off(here: Here) -> None:
    done = here.submit(SCRIPT, "--set", "repairs=false", "--set", "workers.per_node=2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert not found(here)["place"].endswith("/my script.py")
    assert found(here)["roles"] == [[repairs.OFF[1], "module"]] * 4
