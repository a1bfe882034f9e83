"""``python -m hpcml.kinds.report_process RUN_DIRECTORY ATTEMPT`` makes the report once a line comes by its input."""

from __future__ import annotations

import gc
import signal
import sys
from pathlib import Path

from hpcml import kinds
from hpcml.paths import RunPaths
from hpcml.report.contents import accounting_of
from hpcml.report.page import make  # before the line comes: the import takes most of the time
from hpcml.run_files import Recorded

MOST_SAMPLES = 12 << 20  # bytes of the nodes' samples: a second of a processor, for which the nodes wait

gc.disable()  # a seventh of the time: it would look at a million values again and again, and all of them stay

# A cancelled job tells all of its processes to end; how long this one may take, the supervisor decides.
for _number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
    signal.signal(_number, signal.SIG_IGN)
paths = RunPaths(Path(sys.argv[1]))
kind = kinds.get(Recorded(paths).plan.kind)
accounting_of(kind)  # its import too
if sys.stdin.readline():
    make(paths, int(sys.argv[2]), kind, most=MOST_SAMPLES)
