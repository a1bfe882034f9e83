"""``hpcml.map`` with executables in place of Slurm's: arrays that run at once, one after another, on this machine."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from world import World

SBATCH = """#!/bin/bash
# Run each task of the array; the job's id is the number of submissions.
count=$(( $(cat "$FAKE_STATE/count" 2>/dev/null || echo 100) + 1 )); echo $count >"$FAKE_STATE/count"
script="${!#}"; cp "$script" "$FAKE_STATE/$count.sh"
last=$(sed -n 's/^#SBATCH --array=0-\\([0-9]*\\).*/\\1/p' "$script")
(for task in $(seq 0 "$last"); do
  export SLURM_JOB_ID=$((1000 + task)) SLURM_ARRAY_JOB_ID=$count SLURM_ARRAY_TASK_ID=$task SLURM_CPUS_ON_NODE=1
  bash "$script"
done) >"$FAKE_STATE/$count.log" 2>&1 </dev/null &
echo $count
"""
SRUN = """#!/bin/bash
while [ "${1#-}" != "$1" ]; do
  case $1 in --output=*) out="${1#--output=}"; out="${out//%A/$SLURM_ARRAY_JOB_ID}"; out="${out//%a/$SLURM_ARRAY_TASK_ID}"; out="${out//%t/0}" ;; esac
  shift
done
exec "$@" >"$out" 2>&1
"""
SQUEUE = """#!/bin/bash
# All tasks run, with the comments of their arrays: what a point returns says that it has ended.
for script in "$FAKE_STATE"/1*.sh; do
  job="${script##*/}"; comment=$(sed -n 's/^#SBATCH --comment=//p' "$script")
  for task in 0 1 2 3 4; do echo "${job%.sh}|$task|RUNNING|$comment"; done
done
"""
PROGRAM = """
import json, os
import hpcml
def f(x):
    print("point", x)
    if x == 2: raise ValueError("two")
    return x * x, os.environ["COLOUR"]
jobs = hpcml.map(f, range(POINTS), site="slurm", time="5m", env=["COLOUR=a b'c"], partition="fast")
errors = [one.exception() for one in jobs]
print(json.dumps([[one.job_id, 'ValueError("two")' in str(error) if error else one.result()] for one, error in zip(jobs, errors)]))
assert f"point {POINTS - 1}" in jobs[-1].stdout()
"""


@pytest.mark.parametrize("there", [True, False], ids=["scontrol", "no scontrol"])
def test_points_run_in_arrays_that_slurm_takes(world: World, there: bool) -> None:
    bin_ = world.bin
    for name, text in (("sbatch", SBATCH), ("srun", SRUN), ("squeue", SQUEUE)):
        (bin_ / name).write_text(text)
        (bin_ / name).chmod(0o755)
    for tool in ("sed", "seq", "cp"):
        (bin_ / tool).symlink_to(f"/usr/bin/{tool}")
    fakes = Path(world.environment["PATH"].partition(":")[0])
    for name in ("sacct", "scancel", *(["scontrol"] if there else [])):
        (bin_ / name).write_text(f'#!/bin/bash\nexec "{fakes / name}" "$@"\n')
        (bin_ / name).chmod(0o755)
    world.answer("scontrol", out="MaxArraySize            = 2\n")
    points = 5 if there else 3
    (world.project / "program.py").write_text(f"POINTS = {points}\n{PROGRAM}")
    environment = world.environment | {"PATH": str(bin_)}
    done = subprocess.run([sys.executable, "program.py"], cwd=world.project, env=environment, capture_output=True,
                          text=True, timeout=200, check=False)  # fmt: skip
    logs = "".join(path.read_text() for path in world.state.glob("*.log"))
    assert done.returncode == 0, done.stderr + logs
    jobs = ["101_0", "101_1", "102_0", "102_1", "103_0"] if there else [f"101_{task}" for task in range(points)]
    values = [[0, "a b'c"], [1, "a b'c"], True, [9, "a b'c"], [16, "a b'c"]]
    assert json.loads(done.stdout) == [list(pair) for pair in zip(jobs, values[:points], strict=True)]
    arrays = [
        line
        for path in sorted(world.state.glob("1*.sh"))
        for line in path.read_text().splitlines()
        if "--array" in line
    ]
    assert arrays == [f"#SBATCH --array={one}" for one in (["0-1", "0-1", "0-0"] if there else ["0-2"])]
