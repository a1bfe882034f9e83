"""Scripts that open their own cluster, unchanged: in a run on the run's GPU workers, alone on a LocalCUDACluster."""

from __future__ import annotations

import shlex
from functools import partial
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

from harness import JOB, SCRIPTS, Case, HarnessError, World, last_lines, read_json
from results import Result, result

DEADLINE = 200
ABOUT = 60  # seconds of one run
SETTINGS = ["interconnect.require=none", "gpu.rmm_pool_size=8G"]
CUML_TESTS = "HPCML_CUML_TESTS"  # python/cuml/tests of a checkout of cuML, for the case that runs them
UPSTREAM = ("func", "kmeans", "label_binarizer", "label_encoder", "tsvd")  # what fits: alone is slow
# cuML's folder tests/dask must not hide Dask; a module of another version of cuML may not import.
PYTEST = ["-p", "no:cacheprovider", "--import-mode=append", "--continue-on-collection-errors", "-q"]
FIGURE = float(sum(sum(range(1000 * (seed + 1))) for seed in range(8)))


def cases(world: World) -> list[Case]:
    """Return the scripts, for each shape that uses all GPUs; cuML's own tests where their folder is known."""
    tests = world.environment.get(CUML_TESTS)
    upstream = (
        [Case("cuML's own tests of cuml.dask", 3 * ABOUT, partial(_upstream, world, Path(tests)))] if tests else []
    )
    return [
        *upstream,
        *(
            Case(f"{nodes} × {count}: {what}", seconds, partial(function, world, nodes, count))
            for nodes, count in world.shapes()
            for what, seconds, function in (
                ("its own LocalCUDACluster", 2 * ABOUT, _idioms),
                ("without a main guard", ABOUT / 2, _no_guard),
                ("from Python", ABOUT / 2, _python_api),
                ("in a batch script by hand", ABOUT / 2, _by_hand),
            )
            if function is not _python_api or nodes > 1
        ),  # the scheduler of one node listens on loopback alone
    ]


def _submit(world: World, script: str, nodes: int, count: int) -> tuple[dict[str, Any], str]:
    folder = world.folder("idioms")
    run = world.submit(SCRIPTS / script, [str(folder / "result.json")], nodes=nodes, gpus=count,
                       settings=SETTINGS, timeout=DEADLINE)  # fmt: skip
    run.must_be(0)
    return read_json(folder / "result.json"), run.output


def _idioms(world: World, nodes: int, count: int) -> list[Result]:
    world.shape(nodes, count)
    folder = world.folder("idioms-alone")
    done = world.command(
        [world.python, str(SCRIPTS / "idioms.py"), str(folder / "result.json")], timeout=DEADLINE, cwd=folder
    )
    if not (folder / "result.json").exists():
        raise HarnessError(f"alone: exit status {done.status}\n{last_lines(done.output)}")
    alone = read_json(folder / "result.json")
    found, output = _submit(world, "idioms.py", nodes, count)
    results = []
    for name, figures in found.items():
        if isinstance(figures, dict):
            same = all(figures.get(key) == alone[name].get(key) for key in ("kind", "figure"))
            error = figures.get("error", "") or ("" if same else f"alone: {alone[name]}, in a run: {figures}")
            shown = figures | {"alone": str(alone[name].get("figure", alone[name].get("error")))}
            results.append(
                result(f"{nodes} × {count}: {name}", ok=same and not figures.get("error"), figures=shown, error=error)
            )
    noted = "hpcml: LocalCUDACluster(" in output and f"this run's {nodes * count} GPU worker" in output
    right = found["workers"] == nodes * count and noted
    figures = {"workers": found["workers"], "open_s": found["open_s"], "alone_open_s": alone["open_s"]}
    results.append(result(f"{nodes} × {count}: the run's workers, and a note", ok=right, figures=figures,
                          error="" if right else last_lines(output)))  # fmt: skip
    return results


def _no_guard(world: World, nodes: int, count: int) -> list[Result]:
    world.shape(nodes, count)
    found, output = _submit(world, "no_guard.py", nodes, count)
    right = found == {"figure": FIGURE, "workers": nodes * count} and "Client(scheduler_file=" in output
    return [result(f"{nodes} × {count}: Client(scheduler_file=…), no main guard", ok=right, figures=found,
                   error="" if right else last_lines(output))]  # fmt: skip


def _python_api(world: World, nodes: int, count: int) -> list[Result]:
    world.shape(nodes, count)
    folder = world.folder("python-api")
    settings = [*SETTINGS, f"paths.runs={folder}/runs"]
    words = [
        world.python,
        str(SCRIPTS / "python_api.py"),
        str(folder / "result.json"),
        str(nodes),
        str(count),
        *settings,
    ]
    done = world.command(words, timeout=DEADLINE, cwd=folder)
    world.clear()
    found = read_json(folder / "result.json") if done.status == 0 else {}
    right = found == {
        "figure": FIGURE,
        "workers": nodes * count,
        "protocol": found.get("protocol"),
        "status": 0,
        "out": True,
    }
    return [result(f"{nodes} × {count}: hpcml.submit and run.cluster()", ok=right, figures=found,
                   error="" if right else last_lines(done.output))]  # fmt: skip


def _by_hand(world: World, nodes: int, count: int) -> list[Result]:
    world.shape(nodes, count)
    folder = world.folder("by-hand")
    settings = [word for setting in (*SETTINGS, f"paths.runs={folder}/runs") for word in ("--set", setting)]
    run = [world.python, "-m", "hpcml", "run", *settings, str(SCRIPTS / "no_guard.py"), str(folder / "result.json")]
    script = folder / "by_hand.sh"
    script.write_text(f"#!/bin/bash\n{shlex.join(run)}\necho status $?\nnvidia-smi -L | wc -l\n")
    asked = [f"--nodes={nodes}", f"--gres=gpu:{count}", "--exclusive", "--time=10", f"--job-name={JOB}"]
    words = ["sbatch", "--wait", *asked, f"--output={folder}/job.log", str(script)]
    done = world.batch(words, timeout=DEADLINE, cwd=folder, environment={})
    path = folder / "job.log"
    log = path.read_text(errors="replace") if path.exists() else done.output
    found = read_json(folder / "result.json") if (folder / "result.json").exists() else {}
    right = found == {"figure": FIGURE, "workers": nodes * count} and "status 0\n" in log
    return [result(f"{nodes} × {count}: hpcml run in a batch script by hand", ok=right, figures=found,
                   error="" if right else last_lines(log))]  # fmt: skip


def _upstream(world: World, tests: Path) -> list[Result]:
    """Run cuML's tests alone, and in a run by module name and by the interpreter's full path, and compare each test."""
    nodes, count = world.shapes()[0]
    world.shape(nodes, count)
    folder = world.folder("upstream")
    (folder / "pytest.ini").write_text("[pytest]\n")
    words = [
        *PYTEST,
        "-c",
        str(folder / "pytest.ini"),
        *(str(tests / f"dask/test_dask_{name}.py") for name in UPSTREAM),
    ]
    python = Path(world.python)
    outcomes = {}
    for name, options, program, first in (  # alone is the slowest
        ("alone", [], python, []),
        ("-m pytest", ["-m"], Path("pytest"), []),
        ("-- python -m pytest", ["--"], python, ["-m", "pytest"]),
    ):
        report = folder / f"{name.replace(' ', '')}.xml"
        asked = [*first, *words, f"--junitxml={report}"]
        if name == "alone":
            output = world.command([str(python), "-m", "pytest", *asked], timeout=DEADLINE, cwd=folder).output
        else:
            output = world.submit(program, asked, nodes=nodes, gpus=count, settings=SETTINGS, timeout=DEADLINE,
                                  options=options).output  # fmt: skip
        if not report.exists():
            raise HarnessError(f"{name}: pytest wrote no report\n{last_lines(output)}")
        outcomes[name] = _outcomes(report)
    alone = outcomes.pop("alone")
    results = []
    for name, found in outcomes.items():
        worse = sorted(test for test in {*alone, *found} if alone.get(test) != found.get(test))
        figures = {word: sum(one == word for one in found.values()) for word in ("passed", "failed", "skipped")}
        figures |= {"alone": sum(one == "passed" for one in alone.values())}
        results.append(result(f"{nodes} × {count}: {name}", ok=not worse and figures["passed"] > 0, figures=figures,
                              error=f"other than alone: {', '.join(worse[:5])}" if worse else ""))  # fmt: skip
    return results


def _outcomes(report: Path) -> dict[str, str]:
    """Return "passed", "failed" or "skipped" by test, from pytest's report."""
    found = {}
    for case in ET.parse(report).getroot().iter("testcase"):  # noqa: S314 - pytest's own report
        words = {part.tag for part in case}
        word = "failed" if words & {"failure", "error"} else "skipped" if "skipped" in words else "passed"
        found[f"{case.get('classname')}.{case.get('name')}"] = word
    return found
