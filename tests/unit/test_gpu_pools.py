"""A script's error for want of GPU memory names the run's own worker that has it, by the worker's process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hpcml.failures import judgement
from hpcml.failures.cause import Case
from hpcml.failures.end import End
from hpcml.kinds.dask.node.dask_scheduler import Reporter
from hpcml.kinds.dask.node.messages import TOPIC
from hpcml.paths import RunPaths

ERROR = (
    "CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 139.80 GiB of which 6.31 GiB is free. "
    "Process {} has 122.51 GiB memory in use. Including non-PyTorch memory, this process has 10.98 GiB memory in use."
)
POOL = {"worker": "n1", "node": "n1", "pid": 1237, "pool": 122 * 2**30}


@pytest.mark.parametrize(("process", "named"), [(1237, True), (4321, False)])
def test_the_worker_that_has_the_memory_is_named(tmp_path: Path, process: int, named: bool) -> None:
    run = RunPaths(tmp_path)
    attempt = run.attempt(0)
    run.logs.mkdir(parents=True)
    attempt.directory.mkdir(parents=True)
    chain = [{"type": "torch.OutOfMemoryError", "message": ERROR.format(process)}]
    attempt.script_error.write_text(json.dumps({"chain": chain, "file": "train.py", "line": 3}))
    attempt.gpu_pools.write_text(json.dumps({"n1": {"pid": 1237, "pool": 122 * 2**30}, "n1-1": "damaged"}))
    cause = judgement.of_run(run, attempt, Case(End(1, "script", "script", "the script exited with status 1")))
    assert cause is not None
    assert cause.rule == "gpu-memory"
    assert ("process 1237 is this run's Dask worker n1, which reserved 122 GiB of it" in cause.what) == named
    assert ("gpu.rmm_pool_size" in cause.remedy) == named


def test_the_scheduler_reports_the_process_of_a_pool() -> None:
    lines: list[dict[str, Any]] = []
    message = POOL | {"event": "gpu-memory", "wanted": POOL["pool"], "address": "tls://n1:1"}
    reporter = Reporter(lambda **fields: lines.append(fields))
    reporter.names["tls://n1:1"] = str(POOL["worker"])
    reporter.log_event(TOPIC, message | {"worker": "tls://n1:1"})  # Dask's own word for who said it
    assert lines == [{"event": "gpu-pool", **POOL}]
