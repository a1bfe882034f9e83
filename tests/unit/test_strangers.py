"""What strangers may cost: the ration of lines and the limits of files."""

from __future__ import annotations

import logging
import resource
import subprocess
import sys

import pytest

pytest.importorskip("distributed", reason="Dask is not installed (hpcml's extra node)")

from hpcml.kinds.dask.node.security import connection_limits
from hpcml.node.process_helpers import raise_file_limit


def test_a_loud_logger_has_a_ration(caplog: pytest.LogCaptureFixture) -> None:
    loud = logging.getLogger("hpcml.test.loud")
    few = connection_limits.LineLimit()
    loud.addFilter(few)
    with caplog.at_level(logging.INFO, "hpcml.test.loud"):
        for number in range(5000):
            loud.warning("refused %d", number)
        assert len(caplog.records) == connection_limits.LINES_A_MINUTE
        few.minute -= 61
        loud.error("refused %s", "again")
    untold = 5000 - connection_limits.LINES_A_MINUTE
    assert caplog.messages[-1] == f"refused again (and {untold} more lines, not shown)"


LIMITS = """
import os, resource
from hpcml.kinds.dask.node.security import connection_limits
for soft, hard in ((256, 1024), (1024, 1024), (64, 20000)):
    if not os.fork():
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        connection_limits.guard()
        connection_limits.guard()
        print(*resource.getrlimit(resource.RLIMIT_NOFILE), connection_limits.most_half_open(), flush=True)
        os._exit(0)
    os.wait()
"""


@pytest.mark.skipif(resource.getrlimit(resource.RLIMIT_NOFILE)[1] < 20000, reason="the machine's hard limit is lower")
def test_the_limit_of_files_is_raised() -> None:
    done = subprocess.run([sys.executable, "-c", LIMITS], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.splitlines() == ["1024 1024 256", "1024 1024 256", "20000 20000 2048"], done.stderr


def test_a_scheduler_says_that_it_cannot_have_so_many_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its listener would accept nobody any more, and the run wait for its deadline."""
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 1024))
    need = "can open only 1024 files (ulimit -Hn), but 1000 workers need 3064 open files: use at most 320 workers"
    assert need in connection_limits.too_few_files(1000)
    assert connection_limits.too_few_files(320) == ""
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert connection_limits.too_few_files(100_000) == ""


def test_a_machine_without_limits_gets_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some programs make a table of all files that there may be."""
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 1 << 30))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: asked.append(limits))
    raise_file_limit()
    assert asked == [(1 << 20, 1 << 30)]
