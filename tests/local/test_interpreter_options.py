"""Options of the Python that runs the script: tasks have those that a LocalCluster's workers would inherit."""

from __future__ import annotations

import sys

import pytest

from homes import Here, here

pytestmark = pytest.mark.local

__all__ = ["here"]

FLAGS = """
import sys, hpcml
def flags():
    return sys.flags.optimize, sys.flags.utf8_mode
if __name__ == "__main__":
    print(*flags(), *hpcml.connect().submit(flags).result())
"""


def test_tasks_have_the_options_of_the_script_s_python(here: Here, subtests: pytest.Subtests) -> None:
    here.script(FLAGS)
    program = here.folder / "she.py"
    program.write_text(f"#!/usr/bin/env -S {sys.executable} -O -X utf8\n{FLAGS}")
    program.chmod(0o700)
    for words, expected in (
        ((sys.executable, "-OO", "-Xutf8", "my script.py"), "2 1 2 1"),
        (("./she.py",), "0 0 0 0"),
    ):
        with subtests.test(" ".join(words[1:] or words)):
            done = here.run("submit", "--wait", "--", *words)
            assert done.returncode == 0, done.stderr
            assert done.stdout.strip() == expected
            is_noted = "hpcml ignores the script's first line" in done.stderr.replace("\n", " ")
            assert is_noted is (words[0] == "./she.py")
