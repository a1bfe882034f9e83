"""Run the cases of one section in a process of its own: ``section.py NAME WORLD.json RESULT.json [TEXT]``.

With TEXT, or several with commas between, only the cases run that have one of them in their name.

The results are written after every case, so that a section that is ended at its deadline has left what it found.
"""

from __future__ import annotations

import faulthandler
import importlib
import json
import sys
import time
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(1, str(Path(__file__).resolve().parents[2] / "tests/lab"))

from harness import Case, HarnessError, World
from results import Result, failure, skipped

PATIENCE = 20  # seconds beyond the section's time after which it writes where it is


def chosen(cases: list[Case], text: str) -> list[Case]:
    """Return the cases that have a text in their name, or one of several with commas between."""
    return [case for case in cases if any(one in case.name for one in text.split(","))]


def run_cases(cases: list[Case], world: World, save: Path) -> list[Result]:
    """Run cases one after the other; none of them ends the others."""
    found: list[Result] = []
    for case in cases:
        began = time.monotonic()
        if world.left() < case.seconds:
            results = [
                skipped(case.name, f"{max(world.left(), 0):.0f} s are left, it takes about {case.seconds:.0f} s")
            ]
        else:
            print(f"-- {case.name}", flush=True)
            results = _run(case)
        for one in results:
            one["seconds"] = one["seconds"] or round(time.monotonic() - began, 3)
            print(f"   {one['name']}: {'ok' if one['ok'] else 'NOT OK'} {one['error']}".rstrip(), flush=True)
        found += results
        save.write_text(json.dumps(found) + "\n")
    return found


def _run(case: Case) -> list[Result]:
    try:
        return case.run()
    except HarnessError as error:
        return [failure(case.name, str(error))]
    except Exception as error:  # noqa: BLE001 - the next case is tried whatever happens
        traceback.print_exc()
        return [failure(case.name, f"{type(error).__name__}: {error}")]


def main(arguments: list[str]) -> int:
    """Run the section that is named."""
    name, world_file, result_file, *rest = arguments
    text = "".join(rest)
    world = World.load(Path(world_file))
    faulthandler.enable()
    faulthandler.dump_traceback_later(max(world.left(), 1) + PATIENCE, exit=True)
    module = importlib.import_module(f"section_{name}")
    wanted = chosen(module.cases(world), text)
    if not wanted:
        wanted = [
            Case(
                name,
                0,
                lambda: [
                    skipped(name, f"no case for {world.gpus} GPUs has {' or '.join(text.split(','))} in its name")
                ],
            )
        ]
    results = run_cases(wanted, world, Path(result_file))
    return 0 if all(one["ok"] for one in results) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
