"""What one more scheduler takes: one for PBS, defined here alone, plans a run and renders its batch script."""

# ruff: noqa: ARG002 - it has a scheduler's signatures, and needs little of them

from __future__ import annotations

import ast
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

import hpcml
from hpcml import schedulers, units
from hpcml.errors import ConfigError, SiteError, UsageError
from hpcml.paths import SCRIPT, RunPaths
from hpcml.plan import batch_script, make_plan
from hpcml.request.record import RunRequest, measure
from hpcml.schedulers import JobEnd, JobLayout, JobRequest, JobState, Launcher, Submission
from hpcml.sites import schema
from hpcml.sites.schema import Site
from matrix import PYTHON, SCRIPTS, site_of

FOLDER = Path("/scratch/alice/runs/third-20261121-074500-1a2b")
ON_EACH_NODE = 'export HPCML_NODE="$(hostname -s)"; exec "$@" >>"$HPCML_RUN_DIR/logs/{}.log" 2>&1'
NAMES = (
    'HPCML_NODE="$(hostname -s)"; export HPCML_JOB="$PBS_JOBID"',
    'HPCML_NODE_NAMES="$(awk \'!seen[$0]++\' "$PBS_NODEFILE" | paste -sd,)"; export HPCML_NODE_NAMES',
)


class Pbs:
    """A scheduler as ``hpcml/schedulers/pbs.py`` would be one; nothing is submitted here."""

    ONE_MACHINE, OWN_JOBS, BATCH_SCRIPTS = False, True, False
    NODE_OPTIONS: tuple[str, ...] = ()

    def lay_out(self, site: Site, request: JobRequest) -> JobLayout:
        size, place = request.spec.size, request.spec.place
        if place.sbatch:
            option = place.sbatch[0][0]
            raise SiteError(f"PBS has no {option}", place=f"site {site.name}", hint="Leave it out.")
        chunk = f"select={size.nodes}:ncpus={size.cpus_per_node or 1}"
        chunk += f":mem={int(size.memory_per_node) >> 20}mb" if size.memory_per_node else ""
        words = [f"-N {request.spec.name}", f"-l {chunk}", "-l place=scatter", "-r n", "-j oe"]
        words += [f"-o {request.paths.job_log}"]
        words += [f"-l walltime={units.format_time_limit(size.time)}"] if size.time else []
        words += [f"-A {place.account}"] if place.account else []
        words += [f"-q {place.partition}"] if place.partition else []
        roles = {role.name: role.every_node for role in request.roles} | {SCRIPT: False, "stage": True}
        return JobLayout(
            directives=tuple((word, "") for word in words),
            directive_word="#PBS",
            prologue=NAMES,
            launchers={name: launcher(name, size.nodes if every_node else 1) for name, every_node in roles.items()},
            nodes_word=str(size.nodes),
            job_word='"$PBS_JOBID"',
            follow_up='qsub -W depend=afterany:"$this_job" "$HPCML_RUN_DIR/job.sh"',
            forget="qdel",
            memory=int(size.memory_per_node),
        )

    def submit(self, site: Site, run: RunPaths) -> Submission:
        raise NotImplementedError

    def line(self, run: RunPaths) -> str:
        return f"qsub {run.script}"

    def find(self, run_ids: Sequence[str], clusters: str = "") -> dict[str, Submission]:
        raise NotImplementedError

    def states(self, jobs: Sequence[str]) -> dict[str, JobState]:
        raise NotImplementedError

    def end(self, job: str) -> JobEnd:
        return JobEnd()

    def cancel(self, job: str) -> str:
        raise NotImplementedError

    def check(self, script: Path) -> str:
        raise UsageError("PBS checks no script", place="--check", hint="Remove --check.")

    def clean_environment(self) -> dict[str, str]:
        raise NotImplementedError

    def foreign_variables(self) -> list[str]:
        return []

    def outer_job(self) -> str:
        return ""


def launcher(role: str, processes: int) -> Launcher:
    """Return the words that start a role, with the node's name and the role's log."""
    log = role if processes == 1 and role != "worker" else f"{role}-$HPCML_NODE"
    each = ("/bin/sh", "-c", ON_EACH_NODE.format(log), "sh")
    return Launcher("mpiexec", "", ("-n", str(processes), "-ppn", "1", *each))


@pytest.fixture
def pbs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do to hpcml what the two changed files would: a choice of the profile, and a row in the table of schedulers."""
    scheduler: schedulers.Scheduler = Pbs()
    known = schedulers.get
    monkeypatch.setattr(schedulers, "get", lambda name: scheduler if name == "pbs" else known(name))
    monkeypatch.setitem(schema.CHOICES, "scheduler", (*schema.CHOICES["scheduler"], "pbs"))


def planned(settings: Mapping[str, object] | None = None, **asked: object) -> make_plan.Plan:
    site = site_of({"scheduler": "pbs", **(settings or {})})._replace(name="pbs")
    request: dict[str, Any] = dict(asked)
    request |= {name: measure(name, str(asked[name])) for name in ("time", "memory_per_node") if name in asked}
    job = RunRequest.of(Path("/home/alice/kmeans.py"), ("--k", "8"), Path("/home/alice"), **request)
    return make_plan.plan(site, job, make_plan.RunLocation(FOLDER, PYTHON, "0.0.0"))


@pytest.mark.usefixtures("pbs")
def test_a_run_is_planned_and_rendered_for_a_scheduler_that_hpcml_does_not_have(request: pytest.FixtureRequest) -> None:
    made = planned(nodes=4, time="30", cpus_per_node=16, memory_per_node="32G", until_done=True)
    text = batch_script.render(made)
    file = SCRIPTS / "pbs-until-done.sh"
    if request.config.getoption("--bless"):
        file.write_text(text, encoding="utf-8")
    assert text == file.read_text(encoding="utf-8"), "if that is meant: make bless, read the difference"
    assert not [word for word in ("slurm", "SBATCH", "srun", "scontrol") if word.lower() in text.lower()]
    done = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert not made.inside.job.one_machine


@pytest.mark.usefixtures("pbs")
def test_what_a_scheduler_lacks_is_refused_or_left_out() -> None:
    for find in (schedulers.find_machine, schedulers.find_adviser, schedulers.find_nodes, schedulers.in_allocation):
        assert not find("pbs")
    assert schedulers.find_other_jobs("pbs") is None
    with pytest.raises(SiteError, match="supports only hpcml submit"):
        schedulers.other_jobs("pbs")
    with pytest.raises(SiteError, match="cannot start programs on the nodes"):
        schedulers.nodes_of("pbs")
    with pytest.raises(SiteError, match="PBS has no --constraint"):
        planned(sbatch=(("--constraint", "gpu"),))
    with pytest.raises(ConfigError, match="sbcast"):
        planned({"runtime": {"stage": "sbcast"}}, image="/images/cpu.sif")
    assert planned({"runtime": {"stage": "copy"}}, image="/images/cpu.sif").stage


def test_no_other_module_asks_which_scheduler_it_is() -> None:
    package = Path(hpcml.__file__).parent
    names = {"slurm", "local", "allocation"}
    found = set()
    for path in package.rglob("*.py"):
        if path.parent.name == "schedulers":
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Compare) or "scheduler" not in ast.unparse(node.left):
                continue
            if any(isinstance(one, ast.Constant) and one.value in names for one in node.comparators):
                found.add(str(path.relative_to(package)))
    assert found == set()
