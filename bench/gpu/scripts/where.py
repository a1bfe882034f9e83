"""Write what scheduler, workers and script are in, each by its own word: ``where.json`` in the run's results."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import hpcml

VARIABLES = ("CUDA_VISIBLE_DEVICES", "LD_PRELOAD", "PYTHONPATH", "HOME", "NCCL_NVLS_ENABLE")


def facts() -> dict[str, Any]:
    import distributed

    with open("/proc/self/maps", encoding="utf-8") as file:
        mapped = {words[5].strip() for line in file if len(words := line.split(maxsplit=5)) == 6}
    return {
        "container": os.environ.get("APPTAINER_CONTAINER") or os.environ.get("SINGULARITY_CONTAINER", ""),
        "versions": [sys.version, distributed.__version__],
        "driver": sorted(path for path in mapped if "libcuda.so" in path or "libnvidia-ml.so" in path),
        "user_namespace": str(Path("/proc/self/ns/user").readlink()),
        "variables": {name: os.environ.get(name, "") for name in VARIABLES},
    }


def on_worker(gpu: bool) -> dict[str, Any]:
    import ucxx

    found = facts()
    found["transports"] = sorted(ucxx.get_active_transports())
    if gpu:
        import cupy

        device = cupy.cuda.runtime.getDevice()
        name = cupy.cuda.runtime.getDeviceProperties(device)["name"].decode()
        found["gpu"] = [name, cupy.cuda.runtime.deviceGetPCIBusId(device)]
        found["gpus"] = cupy.cuda.runtime.getDeviceCount()
    return found | facts()  # with the driver's libraries, which are loaded by now


with hpcml.connect() as client:
    gpu = "gpu" in sys.argv[1:]
    found = {"driver": facts(), "scheduler": client.run_on_scheduler(facts), **client.run(on_worker, gpu)}
    (Path(hpcml.run.out) / "where.json").write_text(json.dumps(found))
    print("roles:", len(found))
