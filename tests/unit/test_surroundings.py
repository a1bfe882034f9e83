"""The user's code in each forked worker draws random numbers of its own."""

from __future__ import annotations

import json
import subprocess
import sys

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
