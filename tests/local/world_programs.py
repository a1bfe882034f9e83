"""Programs in the style of public ones whose parallel part is in a package: MPI, JAX and torch.

Each prints ``world N`` last. ``fits`` are the options with which its ranks find each other; without them no run of it
may end with 0 and another world.
"""

from __future__ import annotations

from typing import NamedTuple


class Program(NamedTuple):
    """The files of a program, whose script is run.py, and the parallel libraries that it uses."""

    files: dict[str, str]
    run: str
    library: str = "MPI"


_MPI = "from mpi4py import MPI\n"
_SAY = "print('world', comm.Get_size())\n"
_JAX = "import jax\n"
_SAY_JAX = "print('world', jax.process_count())\n"
_TORCH = "import torch.distributed as dist\n"
_SAY_TORCH = "print('world', dist.get_world_size())\n"

PROGRAMS = {
    "function": Program(  # sirepo#3676
        {"core": f"{_MPI}def main():\n    comm = MPI.COMM_WORLD\n    {_SAY}"}, "from solver.core import main\nmain()\n"),
    "class": Program(
        {"core": f"{_MPI}class Solver:\n    def __init__(self):\n        self.comm = comm = MPI.COMM_WORLD\n        {_SAY}"},
        "from solver.core import Solver\nSolver()\n"),
    "method": Program(
        {"core": f"{_MPI}class Solver:\n    def run(self):\n        comm = MPI.COMM_WORLD\n        {_SAY}"},
        "from solver.core import Solver\nSolver().run()\n"),
    "module level": Program({"parallel": f"{_MPI}comm = MPI.COMM_WORLD\n"}, f"from solver.parallel import comm\n{_SAY}"),
    "package hands on": Program(
        {"__init__": "from .core import main\n", "core": f"{_MPI}def main():\n    comm = MPI.COMM_WORLD\n    {_SAY}"},
        "import solver\nif __name__ == '__main__':\n    solver.main()\n"),
    "command line": Program(
        {"cli": "import sys\nfrom solver.core import main\nCOMMANDS = {'run': main}\ndef start():\n    COMMANDS['run']()\n",
         "core": f"{_MPI}def main():\n    comm = MPI.COMM_WORLD\n    {_SAY}"}, "from solver.cli import start\nstart()\n"),
    "import in a function": Program(
        {"core": "def world():\n    from mpi4py import MPI\n    return MPI.COMM_WORLD\n"},
        f"from solver.core import world\ncomm = world()\n{_SAY}"),
    "import in a try": Program(
        {"core": "try:\n    from mpi4py import MPI\n    comm = MPI.COMM_WORLD\nexcept ImportError:\n    comm = None\n"},
        f"from solver.core import comm\n{_SAY}"),
    "bare except": Program(  # the program continues as if there were no MPI
        {"core": "size = 1\ntry:\n    from mpi4py import MPI\n    size = MPI.COMM_WORLD.Get_size()\nexcept:\n    pass\n"},
        "from solver.core import size\nprint('world', size)\n"),
    "importlib": Program(
        {"core": "import importlib\ndef load(name):\n    return importlib.import_module(name)\n"},
        f"from solver.core import load\ncomm = load('mpi4py.MPI').COMM_WORLD\n{_SAY}"),
    "plugin by name": Program(
        {"plugins/__init__": "", "plugins/mpi": f"{_MPI}comm = MPI.COMM_WORLD\n",
         "core": "import importlib\ncomm = importlib.import_module('solver.plugins.mpi').comm\n"},
        f"from solver.core import comm\n{_SAY}"),
    "serial fallback": Program(
        {"core": f"{_MPI}comm = MPI.COMM_WORLD\nif comm.Get_size() == 1:\n    print('serial')\n"},
        f"from solver.core import comm\n{_SAY}"),
    "child process": Program(
        {"core": f"{_MPI}comm = MPI.COMM_WORLD\n{_SAY}"},
        "import subprocess, sys\nsubprocess.run([sys.executable, '-m', 'solver.core'], check=False)\n"),
    "jax": Program(
        {"core": f"{_JAX}def main():\n    jax.distributed.initialize()\n    {_SAY_JAX}"},
        "from solver.core import main\nmain()\n", "JAX"),
    "jax by a flag": Program(
        {"core": f"{_JAX}def main(multihost=True):\n    if multihost:\n        jax.distributed.initialize()\n    {_SAY_JAX}"},
        "from solver.core import main\nmain()\n", "JAX"),
    "jax by a short name": Program(
        {"mesh": "from jax.distributed import initialize\ndef setup():\n    initialize()\n"},
        f"{_JAX}from solver.mesh import setup\nsetup()\n{_SAY_JAX}", "JAX"),
    "jax of one": Program(
        {"core": f"{_JAX}import os\ndef setup():\n    n = int(os.environ.get('MY_HOSTS', 1))\n"
                 "    jax.distributed.initialize('127.0.0.1:1234', num_processes=n, process_id=0)\n"},
        f"{_JAX}from solver.core import setup\nsetup()\n{_SAY_JAX}", "JAX of one"),
    "torch": Program(
        {"ddp": f"{_TORCH}def setup():\n    dist.init_process_group('nccl')\n"},
        f"{_TORCH}from solver.ddp import setup\nsetup()\n{_SAY_TORCH}", "torch"),
    "torch in a class": Program(
        {"trainer": f"{_TORCH}class Trainer:\n    def fit(self):\n        dist.init_process_group()\n        {_SAY_TORCH}"},
        "from solver.trainer import Trainer\nTrainer().fit()\n", "torch"),
    "torch by the variables": Program(
        {"env": "import os\nRANK = int(os.environ['RANK'])\nWORLD = int(os.environ['WORLD_SIZE'])\n"},
        "from solver.env import WORLD\nprint('world', WORLD)\n", "torch"),
    "torch with a world of MPI in a method": Program(
        {"dist_util": f"import os\n{_TORCH}{_MPI}class Setup:\n    def start(self):\n        comm = MPI.COMM_WORLD\n"
                      "        os.environ.update(RANK=str(comm.Get_rank()), WORLD_SIZE=str(comm.Get_size()))\n"
                      "        dist.init_process_group('nccl')\n"},
        f"{_TORCH}from solver.dist_util import Setup\nSetup().start()\n{_SAY_TORCH}", "MPI in torch"),
    "torch, and MPI if it is there": Program(
        {"core": f"{_TORCH}{_MPI}class Setup:\n    def start(self):\n        if MPI.COMM_WORLD.Get_size() > 1:\n            return\n"
                 "        dist.init_process_group('nccl')\n"},
        f"{_TORCH}from solver.core import Setup\nSetup().start()\n{_SAY_TORCH}", "torch"),
    "torch with a world of MPI": Program(  # guided-diffusion
        {"dist_util": f"import os\n{_TORCH}{_MPI}def setup():\n    comm = MPI.COMM_WORLD\n"
                      "    os.environ.update(RANK=str(comm.Get_rank()), WORLD_SIZE=str(comm.Get_size()))\n"
                      "    dist.init_process_group('nccl')\n"},
        f"{_TORCH}from solver.dist_util import setup\nsetup()\n{_SAY_TORCH}", "MPI in torch"),
}  # fmt: skip
