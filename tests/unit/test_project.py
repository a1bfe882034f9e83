"""What a run copies of a script's project: its root, the script's folder, or nothing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hpcml.request.record import Code, RunRequest
from hpcml.runs import copied_project, snapshot
from hpcml.sites.schema import Code as Rules
from hpcml.sweeps import submission
from hpcml.units import Memory
from hpcml.workload_forms import Form

UP = "from pathlib import Path\nROOT = Path(__file__).resolve().parent.parent\n"
SEARCH = "from pathlib import Path\nROOT = next(p for p in Path(__file__).parents if (p / '.git').exists())\n"


@pytest.fixture
def proj(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    proj = tmp_path / "home" / "work" / "proj"
    (proj / "scripts").mkdir(parents=True)
    (proj / "data").mkdir()
    (proj / "data" / "a.csv").write_text("1\n")
    (proj / "scripts" / "train.py").write_text(UP)
    return proj


def decided(script: Path, rules: Rules | None = None, form: Form = Form.SCRIPT) -> copied_project.Decision:
    return copied_project.decide(Code(script, form=form), rules or Rules(), Path("/nowhere/code"))


@pytest.mark.parametrize("marker", ["", ".git", "pyproject.toml", "hpcml.toml"])
def test_the_folder_that_the_script_names_is_copied(proj: Path, marker: str) -> None:
    if marker:
        (proj / marker).touch()
    found = decided(proj / "scripts" / "train.py")
    assert (found.root, found.in_place) == (str(proj), None)
    assert found.note == f"train.py:2 leads above the script's folder, so the run copies the project's folder {proj}"
    spec = found.applied(RunRequest.of(proj / "scripts" / "train.py"))
    assert (spec.code.top, spec.code.place) == (proj, Path("scripts/train.py"))


def test_what_stays_in_its_folder_is_copied_as_before(proj: Path) -> None:
    (proj / "scripts" / "train.py").write_text("print(__file__)\n")
    assert decided(proj / "scripts" / "train.py") == copied_project.Decision()


def test_a_module_and_a_shell_script_have_a_project_too(proj: Path) -> None:
    (proj / "scripts" / "pkg").mkdir()
    (proj / "scripts" / "pkg" / "run.py").write_text("from pathlib import Path\nROOT = Path(__file__).parents[2]\n")
    (proj / "scripts" / "go.sh").write_text('#!/bin/sh\ncd "$(dirname "$0")/.."\n')
    assert decided(proj / "scripts" / "pkg.run", form=Form.MODULE).root == str(proj)
    assert decided(proj / "scripts" / "go.sh", form=Form.PROGRAM).root == str(proj)


def test_a_search_upwards_copies_from_the_marker(proj: Path) -> None:
    (proj / "scripts" / "train.py").write_text(SEARCH)
    none = decided(proj / "scripts" / "train.py")
    assert none.in_place
    assert "no project root was found: the run uses" in none.note
    (proj / ".git").mkdir()
    assert decided(proj / "scripts" / "train.py").root == str(proj)


@pytest.mark.parametrize(
    ("text", "rules", "why"),
    [
        ("ROOT = __import__('pathlib').Path(__file__).parents[3]", Rules(), "hpcml does not copy "),  # home
        ("ROOT = __import__('pathlib').Path(__file__).parents[9]", Rules(), "hpcml does not copy /"),
        ("ROOT = __import__('pathlib').Path(__file__).parents[2]", Rules(), " is outside the project "),
        (UP, Rules(snapshot="script"), "code.snapshot = 'script'"),
        (UP, Rules(max_files=3), "is too large to copy: scripts/train.py exceeds code.max_files = 3"),
        (UP, Rules(max_file=Memory("1K")), "is too large to copy: scripts/train.py larger than code.max_file = 1K"),
    ],
)
def test_a_project_that_cannot_be_copied_runs_in_place(proj: Path, text: str, rules: Rules, why: str) -> None:
    (proj / ".git").mkdir()
    for number in range(4):
        (proj / "scripts" / f"{number}.py").write_text(UP)
    (proj / "scripts" / "train.py").write_text(f"{text}\n{'# ' * 600}")
    found = decided(proj / "scripts" / "train.py", rules)
    assert not found.root
    assert found.in_place
    assert why in found.note
    assert found.note.endswith("with code.snapshot=none; do not change the code until it ends")


def test_a_link_to_a_script_runs_in_place(proj: Path) -> None:
    (proj / "scripts" / "link.py").symlink_to("train.py")
    assert "the script is a link" in decided(proj / "scripts" / "link.py").note


def test_nobody_elses_folder_is_a_root(proj: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    assert decided(proj / "scripts" / "train.py").in_place


def test_data_folders_leave_room_for_code(proj: Path, tmp_path: Path) -> None:
    for number in range(20):
        (proj / "data" / f"{number}.txt").touch()
    (proj / "src" / "tool").mkdir(parents=True)
    (proj / "src" / "tool" / "__init__.py").touch()
    target = tmp_path / "code"
    target.mkdir()
    rules = Rules(max_files=8)
    found = decided(proj / "scripts" / "train.py", rules)
    assert found.root == str(proj)
    taken = snapshot.take(proj / "scripts" / "train.py", target, rules, root=found.root)
    assert [one.name for one in taken.left_out] == ["data/"]
    assert (target / "scripts" / "train.py").is_file()
    assert (target / "src" / "tool" / "__init__.py").is_file()
    assert (target / "data").readlink() == proj / "data"
    assert snapshot.preview(proj / "scripts" / "train.py", target, rules, module=False, root=found.root)[0] == 2


def test_a_sweep_s_points_have_the_modules_of_the_project_in_their_keys(proj: Path) -> None:
    (proj / "src").mkdir()
    (proj / "src" / "tool.py").touch()
    text = f"{UP}import sys\nsys.path.append(str(ROOT / 'src'))\nimport tool\n"
    (proj / "scripts" / "train.py").write_text(text)
    spec = decided(proj / "scripts" / "train.py").applied(RunRequest.of(proj / "scripts" / "train.py"))
    assert submission._modules_of_project(spec.code) == [proj / "src" / "tool.py"]


def test_what_is_sent_has_the_mark_of_the_root_and_no_more_of_the_repository(proj: Path, tmp_path: Path) -> None:
    (proj / ".git" / "objects").mkdir(parents=True)
    (proj / ".git" / "config").write_text("secret")
    (proj / ".project-root").touch()
    target = tmp_path / "sent"
    target.mkdir()
    snapshot.take(proj / "scripts" / "train.py", target, Rules(), linked=False, root=str(proj))
    assert sorted(str(path.relative_to(target)) for path in target.rglob(".*/*")) == [".git/HEAD"]
    assert (target / ".project-root").is_file()


@pytest.mark.parametrize(
    ("marker", "here", "sends"),
    [("", "scripts", False), ("", ".", True), ("", "..", True), ("pyproject.toml", "scripts", True)],
)
def test_a_text_has_no_folder_sent_that_nothing_makes_a_project(
    proj: Path, marker: str, here: str, sends: bool
) -> None:
    """Else code of others that lies in ~/Documents has the documents sent to the cluster, where it can read them."""
    if marker:
        (proj / marker).touch()
    code = Code(proj / "scripts" / "train.py", form=Form.SCRIPT)
    found = copied_project.decide(code, Rules(), Path("/nowhere/code"), proj / here)
    assert found.root == (str(proj) if sends else "")
    assert ("hpcml sends only the script's folder" in found.note_on_sending) is not sends
