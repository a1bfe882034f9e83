"""MPI, JAX and torch as far as their worlds go, for machines without them: files of a folder of modules.

A world is as large as a launcher's variables say, as in the libraries; nothing is sent.
"""

from __future__ import annotations

from pathlib import Path

FILES = {
    "jax/__init__.py": """\
from jax import distributed
from jax._src.distributed import global_state


def process_index() -> int:
    return global_state.process_id


def process_count() -> int:
    return global_state.num_processes
""",
    "jax/_src/__init__.py": "",
    "jax/_src/distributed.py": """\
import os

_SLURM = ("SLURM_JOB_ID", "SLURM_STEP_NODELIST", "SLURM_NTASKS", "SLURM_PROCID", "SLURM_LOCALID")


class _State:
    num_processes = 1
    process_id = 0


global_state = _State()


def initialize(coordinator_address=None, num_processes=None, process_id=None):
    if num_processes is None and all(name in os.environ for name in _SLURM):
        num_processes, process_id = int(os.environ["SLURM_NTASKS"]), int(os.environ["SLURM_PROCID"])
    if num_processes is None:
        raise ValueError("Number of processes must be defined.")
    global_state.num_processes, global_state.process_id = num_processes, process_id
""",
    "jax/distributed.py": """\
from jax._src.distributed import initialize
""",
    "mpi4py/MPI.py": """\
import os


class _World:
    def __init__(self, size: int, rank: int) -> None:
        self.size, self.rank = size, rank

    def Get_size(self) -> int:
        return self.size

    def Get_rank(self) -> int:
        return self.rank

    def allreduce(self, value: int) -> int:
        return value * self.size


COMM_WORLD = _World(int(os.environ.get("OMPI_COMM_WORLD_SIZE", "1")), int(os.environ.get("OMPI_COMM_WORLD_RANK", "0")))


def Is_initialized() -> bool:
    return True


def Is_finalized() -> bool:
    return False
""",
    "mpi4py/__init__.py": "",
    "torch/__init__.py": "",
    "torch/distributed/__init__.py": """from torch.distributed.distributed_c10d import *
""",
    "torch/distributed/distributed_c10d.py": """\
import os

_world = 0


def init_process_group(backend=None, rank=None, world_size=None):
    global _world
    os.environ["RANK"]  # as in torch, an error where nobody set it
    _world = world_size or int(os.environ["WORLD_SIZE"])


def get_world_size():
    return _world
""",
}


def write(folder: Path) -> None:
    """Write the libraries into a folder of modules."""
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
