"""A real sbatch reads every golden script, each value of a #SBATCH line as it was meant, and limits as the plan does."""

from __future__ import annotations

from typing import Any

import pytest

import matrix
from hpcml.errors import SiteError
from hpcml.plan import batch_script
from hpcml.schedulers import slurm_options
from labs import Lab
from matrix import IDS, MACHINE_CASES, MACHINES, PAIRS

pytestmark = pytest.mark.lab

# What the lab has not got, and what stands for it there. Lines that become empty are left out.
REWRITTEN = (
    ("--partition=boost_usr_prod", "--partition=boost"),
    ("--partition=dcgp_usr_prod", "--partition=boost"),
    ("--account=IscrC_hpcml", "--account=lab_account"),
    ('--account="it\'s \\"a\\" $b\\\\c #d"', "--account=lab_account"),
    *((f"--cpus-per-task={cpus}\n", "--cpus-per-task=8\n") for cpus in (32, 48, 72, 80, 112, 128, 256)),
    *((f"--mem={size}M\n", "--mem=3500M\n") for size in (494000, 491520, 229376, 244140, 123500)),
    *((f"--partition={name}\n", "--partition=boost\n") for name in ("booster", "gpu_a100", "rome", "gpu", "cpu")),
    *((f"#SBATCH --qos={name}\n", "") for name in ("acc_ehpc", "regular")),
    ("=gpu:a100:2", "=gpu:2"),
    ("#SBATCH --constraint=gpu\n", ""),
    ("#SBATCH --dependency=afterany:1\n", ""),
)
NAMED = dict(zip(IDS, PAIRS, strict=True)) | {
    f"{site}-{case.job}": (site, case)
    for site in MACHINES
    for case in MACHINE_CASES
    if case.job in ("four-nodes", "gpus", "hostile")
}
HOSTILE = (
    "a b", 'a"b', "a'b", "a$HOME", "a\\b", "a\\\\b", "a%jb", "a%%b", "a#b", "a `id`", "a;b|c&d", 'a\\"b', "é b",
    "a b\\", " a ",
)  # fmt: skip


def test_the_lab_would_take_the_scripts(lab: Lab, subtests: pytest.Subtests) -> None:
    for name, (site, case) in NAMED.items():
        if site == "local":
            continue
        text = matrix.text(site, case)
        for there, here in REWRITTEN:
            text = text.replace(there, here)
        with subtests.test(name):
            done = lab.exec(["sbatch", "--test-only"], input=text, cwd=lab.home("alice"))
            assert done.returncode == 0, done.stderr
            assert "to start at" in done.stderr


# Of the lab's profile, as its slurm.conf has them: the partition, a request that just keeps a limit, and one that does not.
LIMITS = (
    ("boost", {"nodes": 4}, {"nodes": 5}, "--nodes=5"),
    ("debug", {"nodes": 2}, {"nodes": 3}, "--nodes=3"),
    ("boost", {"time": "1-00:00:00"}, {"time": "1-00:01:00"}, "--time=1-00:01:00"),
    ("debug", {"time": "30"}, {"time": "31"}, "--time=31"),
    ("boost", {"gpus_per_node": 4}, {"gpus_per_node": 5}, "--gpus-per-node=5"),
    ("boost", {"cpus_per_node": 8}, {"cpus_per_node": 9}, "--cpus-per-task=9"),
)


@pytest.mark.parametrize(("partition", "at", "beyond", "option"), LIMITS)
def test_plan_and_sbatch_agree_at_each_limit(
    lab: Lab, partition: str, at: dict[str, Any], beyond: dict[str, Any], option: str
) -> None:
    asked = {"partition": partition, "nodes": 1}
    made = matrix.make("lab", matrix.Case("limit", asked | at))
    assert not [notice for notice in made.notices if "Slurm decides" in notice], made.notices
    text = batch_script.render(made)
    for words, status in (([], 0), ([option], 1)):
        done = lab.exec(["sbatch", "--test-only", *words], input=text, cwd=lab.home("alice"))
        assert done.returncode == status, done.stderr
    with pytest.raises(SiteError):
        matrix.make("lab", matrix.Case("limit", asked | beyond))


def test_sbatch_reads_a_directives_value_as_it_was_meant(lab: Lab) -> None:
    home = lab.home("alice")
    jobs = {}
    for value in HOSTILE:
        options = (("--comment", value), ("--job-name", value), ("--begin", "now+1hour"), ("--output", "/dev/null"))
        lines = "\n".join(f"#SBATCH {batch_script.directive(option)}" for option in options)
        done = lab.exec(["sbatch", "--parsable"], input=f"#!/bin/bash\n{lines}\n:\n", cwd=home)
        assert done.returncode == 0, (value, done.stderr)
        jobs[done.stdout.strip()] = value
    try:
        answer = lab.exec(["squeue", "--noheader", "--format=%i|%k|%j", f"--jobs={','.join(jobs)}"], cwd=home)
        seen = dict(line.split("|", 1) for line in answer.stdout.splitlines())
    finally:
        lab.exec(["scancel", *jobs], cwd=home)
    assert seen == {job: f"{value}|{value}" for job, value in jobs.items()}


def test_output_goes_where_the_pattern_says(lab: Lab) -> None:
    home = lab.home("alice")
    folder = home / "golden" / "a b'c\"$HOME#%j 100%%"
    lab.exec(["mkdir", "-p", str(folder)], cwd=home)
    log = folder / "job.log"
    step = batch_script.quote(f"--output={slurm_options.filename_pattern(folder)}/step-%N.log")
    output = batch_script.directive(("--output", slurm_options.filename_pattern(log)))
    text = f"#!/bin/bash\n#SBATCH {output}\n#SBATCH --mem=50M --time=1\necho job\nsrun {step} echo step\n"
    done = lab.exec(["sbatch", "--parsable", "--wait"], input=text, cwd=home, timeout=240)
    assert done.returncode == 0, done.stderr
    assert log.read_text() == "job\n"
    assert [path.read_text() for path in folder.glob("step-n*.log")] == ["step\n"]
    lab.exec(["rm", "-r", str(home / "golden")], cwd=home)
