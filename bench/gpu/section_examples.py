"""The examples of jobs/ as they are, in a run on GPUs and on this host's CPUs: the same figures.

All run one after the other in one run of hpcml for each shape (tests/jobs/all_examples.py), the CPUs' at the same time as the
first shape's; so the first example of each pays for what is loaded. tests/jobs/example_list.py says which figures, and how near.
"""

from __future__ import annotations

import shutil
import sys
from functools import partial
from pathlib import Path
from typing import Any

from harness import ROOT, Case, World, last_lines, read_json
from results import Result, failure, result, skipped
from section_gallery import WITHOUT_GPUS, difference

sys.path.insert(0, str(ROOT))

from tests.jobs.all_examples import CANNOT
from tests.jobs.example_list import EXAMPLES

EACH = 40  # seconds of one example, after which it is broken off
DEADLINE = 300
ABOUT = 70  # seconds of one shape
SETTINGS = ["interconnect.require=none"]


def cases(world: World) -> list[Case]:
    """Return a case for each shape that uses all GPUs, with a result for every example."""
    return [Case(f"{nodes} × {count}: examples", ABOUT, partial(_shape, world, nodes, count))
            for nodes, count in world.shapes()]  # fmt: skip


def _shape(world: World, nodes: int, count: int) -> list[Result]:
    """Run the examples in one run of this shape, and on CPUs where that was not done yet; compare."""
    world.shape(nodes, count)
    folder = world.top / "work" / "examples-on-cpus"
    scripts = folder / "jobs"
    if not (folder / "out/statuses.json").exists():
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(ROOT / "jobs", scripts, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "tests/jobs/all_examples.py", scripts)
        words = [world.python, str(scripts / "all_examples.py"), str(EACH)]
        with world.started(words, environment=WITHOUT_GPUS, cwd=folder) as cpus:
            run = _submit(world, scripts, nodes, count)
            done = cpus.wait(min(DEADLINE, max(world.left(), 5)))
        if done.status not in (0, 1):
            return [failure("on CPUs", f"exit status {done.status}:\n{last_lines(done.output)}")]
    else:
        run = _submit(world, scripts, nodes, count)
    on_cpus, on_gpus = read_json(folder / "out/statuses.json"), run.table("out/statuses.json")
    if run.directory is None or not on_gpus:
        return [failure(f"{nodes} × {count}", run.why())]
    outs = (folder / "out", run.directory / "out")
    return [_compare(f"{nodes} × {count}: {name}", name, outs, on_cpus, on_gpus) for name in EXAMPLES]


def _submit(world: World, scripts: Path, nodes: int, count: int) -> Any:
    script = scripts / "all_examples.py"
    return world.submit(script, [str(EACH)], nodes=nodes, gpus=count, settings=SETTINGS, timeout=DEADLINE)


def _compare(
    title: str, name: str, outs: tuple[Path, Path], on_cpus: dict[str, Any], on_gpus: dict[str, Any]
) -> Result:
    """Return whether an example ran on both and found the same; ``outs`` are both runs' folders, the CPUs' first."""
    statuses = on_cpus.get(name), on_gpus.get(name)
    if lacking := [status["error"] for status in statuses if status and status["error"] in CANNOT]:
        return skipped(title, lacking[0])
    wrong = [f"on {where}: {status['error'] if status else 'it did not run'}"
             for where, status in zip(("CPUs", "GPUs"), statuses, strict=True) if not status or status["error"]]  # fmt: skip
    figures = {
        f"{where}_s": status["seconds"] for where, status in zip(("cpu", "gpu"), statuses, strict=True) if status
    }
    if not wrong and EXAMPLES[name]:
        cpu, gpu = (read_json(out / name / "result.json") for out in outs)
        apart = {figure: difference(gpu[figure], cpu[figure]) for figure in EXAMPLES[name]}
        figures["apart"] = max(apart.values())
        wrong = [f"{figure}: {gpu[figure]} on GPUs, {cpu[figure]} on CPUs"
                 for figure, value in apart.items() if not value <= EXAMPLES[name][figure]]  # fmt: skip
    if not wrong and EXAMPLES[name] and not (outs[1] / name / f"{name}.png").exists():
        wrong = ["it drew no picture on GPUs"]
    return result(title, ok=not wrong, figures=figures, error="; ".join(wrong))
