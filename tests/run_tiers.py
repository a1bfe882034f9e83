"""Run the tiers of tests that this machine can run, and say why not for the others: ``make test``, ``make quick``.

``make test`` runs the part of each tier that :data:`FIRST` names, ``make test-rest`` what it leaves, and ``make test-all``
both at once. A tier that FIRST does not name is all in ``make test``; a new file of another tier is in the rest.

All tiers but the lab are one pytest, with a process for each processor (pytest-xdist). Beside it runs the lab tier, which
needs root and installs what it lacks on Debian and Ubuntu (tests/lab/lab.py); where the machine has room its files are
divided between two labs. What a lab's pytest writes grows in ``.pytest_cache/lab-N.txt`` and is shown at its end.
"""

from __future__ import annotations

import argparse
import compileall
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree as ET

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / ".pytest_cache"
RESULTS = CACHE / "tiers.json"  # how each tier ended
MOST_FAILURES = 10  # a broken lab fails every test, each only after its deadline
LAB = [sys.executable, str(ROOT / "tests/lab/lab.py")]
APART = [sys.executable, str(ROOT / "tests/lab/apart.py")]
ROOM_FOR_TWO = 8 << 30  # bytes of memory
# The files of the lab tier for the second lab: about half of the time of either part. A new file is the first lab's.
SECOND_LAB = (
    "test_attacks_files", "test_attacks_nodes", "test_attempts_on_nodes",
    "test_elastic_on_nodes", "test_exit_status_inside",
    "test_from_laptop", "test_inside_an_image", "test_link", "test_losses", "test_notebooks", "test_preemption",
    "test_projects_on_nodes", "test_public_scripts", "test_ranks_ends", "test_run", "test_security", "test_services", "test_ssh_config",
    "test_staging", "test_submit", "test_time_limit", "test_tunnel",
    "test_tunnel_breaks",
)  # fmt: skip


# What `make test` runs of the tiers that take long: files, and tests of files of which the rest takes long. It is chosen to
# notice most planted faults in 8 minutes on 2 processors (tests/unit/test_tiers.py counts them).
_PAGES = ("doctor", "map", "report", "sites")
FIRST: dict[str, tuple[str, ...]] = {
    "docs": tuple(f"tests/test_docs_run.py::test_runnable_blocks_run[{page}.md]" for page in _PAGES),
    "local": tuple(f"tests/local/{name}" for name in (
        "test_a_run_that_ends_well.py",
        "test_code.py::test_the_user_s_umask_is_for_script_tasks_and_results",
        "test_connect.py::test_nobody_else_on_the_machine_is_answered_nor_plants_a_folder",
        "test_forms.py::test_a_notebook_whose_kernel_dies_has_failed",
        "test_forms.py::test_what_nccl_wrote_of_troubles_is_in_the_workers_log",
        "test_hold.py::test_a_cancelled_hold_ends_its_runs_first", "test_hold.py::test_an_idle_hold_ends",
        "test_hold.py::test_cancel_ends_the_run_and_not_the_hold", "test_hold.py::test_jupyter_in_a_hold_is_a_run_of_it",
        "test_hold.py::test_runs_are_one_after_another_each_with_its_own_end",
        "test_hold.py::test_runs_end_with_a_killed_supervisor", "test_hold.py::test_the_hold_s_time_limit_is_the_runs",
        "test_hold.py::test_the_summary_of_a_hold_has_no_line_of_a_script", "test_hold.py::test_what_a_hold_refuses",
        "test_hold_ahead.py::test_a_run_starts_without_processes_that_were_killed",
        "test_hold_ahead.py::test_a_run_with_other_variables_restarts_the_processes_and_says_so",
        "test_hold_ahead.py::test_the_processes_end_with_a_killed_supervisor_of_the_hold",
        "test_jupyter.py::test_idle", "test_jupyter.py::test_only_the_user_reaches_its_files",
        "test_late_cluster.py::test_a_plain_script_needs_no_dask",
        "test_late_cluster.py::test_a_plain_script_runs_without_a_cluster",
        "test_late_cluster.py::test_a_python_without_hpcml_fails_at_its_client",
        "test_local.py::test_a_setup_that_lacks_a_command_or_a_file_ends_the_run_before_its_processes_start",
        "test_local.py::test_an_interpreter_for_another_processor_is_told",
        "test_local.py::test_lines_of_the_setup_that_are_right_change_nothing",
        "test_local.py::test_the_script_s_own_status", "test_long_runs.py::test_three_times_the_time_limit",
        "test_map.py::test_a_limit_a_cancellation_and_the_end_of_the_program_end_points",
        "test_ranks.py::test_a_rank_begins_once_whatever_its_exit_status",
        "test_ranks.py::test_a_rank_that_cannot_be_started_says_which_program",
        "test_ranks.py::test_all_ranks_meet_by_their_variables_alone",
        "test_ranks.py::test_the_first_rank_that_fails_is_named_and_nothing_is_left",
        "test_runs_that_fail.py::test_a_folder_of_pythonpath_that_hides_dask_is_named",
        "test_runs_that_fail.py::test_a_worker_restarts_after_a_cuda_error_that_takes_its_gpu",
        "test_runs_that_fail.py::test_what_nobody_waited_for_is_told_of_a_script_that_ended_well",
        "test_silent_ranks.py::test_a_stopped_run_can_be_cancelled",
        "test_strangers.py::test_a_flood_of_connections[idle]",
        "test_wire.py::test_a_peer_cannot_read_memory", "test_wire.py::test_nothing_is_unpickled",
        "test_worlds.py::test_a_rank_that_is_its_own_mpi_world_ends_the_run_at_once",
    )),
    "lab": tuple(f"tests/lab/{name}" for name in (
        "test_a_run_on_four_nodes.py", "test_attacks_files.py", "test_doctor.py", "test_exit_status.py", "test_golden.py",
        "test_losses.py", "test_ranks_on_nodes.py", "test_run_ends.py", "test_security.py", "test_site_init.py",
        "test_submit.py", "test_tunnel.py", "test_elastic_on_nodes.py::test_it_breathes_and_is_closed_to_others",
    )),
}  # fmt: skip
PARTS = ("test", "rest", "all")


class Tier(NamedTuple):
    """A tier: its name, what it proves, the paths of its tests, and for a lab of its own the version of its Slurm."""

    name: str
    proves: str
    paths: tuple[str, ...]
    slurm: str = ""


OWN = "own"  # the machine's Slurm
CORE = tuple(f"tests/lab/{name}" for name in (
    "test_submit.py", "test_exit_status.py", "test_losses.py", "test_run.py", "test_run_ends.py", "test_time_limit.py",
    "test_exit_status_inside.py", "test_map_on_nodes.py", "test_a_run_on_four_nodes.py",
    "test_sbatch_templates.py::test_gpu_asks_for_gpus_and_every_worker_would_have_one",
    "test_why_staged.py::test_a_controller_that_was_away_is_not_the_cause",
    "test_why_staged.py::test_a_node_that_goes_down_is_the_cause_in_each_phase", "test_sweep_on_nodes.py",
    "test_sweep_in_jobs.py", "test_elastic_on_nodes.py::test_it_breathes_and_is_closed_to_others",
    "test_attempts_on_nodes.py", "test_preemption.py", "test_site_init.py", "test_with_accounting.py",
))  # fmt: skip
SLURMS = (
    Tier("slurm-own", "the core scenarios of the lab, the long pages of the documentation, fifty runs in a hold, and each shipped profile",
         (*CORE, "tests/lab/long_pages.py", "tests/lab/long_hold.py", "tests/lab/every_site.py"), OWN),
    *(Tier(f"slurm-{version}", f"the core scenarios of the lab on Slurm {version}", CORE, version) for version in ("24.11", "26.05")),
)  # fmt: skip
# In the order in which a pytest begins their files, as given: docs is one long file, and the short ones of unit end it.
TIERS = (
    Tier("docs", "what is typed in the documentation, typed", ("tests/test_docs_run.py",)),
    Tier("local", "real Dask under bash on this machine", ("tests/local",)),
    Tier("jobs", "every example against scikit-learn, pandas and NumPy", ("tests/jobs",)),
    Tier("cli", "exit statuses and messages of the installed command", ("tests/cli",)),
    Tier("unit", "decisions, parsers, architecture, packaging", (
        "tests/unit", "tests/golden", "tests/test_architecture.py", "tests/test_wheel.py", "tests/test_docs.py")),
    Tier("one-run", "one run under bash", ("tests/local/test_local.py::test_the_script_s_own_status[true]",)),
    Tier("lab", "a real Slurm of four nodes", ("tests/lab",)),
    *SLURMS,
)  # fmt: skip
ONLY_WHEN_NAMED = ("one-run", *(tier.name for tier in SLURMS))  # other tiers run the same, but for the versions


class Run(NamedTuple):
    """What came of a pytest: its exit status, its report, and how many seconds it took."""

    code: int
    report: Path
    seconds: float


class Result(NamedTuple):
    """How the tests of a tier ended."""

    passed: int
    failed: list[str]
    skipped: int
    seconds: float


def main() -> int:
    """Run the tiers named on the command line (default: all) and print a table."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in a script's `make test &`
    for other in (signal.SIGQUIT, signal.SIGHUP):  # so are these, or by nohup; what is tested would inherit that
        signal.signal(other, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, interrupt)
    parser = argparse.ArgumentParser(description=__doc__)
    names = [tier.name for tier in TIERS]
    parser.add_argument("tiers", nargs="*", metavar="TIER", help=f"of {', '.join(names)} (default: those of make test)")
    parser.add_argument(
        "--part", choices=PARTS, help="of each tier (default: test, or all of the tiers that are named)"
    )
    parser.add_argument("--must-run", action="append", default=[], metavar="TIER", help="fail if it cannot run here")
    options = parser.parse_args()
    if unknown := [name for name in (*options.tiers, *options.must_run) if name not in names]:
        parser.error(f"no such tier: {', '.join(unknown)}")
    named = options.tiers or [name for name in names if name not in ONLY_WHEN_NAMED]
    part = options.part or ("all" if options.tiers else "test")
    asked = [tier for tier in TIERS if tier.name in named and tests_of(tier, part).paths]
    labs = [tier for tier in asked if tier.slurm or tier.name == "lab"]
    others = [tier for tier in asked if tier not in labs]
    if labs and os.geteuid() == 0:
        lab("install", "--accounting")  # before all: the unit tier uses shellcheck, which comes with it
    compileall.compile_dir(ROOT / "hpcml", quiet=1)  # also where Python writes no bytecode: hundreds of processes
    with ThreadPoolExecutor() as pool:
        of_labs = pool.submit(run_labs, labs, part)
        runs = {tier.name: [run] for run in ([run_here(others, part)] if others else []) for tier in others}
        of_tiers, reasons = of_labs.result()
        runs |= of_tiers
    results = {tier.name: of_tier(tier, runs.get(tier.name, [])) for tier in asked}
    RESULTS.write_text(json.dumps({name: found._asdict() for name, found in results.items()}, indent=1) + "\n")
    print(f"\n{'tier':<11} {'passed':>7} {'failed':>7} {'skipped':>8} {'tests':>8}")
    for name, found in results.items():
        note = f"  not run: {reasons[name]}" if name in reasons else ""
        print(f"{name:<11} {found.passed:>7} {len(found.failed):>7} {found.skipped:>8} {found.seconds:>7.0f}s{note}")
    total = (sum(found.passed for found in results.values()), sum(len(found.failed) for found in results.values()))
    print(f"{total[0]} passed, {total[1]} failed, {sum(found.skipped for found in results.values())} skipped")
    ended_badly = {name for name, some in runs.items() if any(run.code for run in some)}
    ran_none = {name for name, found in results.items() if not (found.passed or found.failed or name in reasons)}
    bad = [name for name in results if name in ended_badly | ran_none or (name in reasons and name in options.must_run)]
    if bad:
        print(f"not good: {', '.join(bad)}")
    return 1 if bad else 0


def interrupt(*_: object) -> None:
    """SIGTERM, which make passes on to this process alone: all that it started ends as by Ctrl-C, labs too."""
    for children in Path("/proc/self/task").glob("*/children"):
        for pid in children.read_text().split():
            os.kill(int(pid), signal.SIGINT)
    raise KeyboardInterrupt


class Tests(NamedTuple):
    """What a pytest runs: paths of files or tests, and tests of these files that it leaves out."""

    paths: list[str]
    without: list[str]

    @property
    def words(self) -> list[str]:
        """Return the arguments of pytest."""
        return [*self.paths, *(f"--deselect={name}" for name in self.without)]


def tests_of(tier: Tier, part: str) -> Tests:
    """Return the tests of a part of a tier; no paths if the part has none of them."""
    first = FIRST.get(tier.name)
    if part == "all":
        return Tests(list(tier.paths), [])
    if part == "test":
        return Tests(list(tier.paths if first is None else first), [])
    if first is None:
        return Tests([], [])
    return Tests([path for path in files_of(tier) if path not in first], [name for name in first if "::" in name])


def files_of(tier: Tier) -> list[str]:
    """Return the test files of a tier, in the order in which pytest begins them."""
    places = [ROOT / path for path in tier.paths if "::" not in path]
    files = [file for place in places for file in (sorted(place.rglob("test_*.py")) if place.is_dir() else [place])]
    return [str(file.relative_to(ROOT)) for file in files]


def of_tier(tier: Tier, runs: Sequence[Run]) -> Result:
    """Return how the tests of a tier ended by pytest's reports; a test's parts are reported each."""
    modules = tuple(f"{path.partition('::')[0].removesuffix('.py').replace('/', '.')}." for path in tier.paths)
    words: dict[str, set[str]] = {}
    seconds = 0.0
    for run in runs:
        try:
            cases = list(ET.parse(run.report).getroot().iter("testcase"))  # noqa: S314 - pytest's own report
        except (OSError, ET.ParseError) as error:
            show(f"{run.report}: {error}")
            continue
        for case in cases:
            if f"{(place := str(case.get('classname')))}.".startswith(modules):
                words.setdefault(f"{place}.{case.get('name')}", set()).update(part.tag for part in case)
                seconds += float(case.get("time") or 0)
    failed = [name for name, tags in words.items() if tags & {"failure", "error"}]
    skipped = sum(tags == {"skipped"} for tags in words.values())
    return Result(len(words) - len(failed) - skipped, failed, skipped, round(seconds, 1))


def run_here(tiers: Sequence[Tier], part: str) -> Run:
    """Run tiers in one pytest, a process for each processor."""
    show(f"{', '.join(tier.name for tier in tiers)}: {'; '.join(tier.proves for tier in tiers)}")
    few = len(tiers) == 1 and tiers[0].name == "one-run"
    spread = [] if few else ["-n", str(os.cpu_count() or 1), "--dist", "loadfile", "--no-loadscope-reorder"]
    return pytest([], "here", [word for tier in tiers for word in tests_of(tier, part).words], *spread)


def run_labs(tiers: Sequence[Tier], part: str) -> tuple[dict[str, list[Run]], dict[str, str]]:
    """Run tiers of labs one after the other; return their runs, and why a tier cannot run here."""
    runs: dict[str, list[Run]] = {}
    reasons: dict[str, str] = {}
    for tier in tiers:
        if reason := prepare_lab(tier):
            reasons[tier.name] = reason
            continue
        shares = lab_shares(tier, part)
        with ThreadPoolExecutor() as pool:
            runs[tier.name] = list(pool.map(lambda share: pytest(*share, aside=True), shares))
        for _, name, _ in shares:
            show(f"\n== {tier.name}: {tier.proves}\n{(CACHE / f'{name}.txt').read_text(errors='replace')}")
    if runs:
        subprocess.run([*LAB, "down"], check=False)
    return runs, reasons


def pytest(before: Sequence[str], name: str, paths: Sequence[str], *options: str, aside: bool = False) -> Run:
    """Run a pytest, behind the words ``before``; ``aside``, what it writes goes into a file."""
    start = time.monotonic()
    report = CACHE / f"{name}.xml"
    report.unlink(missing_ok=True)
    CACHE.mkdir(exist_ok=True)
    command = [*before, sys.executable, "-m", "pytest", "-q", f"--maxfail={MOST_FAILURES}", *options]
    command += ["-o", f"cache_dir={CACHE / name}", f"--junitxml={report}", *paths]
    if not aside:
        return Run(subprocess.run(command, cwd=ROOT, check=False).returncode, report, time.monotonic() - start)
    output = CACHE / f"{name}.txt"
    show(f"{name} begins (tail -f {output.relative_to(ROOT)})")
    with output.open("w") as file:
        code = subprocess.run(command, cwd=ROOT, stdout=file, stderr=subprocess.STDOUT, check=False).returncode
    return Run(code, report, time.monotonic() - start)


def lab_shares(tier: Tier, part: str) -> list[tuple[list[str], str, list[str]]]:
    """Return what runs of a tier of labs: the words before each pytest, its name, and its arguments."""
    tests = tests_of(tier, part)
    if tier.slurm:
        other = [] if tier.slurm == OWN else ["--slurm", tier.slurm]
        return [([*APART, *other, "1"], tier.name, tests.words)]
    if reason := no_second_lab():
        show(f"one lab, not two: {reason}")
        return [([], "lab", tests.words)]
    lab("down")  # each of the two is started apart
    shares: tuple[list[str], list[str]] = ([], [])
    for path in files_of(tier) if part == "all" else tests.paths:
        shares[Path(path.partition("::")[0]).stem in SECOND_LAB].append(path)
    return [
        ([*APART, str(number)], f"lab-{number}", Tests(share, tests.without).words)
        for number, share in enumerate(shares, 1)
        if share
    ]


def no_second_lab() -> str:
    """Return why this machine has no room for a second lab, or nothing."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if (os.cpu_count() or 1) < 2 or memory < ROOM_FOR_TWO:
        return f"{os.cpu_count()} processors and {memory >> 20} MiB of memory"
    tried = subprocess.run([*APART, "2", "true"], capture_output=True, text=True, check=False)
    return "" if tried.returncode == 0 else (tried.stderr.strip() or f"apart.py: status {tried.returncode}")


def prepare_lab(tier: Tier) -> str:
    """Install and start what a tier of labs needs; return why it cannot run here, or nothing."""
    if os.geteuid() != 0:
        return "it needs root (sudo make test)"
    another = [] if tier.slurm in ("", OWN) else ["--slurm", tier.slurm]
    for words in (["install", "--accounting", *another], ["check"], ["down"], ["up"], ["env"]):
        if reason := lab(*words):
            return reason
    if tier.slurm:
        lab("down")  # it is started apart
        return ""
    if reason := lab("image"):
        show(f"without containers: {reason}")  # the tests that need an image skip with this reason
    return ""


def lab(*words: str) -> str:
    """Run a command of the lab; return why it failed, or nothing."""
    show(f"lab.py {' '.join(words)}")
    done = subprocess.run([*LAB, *words], capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return ""
    lines = (done.stderr or done.stdout).strip().splitlines() or ["no word"]
    return f"lab.py {words[0]}: {' '.join(line.strip() for line in lines[:3])}"


def show(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
