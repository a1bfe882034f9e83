"""The user's code in each forked worker draws random numbers of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from hpcml import assets

FORKS = """
import json, os, numpy.random
from hpcml.node import script_environment

def number():
    reader, writer = os.pipe()
    if not os.fork():
        script_environment._draw_anew()
        os.write(writer, str(numpy.random.rand()).encode())
        os._exit(0)
    os.wait()
    return os.read(reader, 100).decode()

print(json.dumps([number(), number()]))
"""


def test_workers_of_one_parent_draw_different_numbers() -> None:
    """NumPy's global state is copied by a fork: without the seed all workers of a node draw the same."""
    done = subprocess.run([sys.executable, "-c", FORKS], capture_output=True, text=True, check=True)
    one, other = json.loads(done.stdout)
    assert one != other


def test_all_workers_hash_a_string_alike(tmp_path: Path) -> None:
    """Dask's Nanny sees to it elsewhere; a number of the user's own stays."""
    (tmp_path / "attempts/0/exit").mkdir(parents=True)
    step = str(assets.folder("templates") / "step.sh")
    for own, expected in (("", "6640"), ("0", "6640"), ("random", "random"), ("7", "7")):
        environment = {
            "PATH": os.environ["PATH"],
            "HPCML_RUN_DIR": str(tmp_path),
            "HPCML_ATTEMPT": "0",
            "PYTHONHASHSEED": own,
        }
        words = ["sh", step, "worker", "sh", "-c", "echo $PYTHONHASHSEED"]
        assert (
            subprocess.run(words, env=environment, capture_output=True, text=True, check=True).stdout == f"{expected}\n"
        )
