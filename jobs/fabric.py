"""Measure the wire between all workers of a run: a table, a picture and what UCX, the counters and NCCL say of it.

    hpcml fabric --nodes 2 --gpus-per-node 4      the command that submits this script
    hpcml submit --nodes 2 jobs/fabric.py         the same, on CPU workers: TLS over TCP

Every worker fetches from its like on every other node, all nodes at once, in N-1 rounds for N nodes; and from its
neighbour within the node. Writes fabric.json (all figures and evidence) and fabric.svg into the run's out/.
Exit status: 0 measured; 1 a pair of workers could not talk; 2 not in a run.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import hpcml
from hpcml.node.fabric import picture, report, rounds
from hpcml.node.fabric.measurement import Measurement
from hpcml.terminal import say, say_lines


async def measure(dask_scheduler: Any) -> dict[str, Any]:
    return await rounds.measure_all(dask_scheduler)


def main() -> int:
    if hpcml.run.directory is None:
        say("fabric: this measures the nodes of a run. Start it by: hpcml fabric --nodes 2", sys.stderr)
        return 2
    with hpcml.connect() as client:
        found = client.run_on_scheduler(measure)
    measurement = Measurement.from_json(found)
    decided = report.decide(measurement)
    out = hpcml.run.out
    facts = {"verdict": decided.to_json(), "measurement": found}
    (out / "fabric.json").write_text(json.dumps(facts, indent=1) + "\n")
    (out / "fabric.svg").write_text(picture.matrix_svg(measurement.pairs, f"{decided.line}"))
    say_lines(picture.matrix_text(measurement.pairs))
    say()
    say(decided.line)
    for words in (*decided.problems, decided.remedy):
        if words:
            say(f"  {words}")
    say()
    say(f"The picture: {out / 'fabric.svg'}")
    return 1 if any(pair.error for pair in measurement.pairs) else 0


if __name__ == "__main__":
    raise SystemExit(main())
