"""A real sbatch reads every golden script, and each value of a #SBATCH line as it was meant."""

from __future__ import annotations

import pytest

import matrix
from hpcml.plan import batch_script
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
