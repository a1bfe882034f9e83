"""Where the lab looks for Apptainer, and what it says where there is none."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

import lab_apptainer
import lab_install
import lab_packages
from lab_paths import LabError, Places

INDEXES = """\
Translations|Debian|Debian|http://one/debian/
Packages|Debian|Debian-Security|http://one/debian-security/
Packages|Google|Google|http://other/apt/
Packages|Debian|Debian|http://one/debian/
Packages|Debian|Debian|{several}
"""


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Places:
    """A machine without Apptainer, whose tools are all there."""
    monkeypatch.setattr(shutil, "which", lambda _: None)
    monkeypatch.setattr(lab_install, "fetch", lambda _: [])
    monkeypatch.setattr(lab_install, "update", lambda: None)
    return Places(Path("/var/tmp") / tmp_path.relative_to("/"))  # a place that is never used: a lab may not be in /tmp


def _answer(monkeypatch: pytest.MonkeyPatch, code: int, out: str, err: str = "") -> list[str]:
    """Have every command answer this; return the list that the commands' words go to."""
    asked: list[str] = []

    def run(argv: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        asked.append(" ".join(argv))
        return subprocess.CompletedProcess(argv, code, out, err)

    monkeypatch.setattr(lab_packages, "run", run)
    return asked


def test_mirrors_are_the_distribution_s_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    several = tmp_path / "mirrors"
    several.write_text("https://near/debian\nhttps://far/debian\n")
    _answer(monkeypatch, 0, INDEXES.format(several=f"mirror+file:{several}/"))
    assert lab_packages.mirrors() == ["http://one/debian", "https://near/debian", "http://one/debian-security"]


def test_a_machine_without_lists_fetches_them_first(bare: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = _answer(monkeypatch, 0, "")
    with pytest.raises(LabError, match="no mirror of Debian or Ubuntu"):
        lab_packages.mirrors()
    assert len(asked) == 2


def test_the_reason_is_kept_for_the_tests(bare: Places, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    note = tmp_path / "note"
    monkeypatch.setattr(lab_apptainer, "_note", lambda _: note)
    monkeypatch.setattr(lab_packages, "mirrors", lambda: ["http://one/debian"])
    assert lab_apptainer.reason_against(bare) == (
        "Apptainer is not installed (tests/lab/lab.py). Run: tests/lab/lab.py install"
    )
    _answer(monkeypatch, 100, "", "E: The repository 'unstable' does not have a Release file.\nN: See apt-secure(8).\n")
    with pytest.raises(LabError) as caught:
        lab_apptainer.install(bare)
    assert (
        lab_apptainer.reason_against(bare)
        == str(caught.value)
        == (
            "Apptainer cannot be fetched: This machine's mirrors do not give Debian unstable "
            "(E: The repository 'unstable' does not have a Release file). Install the package apptainer by hand."
        )
    )


@pytest.mark.parametrize(("field", "names"), [
    ("libc6 (>= 2.38), libseccomp2 (>= 2.5.0), uidmap", ["libc6", "libseccomp2", "uidmap"]),
    ("squashfuse | fuse, python3:any (>= 3)", ["squashfuse", "python3"]),
    ("", []),
])  # fmt: skip
def test_dependencies_are_read_by_their_first_names(field: str, names: list[str]) -> None:
    assert lab_packages.dependencies(field) == names
