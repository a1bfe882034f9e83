"""What may differ between plain Python, the script, its tasks and the scheduler: all else is an accident.

The reasons are in docs/surroundings.md, and those of INHERITED in docs/porting.md.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

Found = Mapping[str, Mapping[str, Any]]

SCRIPT = ("HPCML_*", "PYTHONPATH", "PYTHONUNBUFFERED", "PYTHONINSPECT", "PYTHONFAULTHANDLER", "DASK_*", "NCCL_DEBUG*", "UCX_LOG_LEVEL",
          "SLURM*", "SRUN_*", "RLIMIT_RSS", "PS1", "_", "path", "main", "hash", "warnings", "faulthandler", "signals of forks")  # fmt: skip
TASKS = ("DASK_*", "PYTHONHASHSEED", "*_NUM_THREADS", "MALLOC_TRIM_THRESHOLD_", "NCCL_DEBUG*", "UCX_LOG_*", "SLURM*",
         "HPCML_GIVEN", "HPCML_NODE", "HPCML_WORLD", "_", "safe_path", "hash_randomization", "hash", "garbage", "output", "oom_score_adj", "host", "path", "main")  # fmt: skip
INHERITED = ("__DASK_PARENT_PID", "dask.config.distributed.comm.*", "dask.config.distributed.nanny.environ.*",
             "dask.config.scheduler-address", "dask.config.temporary-directory")  # fmt: skip
# Of the first two lists, what workers of a LocalCluster have as those of a run.
ALIKE = ("hash", "hash_randomization", "warnings", "host", "PYTHONHASHSEED", "*_NUM_THREADS", "MALLOC_TRIM_THRESHOLD_")
WORKERS = ("NCCL_DEBUG_FILE", "UCX_LOG_FILE", "SLURM*", "HPCML_NODE", "host", "path")


def differences(found: Found, script: Iterable[str] = SCRIPT) -> list[str]:
    """Return what differs although it should not, in words.

    Parameters
    ----------
    found
        What was found, by role: ``script``, ``scheduler``, the workers by address, and ``python`` for plain Python.
    script
        What may differ between script and plain Python.
    """
    flat = {role: dict(_flat(facts)) for role, facts in found.items()}
    workers = [role for role in flat if role not in ("python", "script", "scheduler")]
    compared: list[tuple[str, str, Iterable[str]]] = [("script", one, TASKS) for one in ("scheduler", *workers)]
    compared += [(workers[0], one, WORKERS) for one in workers[1:]]
    compared += [("python", "script", script)] if "python" in flat else []
    wrong = [
        f"{name}: {flat[one].get(name)!r} in {one}, {flat[other].get(name)!r} in {other}"
        for one, other, allowed in compared
        for name in sorted({*flat[one], *flat[other]})
        if flat[one].get(name) != flat[other].get(name) and not any(fnmatch.fnmatchcase(name, like) for like in allowed)
    ]
    return wrong + list(_of_the_path(found))


def of_a_local_cluster(plain: Mapping[str, Any], run: Mapping[str, Any]) -> list[str]:
    """Return in words what a task in a run has other than a task of a LocalCluster, although it should not."""
    allowed = {*SCRIPT, *TASKS, *INHERITED} - {*ALIKE}
    one, other = dict(_flat(plain)), dict(_flat(run))
    return [f"{name}: {one.get(name)!r} in a LocalCluster, {other.get(name)!r} in a run" for name in {**one, **other}
            if one.get(name) != other.get(name) and not any(fnmatch.fnmatchcase(name, like) for like in allowed)]  # fmt: skip


def _flat(facts: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in facts.items():
        yield from value.items() if isinstance(value, dict) else ((name, value),)


def _of_the_path(found: Found) -> Iterator[str]:
    """Yield what is wrong with paths of modules: one for all, after the own folder that Dask puts first."""
    script = found["script"]["path"]
    if "python" in found and script[2:] != found["python"]["path"][1:]:
        yield f"path: {found['python']['path']} in python, {script} in script"
    for role, facts in found.items():
        if role not in ("python", "script"):
            own, *others = facts["path"]
            if not re.search(r"/hpcml_[^/]+/", own) or others != script:
                yield f"path: {script} in script, {facts['path']} in {role}"
