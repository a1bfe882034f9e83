"""What the user's code finds in a role: random numbers of its own, signals, and what the documentation says of it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import alike

DOCS = Path(__file__).resolve().parents[2] / "docs/surroundings.md"


def test_the_documentation_lists_what_may_differ() -> None:
    """Each row of a table is one of the test's list, and the other way round."""
    parts = re.split(r"^## ", DOCS.read_text(), flags=re.MULTILINE)[1:4]
    rows = [re.findall(r"^\| `([^`]+)` \|", part, flags=re.MULTILINE) for part in parts]
    assert [sorted(part) for part in rows] == [sorted(one) for one in (alike.SCRIPT, alike.TASKS, alike.WORKERS)]
    inherited = DOCS.with_name("porting.md").read_text().partition("## What workers inherit")[2].partition("\n## ")[0]
    assert sorted(re.findall(r"^\| `([^`]+)` \|", inherited, flags=re.MULTILINE)) == sorted(alike.INHERITED)


def test_a_difference_is_found() -> None:
    own = {"umask": "0o22", "environment": {"DASK_X": "1"}, "path": ["/tmp/hpcml_1/own", "/code"]}
    script = {"umask": "0o22", "environment": {}, "path": ["/code"]}
    found = {"script": script, "scheduler": own, "a": own, "b": {**own, "umask": "0o77"}}
    assert alike.differences({**found, "b": own}) == []
    assert alike.differences(found) == ["umask: '0o22' in script, '0o77' in b", "umask: '0o22' in a, '0o77' in b"]
    assert alike.differences({**found, "b": {**own, "path": ["/tmp/hpcml_1/own", "/other"]}})[0].startswith("path: ")


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


@pytest.mark.parametrize("anew", [True, False])
def test_workers_of_one_parent_draw_different_numbers(*, anew: bool) -> None:
    """NumPy's global state is copied by a fork: without the seed all workers of a node draw the same."""
    text = FORKS if anew else FORKS.replace("script_environment._draw_anew()", "pass")
    done = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, check=True, env=dict(os.environ)
    )
    one, other = json.loads(done.stdout)
    assert (one != other) is anew
