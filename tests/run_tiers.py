"""Run every tier of tests that this machine can run, say why not for the others, and fail a tier that ran no test.

``make test`` calls it. The lab tier needs root and installs what it lacks on Debian and Ubuntu (tests/lab/lab.py). Its
tests look at the clock, so it runs alone; the others run beside each other (``LANES``) while the lab is made ready, and
each tier's output is shown whole when the tier ends.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO
from xml.etree import ElementTree as ET

ROOT = Path(__file__).resolve().parent.parent
MOST_FAILURES = 10
LAB = [sys.executable, str(ROOT / "tests/lab/lab.py")]
LANES = (("cli", "jobs"), ("local", "unit"))  # what runs one after the other; about as long on two cores
SHOWING = threading.Lock()


@dataclass(frozen=True)
class Tier:
    """A tier: its name, what it proves, and what pytest is told to run."""

    name: str
    proves: str
    paths: tuple[str, ...]


TIERS = (
    Tier("unit", "decisions, parsers, architecture, packaging", (
        "tests/unit", "tests/golden", "tests/test_architecture.py", "tests/test_wheel.py", "tests/test_docs.py")),
    Tier("cli", "exit statuses and messages of the installed command", ("tests/cli",)),
    Tier("jobs", "every job of the gallery against scikit-learn, pandas and NumPy", ("tests/jobs",)),
    Tier("local", "real Dask under bash on this machine", ("tests/local",)),
    Tier("lab", "a real Slurm of four nodes", ("tests/lab",)),
)  # fmt: skip


@dataclass
class Result:
    """What came of a tier."""

    tier: str
    ran: int = 0
    skipped: int = 0
    failed: int = 0
    seconds: float = 0.0
    why_not: str = ""
    broken: bool = False


def main() -> int:
    """Run the tiers named on the command line (default: all) and print a table."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in a script's `make test &`
    parser = argparse.ArgumentParser(description=__doc__)
    names = [tier.name for tier in TIERS]
    parser.add_argument("tiers", nargs="*", metavar="TIER", help=f"of {', '.join(names)} (default: all)")
    parser.add_argument("--must-run", action="append", default=[], metavar="TIER", help="fail if it cannot run here")
    options = parser.parse_args()
    if unknown := [name for name in (*options.tiers, *options.must_run) if name not in names]:
        parser.error(f"no such tier: {', '.join(unknown)}")
    asked = [tier for tier in TIERS if not options.tiers or tier.name in options.tiers]
    if os.geteuid() == 0 and (not options.tiers or "lab" in options.tiers):
        _lab("install", "--accounting")  # before all: the unit tier uses shellcheck, which comes with it
    results = _run_all(asked)
    print(f"\n{'tier':<8} {'passed':>7} {'failed':>7} {'skipped':>8} {'time':>7}")
    for result in results:
        note = f"  not run: {result.why_not}" if result.why_not else ""
        passed = result.ran - result.failed
        print(f"{result.tier:<8} {passed:>7} {result.failed:>7} {result.skipped:>8} {result.seconds:>6.0f}s{note}")
    passed = sum(result.ran - result.failed for result in results)
    failed = sum(result.failed for result in results)
    print(f"{passed} passed, {failed} failed, {sum(result.skipped for result in results)} skipped")
    bad = [result.tier for result in results if result.broken or (result.why_not and result.tier in options.must_run)]
    if bad:
        print(f"not good: {', '.join(bad)}")
    return 1 if bad else 0


def _run_all(asked: Sequence[Tier]) -> list[Result]:
    """Run the lanes and make the lab ready beside each other, then the lab tier; return results in the tiers' order."""
    lanes = [lane for names in LANES if (lane := [tier for tier in asked if tier.name in names])]
    lab = next((tier for tier in asked if tier.name == "lab"), None)
    beside = len(lanes) + bool(lab) > 1
    if beside:
        lines = [", then ".join(tier.name for tier in lane) for lane in lanes] + ["making the lab ready"] * bool(lab)
        print(f"beside each other: {'; '.join(lines)}", flush=True)
    with ThreadPoolExecutor(max_workers=len(lanes) + 1) as pool:
        ready = pool.submit(_prepare_lab) if lab else None
        running = [pool.submit(lambda lane: [_run(tier, aside=beside) for tier in lane], lane) for lane in lanes]
        results = [result for lane in running for result in lane.result()]
        reason = ready.result() if ready else ""
    if lab and reason:
        print(f"\n== lab: {lab.proves}\nnot run: {reason}", flush=True)
        results.append(Result("lab", why_not=reason))
    elif lab:
        results.append(_run(lab))
        subprocess.run([*LAB, "down"], check=False)
    return results


def _run(tier: Tier, *, aside: bool = False) -> Result:
    """Run a tier; ``aside`` keeps its output until it has ended, because others run meanwhile."""
    if not aside:
        print(f"\n== {tier.name}: {tier.proves}", flush=True)
        return _pytest(tier, None)
    with tempfile.TemporaryFile("w+") as output:
        result = _pytest(tier, output)
        output.seek(0)
        with SHOWING:
            print(f"\n== {tier.name}: {tier.proves}\n{output.read()}", flush=True)
    return result


def _pytest(tier: Tier, output: IO[str] | None) -> Result:
    start = time.monotonic()
    result = Result(tier.name)
    report = ROOT / f".pytest_cache/{tier.name}.xml"
    report.unlink(missing_ok=True)
    enough = f"--maxfail={MOST_FAILURES}"  # a broken lab fails every test, each only after its deadline
    command = [sys.executable, "-m", "pytest", "-q", enough, f"--junitxml={report}", *tier.paths]
    code = subprocess.run(command, cwd=ROOT, stdout=output, stderr=output and subprocess.STDOUT, check=False).returncode
    if report.exists():
        suite = next(iter(ET.parse(report).getroot().iter("testsuite")))  # noqa: S314 - pytest's own report
        number = {key: int(suite.get(key, "0")) for key in ("tests", "failures", "errors", "skipped")}
        result.skipped = number["skipped"]
        result.ran = number["tests"] - number["skipped"]
        result.failed = number["failures"] + number["errors"]
    result.broken = code != 0 or result.ran == 0
    if result.ran == 0:
        print(f"the {tier.name} tier ran no test", file=output)
    result.seconds = time.monotonic() - start
    return result


def _prepare_lab() -> str:
    """Install and start what the lab tier needs; return why it cannot run here, or nothing."""
    if os.geteuid() != 0:
        return "it needs root (sudo make test)"
    for words in (["install", "--accounting"], ["check"], ["down"], ["up"], ["env"]):
        if reason := _lab(*words):
            return reason
    if reason := _lab("image"):
        print(f"without containers: {reason}")  # the tests that need an image skip with this reason
    return ""


def _lab(*words: str) -> str:
    """Run a command of the lab; return why it failed, or nothing."""
    print(f"lab.py {' '.join(words)}", flush=True)
    done = subprocess.run([*LAB, *words], capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return ""
    lines = (done.stderr or done.stdout).strip().splitlines() or ["no word"]
    return f"lab.py {words[0]}: {' '.join(line.strip() for line in lines[:3])}"


if __name__ == "__main__":
    sys.exit(main())
