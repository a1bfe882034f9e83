"""A run of a site with ``repairs = false`` has Dask, RAPIDS and cloudpickle as they were released."""

from __future__ import annotations

import json
import sys

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


@pytest.mark.parametrize("on", [True, False])
def test_a_site_turns_all_repairs_off(on: bool, here: Here) -> None:
    done = here.submit(SCRIPT, "--set", f"repairs={str(on).lower()}", "--set", "workers.per_node=2")
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = here.folder.glob(".hpcml/runs/*/out/facts.json")
    facts = json.loads(path.read_text())
    assert facts["sum"] == 780
    assert facts["place"].endswith("/my script.py") is on
    assert len(facts["roles"]) == 4
    finder = "_Importlib" if on and "rapids_dask_dependency.dask_loader" in sys.modules else "module"
    assert facts["roles"] == [["" if on else repairs.OFF[1], finder]] * 4
