"""The program of ``hpcml fabric``: measure the interconnect between all workers of a run, as a table and a picture.

Every worker fetches from its like on every other node, all nodes at once, in N-1 rounds for N nodes; and from its
neighbour within the node. Writes fabric.json (all figures and evidence) and fabric.svg into the run's out/.
Exit status: 0 measured; 1 a pair of workers could not talk; 2 not in a run.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict

import dask.config
from distributed import Client

from hpcml.kinds.dask.node import (
    interconnect,
    ucx_preload,  # noqa: F401 - authenticates UCX here, where the run has a key for it
)
from hpcml.node.interconnect import picture
from hpcml.node.interconnect.measurement import Measurement
from hpcml.node.interconnect.result import decide
from hpcml.node.settings import load
from hpcml.terminal import say, say_lines


def main() -> int:
    """Measure, show and write; return the exit status."""
    if "HPCML_RUN_DIR" not in os.environ:
        say("fabric: this measures the nodes of a run. Start it by: hpcml fabric --nodes 2", sys.stderr)
        return 2
    with dask.config.set({"distributed.client.preload": []}), Client() as client:
        measurement: Measurement = client.run_on_scheduler(interconnect.measure_all)
    result = decide(measurement)
    out = load().run.out
    facts = {"verdict": result.to_json(), "measurement": asdict(measurement)}
    (out / "fabric.json").write_text(json.dumps(facts, indent=1) + "\n")
    nodes = {name: worker.node for name, worker in measurement.workers.items()}
    if not measurement.pairs:
        say(f"{result.line}: this run has one worker.")
        say("To measure two nodes: hpcml fabric --nodes 2.")
        return 0
    say_lines(picture.matrix_text(measurement.pairs, nodes))
    say()
    say(result.line)
    for sentence in filter(None, (*result.problems, result.remedy)):
        say(f"  {sentence}")
    say()
    try:
        (out / "fabric.svg").write_text(picture.matrix_svg(measurement.pairs, result.line, nodes))
    except ImportError as error:
        say(f"No picture: matplotlib cannot be imported here ({error}).")
    else:
        say(f"The picture: {out / 'fabric.svg'}")
    return 1 if any(pair.error for pair in measurement.pairs) else 0


if __name__ == "__main__":
    sys.exit(main())
