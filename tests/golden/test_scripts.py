"""Every rendered script, compared byte for byte, and read by bash, shellcheck and (in tests/lab) a real sbatch."""

from __future__ import annotations

import itertools
import subprocess
from pathlib import Path

import pytest

from hpcml.errors import ConfigError, UsageError
from hpcml.plan import batch_script
from layout import FILE, layout
from matrix import (
    CASES,
    DIRECTIVES,
    IDS,
    MACHINE_CASES,
    MACHINES,
    OF_A_SITE,
    PAIRS,
    SCRIPTS,
    SITES,
    WHOLE,
    Case,
    changed,
    difference,
    directives,
    golden,
    hunks,
    make,
    missing,
    text,
)


@pytest.mark.parametrize(("site", "case"), PAIRS, ids=IDS)
def test_the_script_is_the_golden_one(site: str, case: Case, request: pytest.FixtureRequest) -> None:
    file, made = golden(site, case), text(site, case)
    base = "" if site in WHOLE else text("slurm", case)
    if request.config.getoption("--bless"):
        file.write_text(difference(base, made) if base else made, encoding="utf-8")
    assert file.is_file(), "it is new: make bless, and read the difference"
    written = file.read_text(encoding="utf-8")
    assert made == (changed(base, written) if base else written), "if that is meant: make bless, read the difference"
    assert batch_script._render_by_jinja(make(site, case), ()) == text(site, case)


def test_the_layout_is_made_from_the_template(request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--bless"):
        FILE.write_text(layout(), encoding="utf-8")
    assert FILE.read_text(encoding="utf-8") == layout(), "the template has changed: make bless"


@pytest.mark.parametrize("site", [*(site for site in SITES if site not in WHOLE), *MACHINES])
def test_sites_differ_in_their_own_lines_alone(site: str, subtests: pytest.Subtests) -> None:
    cases = MACHINE_CASES if site in MACHINES else [case for case in CASES if site in case.only]
    for case in cases:
        with subtests.test(case=case.job):
            found = hunks(text("slurm", case), text(site, case))
            assert found
            assert [line for hunk in found for line in hunk.gone + hunk.new if not OF_A_SITE.match(line)] == []


def test_a_difference_leads_to_the_same_script(subtests: pytest.Subtests) -> None:
    """Applied it gives the script again; to what has changed where it applies, it does not."""
    base = "a\nx\nb\nx\nc\n"
    for other in ("a\nx\nb\nx\nnew\nc\n", "a\nx\nnew\nb\nx\nc\n", "a\nb\nx\nc\n", "a\nx\nb\nx\n", "a\ny\nb\ny\nc\n"):
        with subtests.test(other=other):
            assert changed(base, difference(base, other)) == other
    with pytest.raises(ValueError, match="not there once"):
        changed("a\nx\nx\nx\nc\n", difference(base, "a\nx\nb\nx\nnew\nc\n"))


def test_no_golden_file_is_left_over() -> None:
    expected = {golden(site, case) for site, case in PAIRS} | {DIRECTIVES / f"{site}.txt" for site in MACHINES}
    assert {*SCRIPTS.iterdir(), *DIRECTIVES.iterdir()} == expected


@pytest.mark.parametrize(("site", "case"), PAIRS, ids=IDS)
def test_bash_can_read_it(site: str, case: Case) -> None:
    done = subprocess.run(["bash", "-n"], input=text(site, case), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("site", MACHINES)
def test_a_machines_directives_are_the_golden_ones(site: str, request: pytest.FixtureRequest) -> None:
    golden = DIRECTIVES / f"{site}.txt"
    if request.config.getoption("--bless"):
        golden.write_text(directives(site), encoding="utf-8")
    assert golden.is_file(), "it is new: make bless, and read the difference"
    assert directives(site) == golden.read_text(encoding="utf-8"), "if that is meant: make bless"


@pytest.mark.skipif(bool(missing("shellcheck")), reason=missing("shellcheck"))
def test_shellcheck_has_nothing_to_say(tmp_path: Path) -> None:
    files = []
    for site, case in [*PAIRS, *((site, case) for site in MACHINES for case in MACHINE_CASES)]:
        files.append(tmp_path / f"{site}-{case.job}.sh")
        files[-1].write_text(text(site, case), encoding="utf-8")
    # SC1091: a setup line sources a file that is not here. SC2016, SC2089, SC2090: quotes as data are meant.
    # SC2317: a function that only a trap calls.
    done = subprocess.run(
        ["shellcheck", "--exclude=SC1091,SC2016,SC2089,SC2090,SC2317", *files],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "")


CONTROL = ["a\nb", "a\rb", "a\0b", "a\tb", "a\x1bb", "a\x7fb", "a\udcffb"]


def test_a_control_character_in_a_directive_is_refused_in_words(subtests: pytest.Subtests) -> None:
    for bad, where in itertools.product(CONTROL, ("account", "partition", "qos", "dependency")):
        with (
            subtests.test(bad=ascii(bad), where=where),
            pytest.raises(UsageError, match="line break or a control character"),
        ):
            batch_script.render(make("slurm", CASES[0], spec={where: bad}))


def test_a_control_character_in_a_profile_is_refused_in_words(subtests: pytest.Subtests) -> None:
    for bad in CONTROL:
        for settings in (
            {"runtime": {"python": f"/{bad}"}},
            {"runtime": {"setup": [bad]}},
            {"runtime": {"modules": [bad]}},
            {"environment": {"A": bad}},
            {"slurm": {"extra": [f"--constraint={bad}"]}},
            {"slurm": {"srun_extra": [bad]}},
        ):
            with (
                subtests.test(settings=ascii(settings)),
                pytest.raises(UsageError, match="line break or a control character"),
            ):
                batch_script.render(make("slurm", CASES[0], settings))


@pytest.mark.parametrize("bad", ["\n", "\r", "\x1b"], ids=repr)
def test_a_control_character_in_the_runs_folder_is_refused_in_words(bad: str) -> None:
    with pytest.raises(UsageError, match="line break or a control character"):
        text("local", CASES[0]._replace(folder=f"/scratch/a{bad}b"))


@pytest.mark.parametrize("bad", [":", "\\"])
def test_a_runs_folder_that_could_not_work_is_refused_in_words(bad: str) -> None:
    with pytest.raises(ConfigError, match="The folder for runs holds"):
        text("slurm", CASES[0]._replace(folder=f"/scratch/a{bad}b"))


@pytest.mark.parametrize("name", ["1A", "A B", "A;id", "", "A-B", "é"])
def test_a_variable_name_that_bash_would_not_take_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="is not a variable's name"):
        text("slurm", CASES[0]._replace(settings={"environment": {name: "x"}}))


@pytest.mark.parametrize(
    "line", ["exclusive", "-C gpu", "--mem 4", "--a\nb", "--comment=x", "--array=1-3", "", "--", "#"]
)
def test_a_line_that_is_no_directive_is_refused(line: str) -> None:
    with pytest.raises(ConfigError):
        text("slurm", CASES[0]._replace(settings={"slurm": {"extra": [line]}}))


def test_what_a_profile_removes_or_replaces_is_not_there_twice() -> None:
    directives = make("slurm", next(case for case in CASES if case.job == "dialect")).directives
    options = [option for option, _ in directives]
    assert len(options) == len(set(options))
    assert dict(directives)["--mem"] == "2048M", "the request's own counts"
    assert not {"--export", "--no-requeue"} & set(options)
