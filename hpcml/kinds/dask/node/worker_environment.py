"""The variables that Dask's settings have for workers, which a Nanny sets and runs have none."""

from __future__ import annotations

import sys
from collections.abc import Mapping, MutableMapping

# Variables of the run itself, by how they begin: no setting and no script changes them in a worker.
RUNS_OWN = (
    "HPCML_", "DASK_", "SLURM", "SRUN_", "PMI", "JPY_", "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES",
)  # fmt: skip
KEYS = ("distributed.nanny.pre-spawn-environ", "distributed.nanny.environ")
PRESET = "HPCML_PRESET"  # names of the variables that step.sh set because nobody had


def set_variables(environment: MutableMapping[str, str]) -> None:
    """Set the variables of the user's own settings (``distributed.nanny.environ``), as a Nanny does for its worker.

    Call this before the import of distributed, which adds settings of its own, and of libraries that read variables.
    What is in the environment has priority, but for what step.sh has set. None takes a variable away.
    """
    import dask.config

    preset = environment.pop(PRESET, "").split()
    for key in KEYS:
        table = dask.config.get(key, None)
        if table is not None and not isinstance(table, Mapping):
            print(f"hpcml: warning: {key} in Dask's settings is ignored: it is no table of variables", file=sys.stderr)
            continue
        for name, value in (table or {}).items():
            name = str(name)  # noqa: PLW2901 - YAML reads some names as numbers
            if name.startswith(RUNS_OWN) or (name in environment and name not in preset):
                continue
            if value is None:
                environment.pop(name, None)
            else:
                environment[name] = str(value)
