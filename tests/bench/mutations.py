"""Plant one fault in the product at a time and see which test notices it: a fault that none notices is not tested.

The faults are in ``planted_faults.py``. All of this works in a second checkout with its own environment, which it changes::

    git worktree add /tmp/second; make -C /tmp/second .venv/.complete
    tests/bench/mutations.py record /tmp/second [TIER ...]     which tests reach which fault: one run of the tiers
    tests/bench/mutations.py try /tmp/second [TIER ...]        each fault against the tests that reach it

``record`` writes which faults each test reached, in whatever process, into ``reached.json`` of the checkout. ``try`` asks
the cheapest tier first, in it the likeliest tests first, until one test fails; of faults that cross processes it goes on
with the next tiers. ``docs/benchmarks/mutations.json`` is what it wrote. It ends with 1 if a fault was not noticed.
"""

from __future__ import annotations

import argparse
import ast
import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import reach
from planted_faults import FAULTS, Fault
from tests import run_tiers

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "docs/benchmarks/mutations.json"
REACHED = "reached.json"
LAST = "noticed.txt"  # what pytest wrote of the last test that failed
TIERS = {
    "unit": 120.0,
    "cli": 90.0,
    "jobs": 90.0,
    "docs": 60.0,
    "local": 120.0,
    "lab": 180.0,
}  # seconds of tests a fault may cost
RECORD = """
folder=/dev/shm/hpcml-reach/$0
rm -rf "$folder"; mkdir -p "$folder"; mount --bind "$folder" /mnt
exec "$@" -p tests.bench.reach
"""
ROLES: tuple[str, ...] = ("hpcml/node/", "hpcml/kinds/")  # what a fault in a shell script is reached by: each run


def main() -> int:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's `… &` ignores it, and tests would inherit that
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("check", "record", "try"))
    parser.add_argument("checkout", type=Path)
    parser.add_argument("tiers", nargs="*", metavar="TIER", help=f"of {', '.join(TIERS)} (all)")
    parser.add_argument("--only", default="", metavar="TEXT", help="faults whose module or effect holds this")
    parser.add_argument("--missed", action="store_true", help="only faults that the results do not know as noticed")
    parser.add_argument("--share", default="1/1", metavar="N/OF", help="every OF-th fault, from the N-th")
    parser.add_argument("--json", type=Path, default=RESULTS, metavar="FILE", help="the results")
    options = parser.parse_args()
    if problems := check(options.checkout):
        print("\n".join(problems))
        return 2
    tiers = options.tiers or list(TIERS)
    if options.what == "record":
        return record(options.checkout, tiers)
    if options.what == "check":
        return 0
    number, of = map(int, options.share.split("/"))
    known = results(options.json)
    chosen = [one for one in FAULTS if options.only in f"{one.module} {one.breaks}"][number - 1 :: of]
    chosen = [one for one in chosen if not (options.missed and known.get(one.breaks, {}).get("noticed"))]
    missed = 0
    for fault in chosen:
        row = try_one(options.checkout, fault, tiers, known.get(fault.breaks, {}))
        missed += not row["noticed"]
        known = results(options.json) | {fault.breaks: row}  # another process may have written meanwhile
        write(options.json, known)
    print(f"{len(chosen)} faults, {missed} not noticed")
    return 1 if missed else 0


def results(path: Path) -> dict[str, dict[str, Any]]:
    """Return what is known by now of each fault, by its effect."""
    rows = json.loads(path.read_text())["faults"] if path.exists() else []
    return {row["breaks"]: row for row in rows}


def write(path: Path, known: dict[str, dict[str, Any]]) -> None:
    """Write the results in the order of the table."""
    rows = [known[one.breaks] for one in FAULTS if one.breaks in known]
    text = {"command": "python3 tests/bench/mutations.py try CHECKOUT", "faults": rows}
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


def record(checkout: Path, tiers: Sequence[str]) -> int:
    """Run tiers in a checkout that has probes, and write which faults each test reached."""
    path = checkout / REACHED
    without = reach.instrument(checkout, FAULTS)
    with ThreadPoolExecutor(3) as pool:  # a tier each: a probe cannot tell two tests of one pytest apart
        list(pool.map(partial(_record_tier, checkout), tiers))
    subprocess.run(["git", "checkout", "--quiet", "--", "hpcml"], cwd=checkout, check=True)
    (checkout / reach.PROBE_MODULE).unlink()
    reached = json.loads(path.read_text())["tests"] if path.exists() else {}
    for tier in tiers:
        part = json.loads(Path(f"/dev/shm/hpcml-reach/{tier}/reached.json").read_text())
        reached |= {test: {**facts, "tier": tier} for test, facts in part.items()}
    path.write_text(json.dumps({"without": without, "tests": reached}))
    print(f"{len(reached)} tests; without a probe of their own: {without}")
    return 0


def _record_tier(checkout: Path, tier: str) -> None:
    python = str(checkout / ".venv/bin/python")
    before: list[str] = []
    if tier == "lab":
        for words in ("install --accounting", "up", "env", "image", "down"):
            subprocess.run([python, "tests/lab/lab.py", *words.split()], cwd=checkout, check=False)
        before = [python, "tests/lab/apart.py", "1"]
    paths = next(one.paths for one in run_tiers.TIERS if one.name == tier)
    within = ["unshare", "--mount", "--propagation", "private", "sh", "-c", RECORD, tier]
    subprocess.run([*before, *within, python, "-m", "pytest", "-q", *paths], cwd=checkout, check=False)


def try_one(checkout: Path, fault: Fault, tiers: Iterable[str], known: dict[str, Any]) -> dict[str, Any]:
    """Plant a fault and ask one tier after the other; return the fault and the tests that noticed it, by tier."""
    noticed: dict[str, str] = dict(known.get("noticed", {}))
    asked: dict[str, int] = dict(known.get("asked", {}))
    start = time.monotonic()
    with planted(checkout, fault):
        for tier in tiers:
            if noticed and not fault.crosses:
                break
            tests = candidates(checkout, fault, tier)
            asked[tier] = len(tests)
            if tests and (found := failing(checkout, tests)):
                noticed[tier] = found
    for tier in tiers:  # a test that fails without the fault too has not noticed it
        if tier in noticed and noticed[tier] in candidates(checkout, fault, tier):
            noticed |= {tier: ""} if failing(checkout, [noticed[tier]]) else {}
    noticed = {tier: test for tier, test in noticed.items() if test}
    words = ", ".join(f"{tier}: {test}" for tier, test in noticed.items()) or f"NOT NOTICED {asked}"
    print(f"{time.monotonic() - start:5.1f} s  {fault.module}: {fault.breaks}: {words}", flush=True)
    return {**fault._asdict(), "noticed": noticed, "asked": asked}


def candidates(checkout: Path, fault: Fault, tier: str) -> list[str]:
    """Return the tests of a tier whose file reaches a fault, and which passed, the likeliest first, up to what the tier may cost."""
    reached = json.loads((checkout / REACHED).read_text())
    number = FAULTS.index(fault)
    numbers = {number}
    if why := reached["without"].get(str(number)):
        near: tuple[str, ...] = (fault.module,)
        if why in ("no Python", "alone"):
            near = ROLES if why == "no Python" else (fault.module.rpartition("/")[0],)
        numbers = {at for at, one in enumerate(FAULTS) if one.module.startswith(near)}
    tests = reached["tests"].items()
    # what a file's tests share runs in the first of them
    reaching = {test.partition("::")[0] for test, facts in tests if numbers & set(facts["hits"])}
    able = [
        (-round(likeness(checkout, fault, test)), facts["seconds"], test)
        for test, facts in tests
        if facts["tier"] == tier and facts["ended"] == "passed" and test.partition("::")[0] in reaching
    ]
    left = TIERS[tier]
    chosen: list[str] = []
    for _, seconds, test in sorted(able):
        left -= seconds
        if left < 0 and chosen:
            break
        chosen.append(test)
    return chosen


def likeness(checkout: Path, fault: Fault, test: str) -> float:
    """Return how much of what a fault changes and breaks a test speaks of: rare words count most."""
    sources = functions(checkout / test.partition("::")[0])
    of_test = words(test) | sources.get(test.rpartition("::")[2].partition("[")[0], set())
    changed = words(f"{fault.was} {fault.becomes} {fault.breaks}")
    count = len(sources) or 1
    return sum(
        math.log((1 + count) / (1 + sum(one in source for source in sources.values()))) for one in changed & of_test
    )


@cache
def functions(path: Path) -> dict[str, set[str]]:
    """Return the words of each function of a file of tests."""
    text = path.read_text()
    return {node.name: words(ast.get_source_segment(text, node) or "")
            for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)}  # fmt: skip


def words(text: str) -> set[str]:
    """Return the words of a text in small letters, each without its ending."""
    return {word.lower()[:6] for word in re.findall(r"[A-Za-z]{4,}", text)}


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


def failing(checkout: Path, tests: Sequence[str]) -> str:
    """Return the first of some tests that fails, empty if none does."""
    tier = tests[0].split("/")[1]
    of_lab = tier == "lab"
    python = str(checkout / ".venv/bin/python")
    if of_lab:
        done = subprocess.run(
            [python, "tests/lab/lab.py", "env"], cwd=checkout, capture_output=True, text=True, check=False
        )
        if done.returncode:
            return "the lab's installation"
    command = [python, "-m", "pytest", "-x", "-q", "--tb=line", "-p", "no:cacheprovider", *tests]
    with subprocess.Popen(
        command, cwd=checkout, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    ) as process:
        try:
            text, _ = process.communicate(timeout=2 * TIERS.get(tier, 60.0) + (300 if of_lab else 60))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return "its deadline"
    if process.returncode:
        (checkout / LAST).write_text(text)
    found = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", text, re.MULTILINE)
    if process.returncode and not found:
        return f"pytest itself: {text.strip().splitlines()[-1:]}"
    return found[1] if found else ""


if __name__ == "__main__":
    sys.exit(main())
