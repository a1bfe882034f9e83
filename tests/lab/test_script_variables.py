"""What MPI, mpiexec and srun do in a script on Slurm: as in a batch script."""

from __future__ import annotations

import json
import shutil

import pytest

from beside import SMALL
from conftest import Cluster
from test_ranks_on_nodes import library

pytestmark = [pytest.mark.lab, pytest.mark.beside]

ONE = ("--nodes", "1", "--cpus-per-node", "4", "--memory-per-node", "1G")
# Open MPI without mpi4py and compiler, in a process of its own as h5py or emcee start it.
SIZE = """
import ctypes
mpi = ctypes.CDLL("libmpi.so.40")
mpi.MPI_Init(None, None)
size = ctypes.c_int()
mpi.MPI_Comm_size(ctypes.byref(ctypes.c_void_p.in_dll(mpi, "ompi_mpi_comm_world")), ctypes.byref(size))
print(f"world of {size.value}\\n", end="", flush=True)
mpi.MPI_Finalize()
"""
VARIABLES = """
import json, os, subprocess
import hpcml
def look():
    return dict(os.environ)
client = hpcml.connect()
tasks = subprocess.run(["srun", "sh", "-c", "echo $SLURM_PROCID"], capture_output=True, text=True)
found = {"script": look(), "task": client.submit(look).result(), "srun": tasks.stdout.split(), "said": tasks.stderr}
(hpcml.run.out / "found.json").write_text(json.dumps(found))
"""
OF_THE_JOB = ("SLURM_JOB_ID", "SLURM_TASK_PID", "SLURM_PRIO_PROCESS", "SLURM_JOB_NAME")  # each job has its own


def slurms(variables: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in variables.items() if name.startswith(("SLURM", "SRUN_", "PMI"))}


def test_a_script_and_its_tasks_have_the_variables_of_a_batch_script(cluster: Cluster) -> None:
    run = cluster.submit(VARIABLES, *SMALL)
    assert run.code == 0, (run.out, run.err)
    found = json.loads((run.directory / "out/found.json").read_text())
    assert sorted(found["srun"]) == ["0", "1"], found["said"]
    output = cluster.work / "by-hand.json"
    python = "python3 -c 'import json, os; print(json.dumps(dict(os.environ)))'"
    done = cluster.run(
        "sbatch", "--wait", *SMALL[:2], "--ntasks-per-node=1", "--open-mode=append", "-o", str(output), "--wrap", python
    )
    assert done.returncode == 0, done.stderr
    by_hand = slurms(json.loads(output.read_text()))
    tasks = {"SLURM_NTASKS", "SLURM_NPROCS", "SLURM_NTASKS_PER_NODE"}
    script, task = slurms(found["script"]), slurms(found["task"])
    asked = {"SLURM_CPUS_PER_TASK", "SLURM_MEM_PER_NODE", "SLURM_MEM_PER_CPU"}  # by the options of one of them alone
    assert script.keys() - asked == by_hand.keys() - tasks - asked
    same = script.keys() & by_hand.keys() & {"SLURM_NNODES", "SLURM_TASKS_PER_NODE", "SLURM_PROCID", "SLURM_CONF"}
    assert {name: script[name] for name in same} == {name: by_hand[name] for name in same}
    assert task.keys() == script.keys()


def test_mpi_works_without_ranks(cluster: Cluster) -> None:
    library(cluster, "pmix")
    script = cluster.write("size.py", SIZE)
    for words in ((str(script),), ("--", "python3", str(script))):
        done = cluster.run("hpcml", "submit", "--wait", *ONE, *words)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "world of 1" in done.stdout
    in_a_task = f"import hpcml\ndef task():\n    exec({SIZE!r}, {{}})\n    return 7\nprint(hpcml.connect().submit(task).result())\n"
    run = cluster.submit(in_a_task, *ONE)
    assert (run.code, run.out.strip()) == (0, "7"), run.err


def test_mpiexec_starts_a_process_for_each_cpu_of_one_node(cluster: Cluster) -> None:
    library(cluster, "pmix")
    if not shutil.which("mpiexec"):
        pytest.skip("no mpiexec here")
    script = cluster.write("size.py", SIZE)
    done = cluster.run("hpcml", "submit", "--wait", *ONE, "--", "mpiexec", "-n", "4", "python3", str(script))
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("world of 4") == 4


def test_ranks_of_mpi_without_its_option_are_an_error(cluster: Cluster, subtests: pytest.Subtests) -> None:
    """A compiled program at once; Python that starts MPI without mpi4py, as petsc4py does, at its end."""
    library(cluster, "pmix")
    script = cluster.write("size.py", SIZE)
    for words in ((str(script),), ("--", "python3", str(script))):
        with subtests.test(" ".join(words)):
            done = cluster.run("hpcml", "submit", "--wait", *SMALL, "--ranks", "2", *words)
            assert done.returncode == 80, done.stdout + done.stderr
            assert "the 4 ranks did not find each other" in done.stderr
    if not shutil.which("gcc"):
        pytest.skip("no gcc here")
    source = cluster.write("solver.c", "int MPI_Init(int *, char ***); int sleep(int);\n"
                           "int main(int n, char **v) { MPI_Init(&n, &v); sleep(300); return 0; }\n")  # fmt: skip
    program = str(source.with_suffix(""))
    built = cluster.run("gcc", "-o", program, str(source), "-l:libmpi.so.40")
    assert built.returncode == 0, built.stderr
    done = cluster.run("hpcml", "submit", "--wait", *SMALL, "--ranks", "2", "--", program)
    assert done.returncode == 80, done.stdout + done.stderr
    assert "the program solver uses MPI (libmpi)" in done.stderr
