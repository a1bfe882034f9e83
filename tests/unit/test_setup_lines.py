"""setup.sh: the lines of runtime.setup run as in a script, and what a line that fails does."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from hpcml import assets
from tests.said import says

SETUP = assets.folder("templates") / "setup.sh"
JOB = f"""
set -u
write_end() {{ echo "end $1: $3"; }}
start_failed() {{ write_end 80 allocated "$1" "$2"; exit 80; }}
set +u
. {SETUP} "$@"
[ -z "$hpcml_number" ] || hpcml_ends "returned from the batch script"
set +e -u
echo "failed=$hpcml_failed A=${{A-}}"
"""
FILES = {
    "ok.sh": "A=1\nfalse\n", "returns.sh": "return 5\n", "exits.sh": "exit 4\n", "unset.sh": 'if [ -n "${NOPE}" ]; then :; fi\n',
    "arguments.sh": "A=$#\n", "killed.sh": "kill -TERM $$; sleep 9\n", "empty.sh": "",
}  # fmt: skip


def run(folder: Path, *lines: str, errors: str = "warn") -> tuple[int, str]:
    for name, text in FILES.items():
        (folder / name).write_text(text)
    done = subprocess.run(["bash", "-c", JOB, "job.sh", errors, *lines], cwd=folder, capture_output=True, text=True, check=False)  # fmt: skip
    assert "unbound variable" not in done.stderr
    return done.returncode, done.stdout.rstrip("\n")


# Lines that are right, or warnings: which line failed with which status, and the variable A in the end.
CONTINUES = (
    (("export A=/x:$NOPE",), "", "/x:"),
    (("source ./unset.sh", "module() { local keep=$NOPE; }", "module load x"), "", ""),
    (("nowhere ml || true", "source nowhere.sh || true", "A=2"), "", "2"),
    (("false", "A=2", "(exit 7)"), "1:1 3:7", "2"),
    (("[ -f nowhere.sh ] && . nowhere.sh",), "1:1", ""),
    ((". ./ok.sh", ". ./returns.sh", "[ -d nowhere ] || source ./ok.sh"), "1:1 2:5 3:1", "1"),
    (("source <(echo false)",), "1:1", ""),
    (("if false; then", "  A=4", "else", "  A=3", "fi", "false"), "6:1", "3"),
    (("f() {", "A=5", "return 4", "}", "f"), "5:4", "5"),
    (("cat >/dev/null <<X", "it's } here", "X", "export A=1 \\", " B=2", "# comment", "", "(exit 3)"), "8:3", "1"),
    (("mkdir -p deep && cd $_ && A=${PWD##*/}",), "", "deep"),
    (("declare -A M=([x]=1)", "A=(${M[x]})", "set -f", "IFS=:", "false"), "5:1", "1"),
    (("set -e", "A=1"), "", "1"),
    ((". ./arguments.sh",), "", "0"),
    (("trap 'echo bye' EXIT", "A=1"), "", "1\nbye"),
)


@pytest.mark.parametrize(("lines", "failed", "value"), CONTINUES)
def test_lines_that_end_no_run(tmp_path: Path, lines: tuple[str, ...], failed: str, value: str) -> None:
    assert run(tmp_path, *lines) == (0, f"failed={failed} A={value}")


# Lines that end the run: the number and the text of the line that is named, and why.
ENDS = (
    (("nowhere activate ml",), 1, "exited with status 127: a command was not found"),
    (("A=1", "A=$(nowhere)"), 2, "exited with status 127: a command was not found"),
    (("source nowhere.sh",), 1, "cannot read the file nowhere.sh"),
    ((". ./empty.sh; . ./nowhere.sh",), 1, "cannot read the file ./nowhere.sh"),
    (('source "$(echo no)/x.sh"',), 1, "cannot read the file no/x.sh"),
    (("true", "if true; then"), 2, "is not valid bash"),
    (("exit 3",), 1, "ended the batch script with status 3"),
    (("exit 0",), 1, "ended the batch script with status 0"),
    (("if true; then exit; fi",), 1, "ended the batch script with status 0"),
    ((". ./exits.sh",), 1, "ended the batch script with status 4"),
    (("set -e", "false"), 2, "ended the batch script with status 1"),
    (("return 3",), 1, "returned from the batch script"),
)


@pytest.mark.parametrize(("lines", "number", "why"), ENDS)
def test_lines_that_end_the_run(tmp_path: Path, lines: tuple[str, ...], number: int, why: str) -> None:
    assert run(tmp_path, *lines) == (80, f"end 80: line {number} of runtime.setup ({lines[number - 1]}) {why}")


def test_each_failure_ends_the_run_if_that_was_asked_for(tmp_path: Path) -> None:
    why = says("80: line 2 of runtime.setup ((exit 7))", "status 7 (runtime.setup_errors = 'end')")
    assert run(tmp_path, "false || true", "(exit 7)", "A=1", errors="end") == (80, why)


def test_a_signal_is_no_fault_of_a_line(tmp_path: Path) -> None:
    for line in ("kill -TERM $$", ". ./killed.sh"):
        assert run(tmp_path, line) == (-15, "")


def test_a_job_that_ends_in_a_line_cancels_the_next_attempt_s(tmp_path: Path) -> None:
    assert run(tmp_path, 'hand_over() { echo "cancelled"; }', "exit 3") == (
        80,
        "end 80: line 2 of runtime.setup (exit 3) ended the batch script with status 3\ncancelled",
    )
