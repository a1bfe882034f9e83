"""Run every tier of tests that this machine can run, say why not for the others, and fail a tier that ran no test.

``make test`` calls it, and ``make quick`` with the tiers that it names. The lab tier needs root and installs what it lacks
on Debian and Ubuntu (tests/lab/lab.py). Tiers are divided into parts, which wait in one row for the next that is free:
three run beside each other. The output of each part grows in ``.pytest_cache/PART.txt`` and is shown when its tier has
ended. What failed is run once more at the end, alone: that it passes then tells a test that a busy machine fails from one that always fails, and makes neither good.
"""

from __future__ import annotations

import argparse
import compileall
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO
from xml.etree import ElementTree as ET

ROOT = Path(__file__).resolve().parent.parent
MOST_FAILURES = 10
LAB = [sys.executable, str(ROOT / "tests/lab/lab.py")]
APART = [sys.executable, str(ROOT / "tests/lab/apart.py")]
ROOM_FOR_TWO = 8 << 30  # bytes of memory
# The files of the lab tier for the second lab: about half of the time that all take. A new file is the first lab's.
SECOND_LAB = (
    "test_attacks_files", "test_attacks_nodes", "test_attempts_on_nodes", "test_binds", "test_cost",
    "test_elastic_on_nodes", "test_exit_status_inside",
    "test_from_laptop", "test_gc", "test_inside_an_image", "test_run", "test_run_ends", "test_security", "test_shell",
    "test_staging", "test_submit", "test_sweep_in_jobs", "test_time_limit", "test_top_on_nodes", "test_tunnel",
    "test_tunnel_breaks", "test_tunnel_browser", "test_tunnel_jupyter", "test_why", "test_why_from_laptop", "test_why_staged",
)  # fmt: skip
BESIDE = 3  # parts at a time: with two, two processors idle a quarter of `make quick`; more make all wait longer
STEPS_BACK = {"unit": 5, "cli": 5, "jobs": 5}  # nice: what only computes leaves the cores to what has deadlines
SHOWING = threading.Lock()


@dataclass(frozen=True)
class Tier:
    """A tier: its name, what it proves, and what pytest is told to run."""

    name: str
    proves: str
    paths: tuple[str, ...]
    slurm: str = ""  # the version that the lab has, ``own``: the machine's; empty: the tier is not of one version
    parts: int = 1  # its files are divided between so many

    @property
    def of_lab(self) -> bool:
        """Whether it needs the lab."""
        return self.name == "lab" or bool(self.slurm)


OWN = "own"
CORE = tuple(f"tests/lab/{name}" for name in (
    "test_submit.py", "test_exit_status.py", "test_losses.py", "test_run.py", "test_run_ends.py", "test_time_limit.py",
    "test_map_on_nodes.py", "test_top_on_nodes.py::test_four_nodes_from_the_queue_to_the_end", "test_why.py",
    "test_why_staged.py::test_a_controller_that_was_away_is_not_the_cause",
    "test_why_staged.py::test_a_node_that_goes_down_is_the_cause_in_each_phase", "test_sweep_on_nodes.py",
    "test_sweep_in_jobs.py", "test_elastic_on_nodes.py::test_it_breathes_and_is_closed_to_others",
    "test_attempts_on_nodes.py", "test_preemption.py", "test_site_init.py", "test_with_accounting.py",
))  # fmt: skip
SLURMS = tuple(
    Tier(f"slurm-{version}", f"the core scenarios of the lab on Slurm {version}", CORE, version)
    for version in (OWN, "24.11", "26.05")
)
TIERS = (
    Tier("unit", "decisions, parsers, architecture, packaging", (
        "tests/unit", "tests/golden", "tests/test_architecture.py", "tests/test_wheel.py", "tests/test_docs.py")),
    Tier("cli", "exit statuses and messages of the installed command", ("tests/cli",), parts=4),
    Tier("jobs", "every job of the gallery against scikit-learn, pandas and NumPy", ("tests/jobs",), parts=2),
    Tier("local", "real Dask under bash on this machine", ("tests/local",), parts=4),
    Tier("docs", "what is typed in the documentation, typed", ("tests/test_docs_run.py",)),
    Tier("lab", "a real Slurm of four nodes", ("tests/lab",)),
    Tier("one-run", "one run under bash: two of the local tier", ("tests/local/test_local.py::test_the_script_s_own_status",)),
    *SLURMS,
)  # fmt: skip
ORDER = ("unit", "local", "jobs", "docs", "cli", "one-run")  # how they wait in the row; labs wait in none
ONLY_WHEN_NAMED = ("one-run", *(tier.name for tier in SLURMS))  # other tiers run the same, but for the versions


@dataclass(frozen=True)
class Part:
    """What one pytest runs of a tier: its name, the words before the command, and the paths."""

    name: str
    tier: str
    before: tuple[str, ...]
    paths: tuple[str, ...]


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
    again: str = ""
    parts: dict[Part, int] = field(default_factory=dict)  # of each how many tests failed


def main() -> int:
    """Run the tiers named on the command line (default: all) and print a table."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in a script's `make test &`
    for other in (signal.SIGQUIT, signal.SIGHUP):  # so are these, or by nohup; what is tested would inherit that
        signal.signal(other, signal.SIG_DFL)
    parser = argparse.ArgumentParser(description=__doc__)
    names = [tier.name for tier in TIERS]
    parser.add_argument("tiers", nargs="*", metavar="TIER", help=f"of {', '.join(names)} (default: those of make test)")
    parser.add_argument("--must-run", action="append", default=[], metavar="TIER", help="fail if it cannot run here")
    options = parser.parse_args()
    if unknown := [name for name in (*options.tiers, *options.must_run) if name not in names]:
        parser.error(f"no such tier: {', '.join(unknown)}")
    named = options.tiers or [name for name in names if name not in ONLY_WHEN_NAMED]
    asked = [tier for tier in TIERS if tier.name in named]
    if os.geteuid() == 0 and any(tier.of_lab for tier in asked):
        _lab("install", "--accounting")  # before all: the unit tier uses shellcheck, which comes with it
    results = _run_all(asked)
    print(f"\n{'tier':<11} {'passed':>7} {'failed':>7} {'skipped':>8} {'time':>7}")
    for result in results:
        note = f"  not run: {result.why_not}" if result.why_not else result.again and f"  {result.again}"
        passed = result.ran - result.failed
        print(f"{result.tier:<11} {passed:>7} {result.failed:>7} {result.skipped:>8} {result.seconds:>6.0f}s{note}")
    passed = sum(result.ran - result.failed for result in results)
    failed = sum(result.failed for result in results)
    print(f"{passed} passed, {failed} failed, {sum(result.skipped for result in results)} skipped")
    bad = [result.tier for result in results if result.broken or (result.why_not and result.tier in options.must_run)]
    if bad:
        print(f"not good: {', '.join(bad)}")
    return 1 if bad else 0


def _run_all(asked: Sequence[Tier]) -> list[Result]:
    """Run the parts of all tiers beside each other, and what failed once more; return results in the tiers' order."""
    compileall.compile_dir(
        ROOT / "hpcml", quiet=1
    )  # also where Python is told to write no bytecode: hundreds of processes
    others = [tier for name in ORDER for tier in asked if tier.name == name]
    labs = [tier for tier in asked if tier.of_lab]
    row = deque(part for tier in others for part in _parts(tier))
    if not labs and len(row) == 1:
        _show(f"\n== {others[0].name}: {others[0].proves}")
        return [_pytest(row[0], None)]
    places = threading.Semaphore(BESIDE)
    for _ in labs[:1]:  # the labs are the longest: they take their places before all others
        _take(places, labs[0])
    with ThreadPoolExecutor() as pool:
        of_labs = pool.submit(_run_labs, labs, places)
        takers = [pool.submit(_run_row, row, places) for _ in range(BESIDE)]
        of_parts = {part: result for taker in takers for part, result in taker.result().items()}
        results = {result.tier: result for result in of_labs.result()}
    for tier in others:
        results[tier.name] = _ended(tier, [result for part, result in of_parts.items() if part.tier == tier.name])
    for tier in asked:
        _run_again(results[tier.name])
    if any(not results[tier.name].why_not for tier in labs):
        subprocess.run([*LAB, "down"], check=False)
    return [results[tier.name] for tier in asked]


def _take(places: threading.Semaphore, tier: Tier) -> None:
    """Take the places of a tier of labs, of which only the tier ``lab`` may have two."""
    for _ in range(2 if tier.name == "lab" else 1):
        places.acquire()


def _run_labs(labs: Sequence[Tier], places: threading.Semaphore) -> list[Result]:
    """Run tiers of labs one after the other; the places of the first are taken. A lab that ends gives its place back."""
    results: list[Result] = []
    for tier in labs:
        if results:
            _take(places, tier)
        if reason := _prepare_lab(tier):
            _show(f"\n== {tier.name}: {tier.proves}\nnot run: {reason}")
            results.append(Result(tier.name, why_not=reason))
            parts = []
        else:
            parts = _parts(tier)
        for _ in range((2 if tier.name == "lab" else 1) - len(parts)):
            places.release()
        if parts:
            with ThreadPoolExecutor() as pool:
                results.append(_ended(tier, list(pool.map(partial(_run_aside, places=places), parts))))
    return results


def _run_row(row: deque[Part], places: threading.Semaphore) -> dict[Part, Result]:
    """Take parts out of the row and run them until none is left."""
    results: dict[Part, Result] = {}
    while True:
        places.acquire()
        try:
            part = row.popleft()
        except IndexError:
            places.release()
            return results
        results[part] = _run_aside(part, places)


def _ended(tier: Tier, results: Sequence[Result]) -> Result:
    """Show what the parts of a tier wrote, and make one result and one report of theirs."""
    parts = [part for result in results for part in result.parts]
    text = "".join(_output(part).read_text(errors="replace") for part in parts)
    _show(f"\n== {tier.name}: {tier.proves}\n{text}")
    if len(parts) > 1:
        _merge_reports(tier, parts)
    return _sum(tier, results)


def _run_aside(part: Part, places: threading.Semaphore) -> Result:
    """Run a part, whose output goes into a file, and give its place back."""
    output = _output(part)
    output.parent.mkdir(parents=True, exist_ok=True)
    _show(f"{part.name} begins (tail -f {output.relative_to(ROOT)})")
    try:
        with output.open("w") as file:
            result = _pytest(part, file)
    finally:
        places.release()
    _show(
        f"{part.name} ended after {result.seconds:.0f} s: {result.ran - result.failed} passed, {result.failed} failed"
    )
    return result


def _output(part: Part) -> Path:
    return ROOT / f".pytest_cache/{part.name}.txt"


def _report(name: str) -> Path:
    return ROOT / f".pytest_cache/{name}.xml"


def _parts(tier: Tier) -> list[Part]:
    """Return the parts of a tier: the lab tier's two labs, where they fit beside each other, or shares of its files."""
    if tier.slurm:
        other = () if tier.slurm == OWN else ("--slurm", tier.slurm)
        return [Part(tier.name, tier.name, (*APART, *other, "1"), tier.paths)]
    if tier.name != "lab":
        return _shares(tier)
    if reason := _no_second_lab():
        _show(f"one lab, not two: {reason}")
        return [Part(tier.name, tier.name, (), tier.paths)]
    _lab("down")  # each of the two is started apart
    second = [f"tests/lab/{name}.py" for name in SECOND_LAB]
    first = [name for name in _files("tests/lab") if name not in second]
    return [
        Part(f"lab-{number}", "lab", (*APART, str(number)), tuple(paths)) for number, paths in ((1, first), (2, second))
    ]


def _shares(tier: Tier) -> list[Part]:
    """Divide a tier's files: the largest first, each into the share that has least."""
    if tier.parts == 1:
        return [Part(tier.name, tier.name, (), tier.paths)]
    files = [name for path in tier.paths for name in _files(path)]
    shares: list[list[str]] = [[] for _ in range(tier.parts)]
    sizes = [0] * tier.parts
    for name in sorted(files, key=_size, reverse=True):
        least = sizes.index(min(sizes))
        shares[least].append(name)
        sizes[least] += _size(name)
    return [Part(f"{tier.name}-{number}", tier.name, (), tuple(share)) for number, share in enumerate(shares, 1)]


def _files(folder: str) -> list[str]:
    return [str(path.relative_to(ROOT)) for path in sorted((ROOT / folder).glob("test_*.py"))]


def _size(name: str) -> int:
    return (ROOT / name).stat().st_size


def _no_second_lab() -> str:
    """Return why this machine has no room for a second lab, or nothing."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if (os.cpu_count() or 1) < 2 or memory < ROOM_FOR_TWO:
        return f"{os.cpu_count()} processors and {memory >> 20} MiB of memory"
    tried = subprocess.run([*APART, "2", "true"], capture_output=True, text=True, check=False)
    return "" if tried.returncode == 0 else (tried.stderr.strip() or f"apart.py: status {tried.returncode}")


def _sum(tier: Tier, results: Sequence[Result]) -> Result:
    """Return one result of all parts of a tier."""
    total = Result(tier.name)
    for result in results:
        total.seconds += result.seconds
        total.ran += result.ran
        total.skipped += result.skipped
        total.failed += result.failed
        total.broken |= result.broken
        total.parts |= result.parts
    return total


def _merge_reports(tier: Tier, parts: Sequence[Part]) -> None:
    """Put the parts' reports into one of the tier."""
    whole = ET.Element("testsuites")
    for part in parts:
        if outcomes(report := _report(part.name)):
            whole.extend(ET.parse(report).getroot())  # noqa: S314 - pytest's own report
    ET.ElementTree(whole).write(_report(tier.name), encoding="utf-8")


def _run_again(result: Result) -> None:
    """Run a tier's failed tests once more, now that nothing runs beside them; each in the lab of its part."""
    if not 0 < result.failed < MOST_FAILURES:
        return
    _show(f"\n== {result.tier}: what failed, once more and alone")
    options = ("--last-failed", "--last-failed-no-failures=none")
    alone = [_pytest(part, None, *options) for part, failures in result.parts.items() if failures]
    ran, failures = sum(one.ran for one in alone), sum(one.failed for one in alone)
    result.again = f"{ran - failures} of {ran} that failed passed alone"


def _show(text: str) -> None:
    with SHOWING:
        print(text, flush=True)


def _pytest(part: Part, output: IO[str] | None, *options: str) -> Result:
    start = time.monotonic()
    result = Result(part.tier)
    report = _report(f"{part.name}{'-again' if options else ''}")
    report.unlink(missing_ok=True)
    enough = f"--maxfail={MOST_FAILURES}"  # a broken lab fails every test, each only after its deadline
    own_cache = f"cache_dir={ROOT}/.pytest_cache/{part.name}"  # tiers that end beside each other would overwrite one
    command = ["nice", "-n", str(STEPS_BACK.get(part.tier, 0)), *part.before, *_within(part)]
    command += [sys.executable, "-m", "pytest", "-q"]
    command += [enough, *options, "-o", own_cache, f"--junitxml={report}", *part.paths]
    code = subprocess.run(command, cwd=ROOT, stdout=output, stderr=output and subprocess.STDOUT, check=False).returncode
    found = outcomes(report)
    result.failed = sum(map(failed, found.values()))
    result.skipped = sum(words == {"skipped"} for words in found.values())
    result.ran = len(found) - result.skipped
    result.broken = code != 0 or result.ran == 0
    if result.ran == 0:
        print(f"the {part.tier} tier ran no test", file=output)
    result.parts = {part: result.failed}
    result.seconds = time.monotonic() - start
    return result


def _within(part: Part) -> list[str]:
    """Return the words of ``HPCML_TIERS_WITHIN``, a command that runs each pytest; {} is the name of its part."""
    return [word.replace("{}", part.name) for word in shlex.split(os.environ.get("HPCML_TIERS_WITHIN", ""))]


def outcomes(report: Path) -> dict[str, set[str]]:
    """Return what pytest's report says of each test, nothing if there is none; a test that passed has no word."""
    found: dict[str, set[str]] = {}  # a test's parts are reported each
    if report.exists():
        try:
            root = ET.parse(report).getroot()  # noqa: S314 - pytest's own report
        except ET.ParseError as error:  # pytest was ended while it wrote: as if it had run nothing
            _show(f"{report}: {error}")
            return found
        for case in root.iter("testcase"):
            found.setdefault(f"{case.get('classname')}.{case.get('name')}", set()).update(part.tag for part in case)
    return found


def failed(words: set[str]) -> bool:
    """Whether a test failed."""
    return not words.isdisjoint(("failure", "error"))


def _prepare_lab(tier: Tier) -> str:
    """Install and start what the lab tier needs; return why it cannot run here, or nothing."""
    if os.geteuid() != 0:
        return "it needs root (sudo make test)"
    another = [] if tier.slurm in ("", OWN) else ["--slurm", tier.slurm]
    for words in (["install", "--accounting", *another], ["check"], ["down"], ["up"], ["env"]):
        if reason := _lab(*words):
            return reason
    if tier.slurm:
        _lab("down")  # it is started apart
        return ""
    if reason := _lab("image"):
        _show(f"without containers: {reason}")  # the tests that need an image skip with this reason
    return ""


def _lab(*words: str) -> str:
    """Run a command of the lab; return why it failed, or nothing."""
    _show(f"lab.py {' '.join(words)}")
    done = subprocess.run([*LAB, *words], capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return ""
    lines = (done.stderr or done.stdout).strip().splitlines() or ["no word"]
    return f"lab.py {words[0]}: {' '.join(line.strip() for line in lines[:3])}"


if __name__ == "__main__":
    sys.exit(main())
