"""Every rendered script, compared byte for byte, and read by bash, shellcheck and (in tests/lab) a real sbatch."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from golden_files import compare
from hpcml.errors import ConfigError, UsageError
from hpcml.plan import batch_script
from matrix import (
    CASES,
    DIFFERENCES,
    IDS,
    JOBS,
    MACHINE_CASES,
    MACHINES,
    OF_A_SITE,
    PAIRS,
    SCRIPTS,
    WHOLE,
    Case,
    difference,
    differing,
    make,
    missing,
    text,
)


@pytest.mark.parametrize(("site", "case"), PAIRS, ids=IDS)
def test_the_script_is_the_golden_one_and_bash_can_read_it(
    site: str, case: Case, request: pytest.FixtureRequest
) -> None:
    made = text(site, case)
    if site in WHOLE:
        compare(SCRIPTS / f"{site}-{case.job}.sh", made, request)
    done = subprocess.run(["bash", "-n"], input=made, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("site", JOBS)
def test_a_site_differs_in_the_golden_lines(site: str, request: pytest.FixtureRequest) -> None:
    compare(DIFFERENCES / f"{site}.txt", difference(site), request)


@pytest.mark.parametrize("site", JOBS)
def test_sites_differ_in_their_own_lines_alone(site: str, subtests: pytest.Subtests) -> None:
    for case in MACHINE_CASES if site in MACHINES else JOBS[site]:
        with subtests.test(case=case.job):
            lines = [line[1:] for line in differing(site, case, 0) if line[0] in "-+"]
            assert lines
            assert [line for line in lines if not OF_A_SITE.match(line)] == []


@pytest.mark.skipif(bool(missing("shellcheck")), reason=missing("shellcheck"))
def test_shellcheck_has_nothing_to_say(tmp_path: Path) -> None:
    """Of the other sites two scripts each: the test above sees that they differ from slurm's in a site's own lines alone."""
    scripts = {}  # some differ in comments alone
    own = [(site, case) for site in JOBS for case in MACHINE_CASES if case.job in ("environment", "gpu-image")]
    for site, case in [*(pair for pair in PAIRS if pair[0] in WHOLE), *own]:
        lines = text(site, case).splitlines(keepends=True)
        scripts["".join(line for line in lines if not line.startswith("#"))] = "".join(lines)
    files = [tmp_path / f"{number}.sh" for number in range(len(scripts))]
    for file, script in zip(files, scripts.values(), strict=True):
        file.write_text(script, encoding="utf-8")
    # SC1091: a setup line sources a file that is not here. SC2016, SC2089, SC2090: quotes as data are meant.
    # SC2317: a function that only a trap calls.
    done = subprocess.run(
        ["shellcheck", "--exclude=SC1091,SC2016,SC2089,SC2090,SC2317", *files],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "")


def test_a_control_character_is_refused_in_words(subtests: pytest.Subtests) -> None:
    """From the command line, from a profile, and in the runs folder."""
    for bad in ("a\nb", "a\0b", "a\x1bb", "a\udcffb"):
        wrong: list[tuple[Case, dict[str, str]]] = [
            *((CASES[0], {where: bad}) for where in ("account", "partition", "qos", "dependency")),
            *(
                (CASES[0]._replace(settings=settings), {})
                for settings in (
                    {"runtime": {"python": f"/{bad}"}},
                    {"runtime": {"setup": [bad]}},
                    {"runtime": {"modules": [bad]}},
                    {"environment": {"A": bad}},
                    {"slurm": {"extra": [f"--constraint={bad}"]}},
                    {"slurm": {"srun_extra": [bad]}},
                )
            ),
            (CASES[0]._replace(folder=f"/scratch/a{bad}b"), {}),
        ]
        for case, spec in wrong:
            with (
                subtests.test(case=ascii(case), spec=ascii(spec)),
                pytest.raises(UsageError, match="line break or a control character"),
            ):
                batch_script.render(make("slurm", case, spec=spec))
            with (
                subtests.test("without rendering", case=ascii(case), spec=ascii(spec)),
                pytest.raises(UsageError, match="line break or a control character"),
            ):
                batch_script.check(make("slurm", case, spec=spec))


@pytest.mark.parametrize("bad", [":", "\\"])
def test_a_runs_folder_that_could_not_work_is_refused_in_words(bad: str) -> None:
    with pytest.raises(ConfigError, match="The path of the runs folder contains"):
        text("slurm", CASES[0]._replace(folder=f"/scratch/a{bad}b"))


@pytest.mark.parametrize("name", ["1A", "A;id", ""])
def test_a_variable_name_that_bash_would_not_take_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="is not a valid variable name"):
        text("slurm", CASES[0]._replace(settings={"environment": {name: "x"}}))


@pytest.mark.parametrize("line", ["exclusive", "-C gpu", "--mem 4", "--comment=x", "--array=1-3", ""])
def test_a_line_that_is_no_directive_is_refused(line: str) -> None:
    with pytest.raises(ConfigError):
        text("slurm", CASES[0]._replace(settings={"slurm": {"extra": [line]}}))
