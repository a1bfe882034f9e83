"""How tiers are divided, run beside each other and made one result again."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

import lab_slurms
from tests import run_tiers
from tests.run_tiers import Part, Result

LAB = next(tier for tier in run_tiers.TIERS if tier.name == "lab")


@pytest.fixture
def two_labs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_tiers, "_no_second_lab", lambda: "")
    monkeypatch.setattr(run_tiers, "_lab", lambda *_: "")


@pytest.mark.usefixtures("two_labs")
def test_each_file_of_the_lab_tier_is_in_one_of_the_two_labs() -> None:
    first, second = (part.paths for part in run_tiers._parts(LAB))
    assert sorted([*first, *second]) == [f"tests/lab/{path.name}" for path in sorted(Path("tests/lab").glob("test_*"))]
    assert len(first) > 10
    assert len(second) > 10


def test_shares_of_a_tier_hold_each_of_its_files_once(subtests: pytest.Subtests) -> None:
    for tier in (tier for tier in run_tiers.TIERS if tier.parts > 1):
        with subtests.test(tier=tier.name):
            shares = [part.paths for part in run_tiers._parts(tier)]
            assert len(shares) == tier.parts
            files = sorted(str(path) for path in Path(*tier.paths).glob("test_*.py"))
            assert sorted(path for share in shares for path in share) == files
    assert {tier.name for tier in run_tiers.TIERS if not tier.of_lab} == set(run_tiers.ORDER)


@pytest.mark.usefixtures("two_labs")
@pytest.mark.parametrize("prepared", ["", "it needs root (sudo make test)"])
def test_labs_come_first_and_a_lab_that_has_ended_gives_its_place_to_the_next(
    monkeypatch: pytest.MonkeyPatch, prepared: str
) -> None:
    """Each part waits until as many run beside it as may; a row that waits for ever is ended by pytest's timeout."""
    running: set[str] = set()
    most: dict[str, int] = {}
    begun: list[str] = []
    full, lock = threading.Barrier(run_tiers.BESIDE), threading.Lock()

    def pytest_of(part: Part, _output: object, *_options: str) -> Result:
        with lock:
            running.add(part.name)
            begun.append(part.name)
            most[part.name] = len(running)
        if part.tier == "lab" or (not prepared and len(begun) <= run_tiers.BESIDE):
            full.wait(timeout=300)
        with lock:
            running.remove(part.name)
        return Result(part.tier, ran=1, parts={part: 0})

    monkeypatch.setattr(run_tiers, "_pytest", pytest_of)
    monkeypatch.setattr(run_tiers, "_prepare_lab", lambda _: prepared)
    monkeypatch.setattr(run_tiers, "_merge_reports", lambda *_: None)
    monkeypatch.setattr(run_tiers, "_output", lambda part: run_tiers.ROOT / f".pytest_cache/row/{part.name}.txt")
    monkeypatch.setattr("subprocess.run", lambda *_, **__: None)
    asked = [tier for tier in run_tiers.TIERS if tier.name in ("cli", "local", "lab")]
    results = {result.tier: result for result in run_tiers._run_all(asked)}
    assert results["cli"].ran + results["local"].ran == 8
    assert max(most.values()) <= run_tiers.BESIDE
    assert results["lab"].why_not == prepared
    assert {"lab-1", "lab-2"} < set(begun) or prepared
    if not prepared:
        assert {"lab-1", "lab-2"} < set(begun[: run_tiers.BESIDE])


def test_a_small_machine_has_one_lab(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 1)
    assert run_tiers._parts(LAB) == [Part("lab", "lab", (), LAB.paths)]


def test_another_slurm_is_one_lab_apart_and_no_part_of_make_test() -> None:
    *_, newest = run_tiers.SLURMS
    [part] = run_tiers._parts(newest)
    assert part.before == (*run_tiers.APART, "--slurm", newest.slurm, "1")
    assert "--slurm" not in run_tiers._parts(run_tiers.SLURMS[0])[0].before
    assert {tier.name for tier in run_tiers.SLURMS} < set(run_tiers.ONLY_WHEN_NAMED)
    assert all(Path(path.partition("::")[0]).is_file() for path in run_tiers.CORE)
    assert {tier.slurm for tier in run_tiers.SLURMS} == {run_tiers.OWN, *lab_slurms.SUITES}


def test_two_labs_are_one_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_tiers, "_report", lambda name: tmp_path / f"{name}.xml")
    parts = [Part(f"lab-{number}", "lab", (), ()) for number in (1, 2)]
    for part, words in zip(parts, ("", "<failure/>"), strict=True):
        case = f'<testcase classname="m" name="{part.name}">{words}</testcase>'
        (tmp_path / f"{part.name}.xml").write_text(f"<testsuites><testsuite>{case}</testsuite></testsuites>")
    run_tiers._merge_reports(LAB, parts)
    assert run_tiers.outcomes(tmp_path / "lab.xml") == {"m.lab-1": set(), "m.lab-2": {"failure"}}
    one = Result("lab", ran=3, skipped=1, seconds=50, parts={parts[0]: 0})
    two = Result("lab", ran=2, failed=1, seconds=70, broken=True, parts={parts[1]: 1})
    whole = run_tiers._sum(LAB, [one, two])
    assert (whole.ran, whole.skipped, whole.failed, whole.seconds, whole.broken) == (5, 1, 1, 120, True)
    assert whole.parts == {parts[0]: 0, parts[1]: 1}


def test_what_failed_runs_again_in_its_own_lab(monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests) -> None:
    ran: list[str] = []

    def pytest_of(part: Part, _output: None, *options: str) -> Result:
        assert "--last-failed" in options
        ran.append(part.name)
        return Result("lab", ran=1)

    monkeypatch.setattr(run_tiers, "_pytest", pytest_of)
    for failures, again in (((0, 2), ["lab-2"]), ((1, 1), ["lab-1", "lab-2"]), ((0, 0), [])):
        with subtests.test(failures=failures):
            parts = {Part(f"lab-{number}", "lab", (), ()): count for number, count in enumerate(failures, 1)}
            run_tiers._run_again(Result("lab", failed=sum(failures), parts=parts))
            assert ran == again
            ran.clear()
