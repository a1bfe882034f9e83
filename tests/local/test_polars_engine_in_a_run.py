"""cuDF-Polars' engine in a run: what it says to the run's scheduler and workers. cuDF-Polars and RMM are stand-ins."""

from __future__ import annotations

from pathlib import Path

import pytest

from homes import Here, here

pytestmark = pytest.mark.local
__all__ = ["here"]

STAND_INS = {
    "rmm.py": """
class mr:
    current = "the pool"
    CudaMemoryResource = int
    get_current_device_resource = staticmethod(lambda: mr.current)
    set_current_device_resource = staticmethod(lambda one: setattr(mr, "current", one))
""",
    "cudf_polars/__init__.py": "",
    "cudf_polars/engine/__init__.py": "",
    "cudf_polars/engine/hardware_binding.py": "HardwareBindingPolicy = dict\n",
    "cudf_polars/utils/__init__.py": "",
    "cudf_polars/utils/config.py": "MemoryResourceConfig = dict\n",
    "cudf_polars/engine/dask.py": """
import contextlib
@contextlib.contextmanager
def DaskEngine(dask_client, engine_options):
    yield sorted(dask_client.nthreads())
""",
}
SCRIPT = """
import cudf_polars.engine.dask, cudf_polars.engine.hardware_binding, cudf_polars.utils.config, rmm
import hpcml
from hpcml.kinds.dask.node.script import polars_engine  # by hpcml.polars_engine() only where there are GPUs
client = hpcml.connect()
with polars_engine.opened(client, {}) as engine:
    assert len(engine) == client.submit(int, 2).result()
print("the sum is", client.submit(sum, [1, 2]).result())
"""


def test_a_run_goes_on_while_an_engine_is_open_and_after_it(here: Here) -> None:
    for name, text in STAND_INS.items():
        place = here.folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    done = here.submit(SCRIPT, "--set", "workers.per_node=2")
    assert (done.returncode, here.status()["exit_status"]) == (0, 0), done.stdout + done.stderr
    assert "the sum is 3" in done.stdout
    assert here.events(Path(here.status()["directory"]), "polars-engine")
