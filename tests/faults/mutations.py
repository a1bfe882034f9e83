"""Plant one fault in the product at a time and see that a test notices it: a fault that none notices is not tested.

The faults are in ``planted_faults.py``, and in ``docs/benchmarks/mutations.json`` the tests that notice each. All of this
works in a second checkout with its own environment, which it changes::

    git worktree add /tmp/second; make -C /tmp/second .venv/.complete
    tests/faults/mutations.py check .                          each fault is in its module once, and a test is named for it
    tests/faults/mutations.py try /tmp/second [TIER ...]       run the named tests, with each fault and without it
    tests/faults/mutations.py try /tmp/second --only TEXT --by tests/unit/test_plan.py    the tests to run for a new fault

``try`` ends with 1 if a fault was not noticed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from planted_faults import FAULTS, Fault

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "docs/benchmarks/mutations.json"
LAST = "noticed.txt"  # what pytest wrote of the last test that failed
TIERS = ("unit", "golden", "docs", "cli", "jobs", "local", "lab")
DEADLINE = 600.0  # seconds that the tests of one fault may take
Noticed = dict[str, dict[str, str]]  # of each fault by its effect: a test of each tier that notices it


def main() -> int:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's `… &` ignores it, and tests would inherit that
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("check", "try"))
    parser.add_argument("checkout", type=Path)
    parser.add_argument("tiers", nargs="*", metavar="TIER", help=f"of {', '.join(TIERS)} (all)")
    parser.add_argument("--only", default="", metavar="TEXT", help="faults whose module or effect holds this")
    parser.add_argument(
        "--by", default="", metavar="ARGS", help="pytest's arguments, instead of the tests that are named"
    )
    parser.add_argument("--share", default="1/1", metavar="N/OF", help="every OF-th fault, from the N-th")
    parser.add_argument("--json", type=Path, default=RESULTS, metavar="FILE", help="the results")
    options = parser.parse_args()
    if problems := check(options.checkout):
        print("\n".join(problems))
        return 2
    known = results(options.json)
    if options.what == "check":
        problems = unnoticed(options.checkout, known)
        print("\n".join(problems), end="\n" * bool(problems))
        return 2 if problems else 0
    number, of = map(int, options.share.split("/"))
    chosen = [one for one in FAULTS if options.only in f"{one.module} {one.breaks}"][number - 1 :: of]
    missed = 0
    for fault in chosen:
        noticed = try_one(options.checkout, fault, options.by, known.get(fault.breaks, {}), options.tiers or TIERS)
        missed += not noticed
        known = results(options.json) | {fault.breaks: noticed}  # another process may have written meanwhile
        write(options.json, known)
    print(f"{len(chosen)} faults, {missed} not noticed")
    return 1 if missed else 0


def results(path: Path) -> Noticed:
    """Return the tests that notice each fault; before a file of results exists, those of the repository."""
    rows = json.loads((path if path.exists() else RESULTS).read_text())["faults"]
    return {row["breaks"]: row["noticed"] for row in rows}


def write(path: Path, known: Noticed) -> None:
    """Write the results in the order of the table."""
    rows = [{"breaks": one.breaks, "noticed": known[one.breaks]} for one in FAULTS if known.get(one.breaks)]
    text = {"command": "python3 tests/faults/mutations.py try CHECKOUT", "faults": rows}
    new = path.with_suffix(f".{os.getpid()}")
    new.write_text(json.dumps(text, indent=1, ensure_ascii=False) + "\n")
    new.rename(path)


def check(checkout: Path) -> list[str]:
    """Return what is wrong with the table: each fault is in its module once, changes it, and has a name of its own."""
    problems, seen = [], set()
    for fault in FAULTS:
        count = (checkout / fault.module).read_text().count(fault.was) if (checkout / fault.module).exists() else 0
        if count != 1 or fault.was == fault.becomes:
            problems.append(f"{fault.module} holds {fault.was!r} {count} times, not once")
        if fault.breaks in seen:
            problems.append(f"two faults have the effect {fault.breaks!r}")
        seen.add(fault.breaks)
    return problems


def unnoticed(checkout: Path, known: Noticed) -> list[str]:
    """Return the faults for which no test is named, or one that no longer exists."""
    problems = []
    for fault in FAULTS:
        if not (tests := list(known.get(fault.breaks, {}).values())):
            problems.append(f"{fault.module}: no test is named that notices: {fault.breaks}")
        for test in tests:
            path, _, name = test.partition("[")[0].rpartition("::")
            text = (checkout / path).read_text() if (checkout / path).is_file() else ""
            if f"def {name}(" not in text:
                problems.append(f"{test} does not exist, which noticed: {fault.breaks}")
    return problems


def try_one(checkout: Path, fault: Fault, by: str, known: dict[str, str], tiers: Sequence[str]) -> dict[str, str]:
    """Plant a fault and run tests; return those that failed for it alone, by tier."""
    start = time.monotonic()
    asked = {"": by} if by else {tier: shlex.quote(known[tier]) for tier in tiers if tier in known}
    noticed = {tier: test for tier, test in known.items() if by or tier not in tiers}
    for tier, arguments in asked.items():
        with planted(checkout, fault):
            test = failing(checkout, arguments)
        if test and failing(checkout, shlex.quote(test)):
            print(f"this fails without the fault too: {test}", flush=True)
        elif test:
            noticed[tier or tier_of(test)] = test
    noticed = dict(sorted(noticed.items(), key=lambda one: TIERS.index(one[0])))
    words = ", ".join(noticed.values()) or "NOT NOTICED"
    print(f"{time.monotonic() - start:5.1f} s  {fault.module}: {fault.breaks}: {words}", flush=True)
    return noticed


def tier_of(test: str) -> str:
    """Return the tier of a test: its folder, or of the files beside the folders the tier that runs them."""
    place = test.split("/")[1]
    return place if place in TIERS else "docs" if place.startswith("test_docs_run.py") else "unit"


@contextmanager
def planted(checkout: Path, fault: Fault) -> Iterator[None]:
    """Have a fault in a checkout, with a time of the file that no compiled form of it has."""
    path = checkout / fault.module
    text, before = path.read_text(), path.stat().st_mtime
    try:
        path.write_text(text.replace(fault.was, fault.becomes))
        os.utime(path, (before, before + 2 + time.time() % 1000))
        yield
    finally:
        path.write_text(text)
        os.utime(path, (before, before))


def failing(checkout: Path, arguments: str) -> str:
    """Return the first test that fails, empty if none does; one that does not end has failed."""
    python = str(checkout / ".venv/bin/python")
    if "tests/lab/" in arguments:
        lab = [python, "tests/lab/lab.py", "env"]
        done = subprocess.run(lab, cwd=checkout, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"the lab's environment: {done.stdout}{done.stderr}")
    command = [python, "-m", "pytest", "-x", "-v", "--tb=short", "-p", "no:cacheprovider", *shlex.split(arguments)]
    with subprocess.Popen(
        command, cwd=checkout, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    ) as process:
        try:
            text, _ = process.communicate(timeout=DEADLINE)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)  # its fixtures end what they started
            try:
                text, _ = process.communicate(timeout=60)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                text, _ = process.communicate()
            return next(iter(re.findall(r"^(tests/\S+::.+?) *$", text, re.MULTILINE)[-1:]), "")
    if process.returncode == 0:
        return ""
    (checkout / LAST).write_text(text)
    if found := re.search(r"^(?:FAILED|ERROR) (tests/\S+?::.+?)(?: - .*)?$", text, re.MULTILINE):
        return found[1]
    if process.returncode == 4 and "[" in arguments:  # the case has another name since
        return failing(checkout, re.sub(r"\[.*\]", "", arguments))
    if process.returncode in (2, 4, 5):  # wrong arguments, or no tests
        sys.exit(f"pytest {arguments}: {text[-2000:]}")
    # pytest itself was killed: by the test that it ran last
    return next(iter(re.findall(r"^(tests/\S+::.+?) *$", text, re.MULTILINE)[-1:]), "")


if __name__ == "__main__":
    sys.exit(main())
