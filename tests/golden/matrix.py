"""The site × job matrix of the golden scripts, with everything fixed that depends on this machine or this moment."""

from __future__ import annotations

import difflib
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from hpcml.config_trust import Origin
from hpcml.plan import batch_script, make_plan
from hpcml.request.record import RunRequest, measure
from hpcml.sites import lookup, schema, settings_layers

SCRIPTS = Path(__file__).resolve().parent / "scripts"
PYTHON = "/opt/hpcml/bin/python"
LAB = Path(__file__).resolve().parent.parent / "lab/site"  # the lab's profile is its own, not hpcml's
WHOLE = ("local", "slurm")  # whose scripts are golden as a whole
SITES = (*WHOLE, "leonardo", "lab")  # of the others, what differs from slurm's script of the same job
MACHINES = ("juwels", "marenostrum5", "perlmutter", "snellius", "vega")  # of these only the usual jobs are golden
DIFFERENCES = SCRIPTS.parent / "differences"
# The lines in which the scripts of two sites may differ: directives, their names, which of Slurm's words for memory
# goes, environment, modules, and how an image is entered.
OF_A_SITE = re.compile(
    r"#SBATCH |# hpcml 0\.0\.0: run [a-z0-9-]+ on site [a-z0-9]+\.$|if \[ -n \"\$\{SLURM_MEM_PER_(CPU|NODE)-\}\" \]; then unset "
    r"|export (?!HPCML_)[A-Z_]+=|module load |entry=\("
)
USUAL = ("one-node", "four-nodes", "gpus", "one-gpu")
HOSTILE = '/scratch/a b/it\'s "x" $HOME `id` #1 50%j/é'


def site_of(table: Mapping[str, Any]) -> schema.Site:
    """Return a site of these settings alone."""
    own = settings_layers.Layers()
    own.add(table, "test", Origin.TYPED)
    return settings_layers.build(schema.Site, own)


class Case(NamedTuple):
    """One job on one site: what is asked for, what the profile is set to, and where the runs are."""

    job: str
    spec: Mapping[str, Any] = {}
    settings: Mapping[str, Any] = {}
    folder: str = "/scratch/alice/runs"
    script: str = "/home/alice/project/kmeans.py"
    only: tuple[str, ...] = SITES


CASES = (
    Case("one-node"),
    Case("four-nodes", {"nodes": 4, "time": "30"}),
    Case("gpus", {"nodes": 2, "gpus_per_node": 4}, only=("slurm", "leonardo", "lab")),
    Case("one-gpu", {"gpus_per_node": 1}, only=("slurm", "leonardo", "lab")),
    Case("gpus-by-type", {"gpus_per_node": 2}, {"slurm": {"gpu_request": "gres", "gpu_type": "a100"}}, only=("slurm",)),
    Case("image", {"nodes": 2, "image": "/images/cpu.sif"},
         {"runtime": {"binds": ["/data", "/project/x:/data/x:ro"], "options": ["--writable-tmpfs"]}, "environment": {"GREETING": "a b"},
          "paths": {"scratch": "/scratch_local"}}),
    Case("gpu-image", {"gpus_per_node": 4}, {"runtime": {"kind": "image", "image": "/images/rapids.sif", "container": "singularity",
                                                        "python": "/opt/conda/bin/python"}}, only=("slurm", "leonardo", "lab")),
    Case("staged", {"nodes": 2, "image": "/images/cpu.sif"},
         {"runtime": {"stage": "sbcast", "stage_to": "/scratch_local/$SLURM_JOB_ID"}}, only=("slurm", "lab")),
    Case("copied", {"image": "/images/it's a.sif"}, {"runtime": {"stage": "copy"}}, only=("local", "slurm")),
    Case(
        "charged",
        {"account": "lab_account", "partition": "debug", "qos": "normal", "dependency": "afterany:1", "nodes": 2, "time": "10"},
        only=("slurm", "leonardo", "lab"),
    ),
    Case(
        "hostile",
        {"nodes": 2, "arguments": ("--x", "a b", "", "it's", '"$HOME"', "\\", "100%")},
        {"defaults": {"account": "it's \"a\" $b\\c #d"}, "runtime": {"python": "/opt/my env/bin/python$3"}},
        folder=HOSTILE,
        script=f"{HOSTILE}/my script $1.py",
    ),
    Case(
        "environment",
        {},
        {
            "runtime": {"modules": ["python/3.11", "it's odd"], "setup": ['source "$HOME/venv/bin/activate"', "ulimit -c 0"]},
            "environment": {"OMP_NUM_THREADS": "1", "GREETING": "it's \"here\" $HOME `id` \\ %j"},
        },
    ),
    Case("until-done", {"nodes": 2, "time": "30", "until_done": True, "max_restarts": 3},
         {"runtime": {"setup": ["ulimit -c 0"], "setup_errors": "end"}}, only=("local", "slurm")),
    Case(
        "dialect",
        {"nodes": 2, "memory_per_node": "2G", "cpus_per_node": 4},
        {
            "resources": {"exclusive": True},
            "slurm": {"extra": ["--constraint=gpu", "--mem=1G", "--oversubscribe"], "remove": ["--export", "--no-requeue"],
                      "srun_extra": ["--mpi=none", "--chdir=/a b"], "signal_lead": "120s"},
        },
        only=("slurm", "leonardo", "lab"),
    ),
)  # fmt: skip
PAIRS = [(site, case) for case in CASES for site in SITES if site in case.only]
IDS = [f"{site}-{case.job}" for site, case in PAIRS]
MACHINE_CASES = [case for case in CASES if "leonardo" in case.only]
JOBS = {  # of a site that is compared with slurm
    **{site: [case for case in CASES if site in case.only] for site in SITES if site not in WHOLE},
    **{site: [case for case in MACHINE_CASES if case.job in USUAL] for site in MACHINES},
}


def make(
    site: str, case: Case, settings: Mapping[str, Any] | None = None, spec: Mapping[str, Any] | None = None
) -> make_plan.Plan:
    """Return the plan of a case, with more settings and another request laid over it if given."""
    environment = {"HOME": "/nonexistent", "HPCML_SYSTEM_CONFIG": str(LAB)}
    loaded = lookup.load(site, environment, Path("/"))
    for table in (case.settings, settings or {}):
        loaded.layers.add(table, "test", Origin.TYPED)
    if loaded.site.slurm.account_required and "account" not in case.settings.get("defaults", {}):
        loaded.layers.add({"defaults": {"account": "IscrC_hpcml"}}, "test", Origin.TYPED)
    name = f"{case.job}-20261121-074500-1a2b"
    request = {**case.spec, **(spec or {})}
    arguments = request.pop("arguments", ())
    request |= {name: measure(name, request[name]) for name in ("time", "memory_per_node") if name in request}
    job = RunRequest.of(Path(case.script), arguments, Path(case.script).parent, **request)
    place = make_plan.RunLocation(Path(case.folder) / name, PYTHON, "0.0.0")
    return make_plan.plan(settings_layers.build(schema.Site, loaded.layers), job, place)


def text(site: str, case: Case) -> str:
    """Return a case's script."""
    return batch_script.render(make(site, case))


def differing(site: str, case: Case, context: int) -> list[str]:
    """Return the lines of a unified difference between slurm's script and a site's, with lines of context."""
    old, new = (text(name, case).splitlines() for name in ("slurm", site))
    return list(difflib.unified_diff(old, new, n=context, lineterm=""))[2:]


def difference(site: str) -> str:
    """Return in what a site's scripts differ from slurm's, a job under its name, without line numbers."""
    lines: list[str] = []
    for case in JOBS[site]:
        lines += [f"# {case.job}", *("@@" if line[0] == "@" else line for line in differing(site, case, 1))]
    return "\n".join([*lines, ""])


def missing(program: str) -> str:
    """Return why a program cannot be used; nothing if it is there."""
    return "" if shutil.which(program) else f"{program} is not installed on this machine"
