"""Jobs that a Python program submits, each with a GPU: the points of ``hpcml.map``, the workers of ``hpcml.ElasticCluster``.

And the script of the course's exercise on GPUs (docs/teaching/4-machine.md), with 100 million rows for each GPU.
"""

from __future__ import annotations

import re
from functools import partial

from harness import ROOT, SCRIPTS, Case, World, last_lines, read_json
from results import Result, result

DEADLINE = 240
ABOUT = 70  # seconds of one program
EXPECTED = [float(sum(range(1000 * (point + 1)))) for point in range(4)]


def cases(world: World) -> list[Case]:
    """Return the two programs, with one GPU for each node, and the script."""
    return [
        Case("hpcml.map", ABOUT, partial(_program, world, "map")),
        Case("hpcml.ElasticCluster", ABOUT, partial(_program, world, "elastic")),
        Case("the course's script", ABOUT, partial(_course, world)),
    ]


def _program(world: World, what: str) -> list[Result]:
    world.shape(world.gpus, 1)
    folder = world.folder(what)
    pairs = [word for word in world.options if "=" in word]
    site = world.options[world.options.index("--site") + 1] if "--site" in world.options else "slurm"
    words = [world.python, str(SCRIPTS / "jobs_from_python.py"), what, str(folder / "result.json"),
             "0" if world.cpu_only else str(world.gpus), site, f"paths.runs={folder}/runs", *pairs]  # fmt: skip
    done = world.command(words, timeout=DEADLINE, cwd=folder)
    found = read_json(folder / "result.json") if done.status == 0 else {}
    answers = found.get("answers", [])
    sums, seen = [answer[0] for answer in answers], [answer[1] for answer in answers]
    right = sums == EXPECTED and set(seen) == {1} and found.get("line", True)
    figures = {key: found[key] for key in ("all_s", "first_s", "workers") if key in found} | {"devices": str(seen)}
    name = "4 points of hpcml.map" if what == "map" else "workers of hpcml.ElasticCluster"
    return [result(name, ok=right, figures=figures, error="" if right else last_lines(done.output))]


def _course(world: World) -> list[Result]:
    nodes, count = world.shapes()[0]
    world.shape(nodes, count)
    page = (ROOT / "docs/teaching/4-machine.md").read_text(encoding="utf-8")
    script = world.folder("course") / "scale.py"
    script.write_text(
        page.partition("<!-- run file=scale.py -->\n```python\n")[2].partition("```")[0], encoding="utf-8"
    )
    rows = 400_000 if world.cpu_only else 100_000_000 * world.gpus
    run = world.submit(
        script, ["--rows", str(rows)], nodes=nodes, gpus=count, timeout=DEADLINE, settings=["interconnect.require=none"]
    )
    run.must_be(0)
    said = re.search(rf"{rows} rows, (\d+) workers, ([0-9.]+) s", run.output)
    figures = {"rows": rows, "workers": said[1], "fit_s": float(said[2])} if said else {}
    right = said is not None and (world.cpu_only or said[1] == str(world.gpus))
    return [result("the course's script", ok=right, figures=figures, error="" if right else last_lines(run.output))]
