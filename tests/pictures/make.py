#!/usr/bin/env python3
"""Make the pictures of the documentation from real runs on this machine, and pictures of every command to look at.

tests/pictures/make.py                 write docs/pictures (what the pages show)
tests/pictures/make.py --look FOLDER   write what each command shows at 60, 80 and 120 columns, dark and light
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "cli"))

import svg

from screen import Cell, Line, Result, run

PICTURES = Path(__file__).resolve().parents[2] / "docs/pictures"
HPCML = Path(sys.executable).with_name("hpcml")
WIDTHS = (60, 80, 120)

FIRST = """\
import dask.array as da
import hpcml

client = hpcml.connect()
x = da.random.default_rng(0).normal(size=(20_000, 1_000), chunks=(2_000, 1_000))
print("workers:", len(client.scheduler_info()["workers"]), "mean:", round(float(x.mean().compute()), 4))
"""
SCRIPTS = {
    "first.py": FIRST,
    "sum_of_everything_in_a_long_name.py": FIRST,
    "missing.py": "import hpcml\nimport sklaern\n",
    "divide.py": "import hpcml\n\n\ndef share(total, people):\n    return total / people\n\n\n"
    "client = hpcml.connect()\nprint(client.submit(share, 1, 0).result())\n",
    "typo.py": "import hpcml\n\nclient = hpcml.connect(\nprint(client)\n",
}


class Desk:
    """A home with scripts in it, where commands are typed."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.folder = home / "tour"
        self.folder.mkdir(parents=True)
        for name, text in SCRIPTS.items():
            (self.folder / name).write_text(text)
        self.environment = {
            "HOME": str(home),
            "PATH": f"{HPCML.parent}:/usr/bin:/bin",
            "LANG": "C.UTF-8",
            "HPCML_SITE": "local",
            "HPCML_SYSTEM_CONFIG": "/nowhere",
        }

    def see(self, typed: str, columns: int, moments: Sequence[str] = (), **variables: str) -> Result:
        """Type a line, and return what the terminal shows."""
        return run(["bash", "-c", typed], columns, {**self.environment, **variables}, self.folder, moments=moments)

    def piped(self, typed: str, **variables: str) -> str:
        """Return what a command writes into a pipe, standard error with it."""
        done = subprocess.run(["bash", "-c", typed], env={**self.environment, **variables}, cwd=self.folder, text=True, check=False,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, timeout=120)  # fmt: skip
        return done.stdout


def prompt(typed: str, columns: int) -> list[Line]:
    """Return the lines of a command as it was typed, folded by the terminal."""
    text = f"$ {typed}"
    return [tuple(Cell(letter) for letter in text[at : at + columns]) for at in range(0, len(text), columns)]


COMMANDS = {
    "nothing": "hpcml",
    "help": "hpcml --help",
    "submit-help": "hpcml submit --help",
    "submit": "hpcml submit --nodes 2 --wait first.py",
    "submit-long": "hpcml submit sum_of_everything_in_a_long_name.py",
    "detach": "hpcml submit --detach first.py",
    "missing": "hpcml submit missing.py",
    "divide": "hpcml submit divide.py",
    "why": "hpcml why last",
    "typo": "hpcml submit typo.py",
    "no-option": "hpcml submit --nodse 2 first.py",
    "no-command": "hpcml sumbit first.py",
    "no-file": "hpcml submit frist.py",
    "ls": "hpcml ls",
    "status": "hpcml status first",
    "status-failed": "hpcml status divide",
    "logs": "hpcml logs first",
    "logs-worker": "hpcml logs first worker",
    "logs-help": "hpcml logs --help",
    "ls-help": "hpcml ls --help",
    "run-help": "hpcml run --help",
    "image-help": "hpcml image --help",
    "image-build-help": "hpcml image build --help",
    "tunnel-help": "hpcml tunnel --help",
    "jupyter-help": "hpcml jupyter --help",
    "fabric-help": "hpcml fabric --help",
    "fabric": "hpcml fabric",
    "fabric-run": "hpcml fabric first",
    "site-ls": "hpcml site ls",
    "site-show": "hpcml site show local",
    "plan": "hpcml plan first.py",
    "dry-run": "hpcml submit --site leonardo --account my_account --nodes 4 --dry-run first.py",
    "image-ls": "hpcml image ls",
    "image-check": "hpcml image check",
    "rm": "hpcml rm --failed < /dev/null",
    "rerun": "hpcml rerun first",
    "wait": "hpcml wait last",
    "cancel": "hpcml cancel last",
    "tunnel": "hpcml tunnel last",
}
PLAIN = ("submit", "typo", "ls", "status", "help")  # are also shown in a pipe, and with NO_COLOR
MOMENTS = ("the batch script starts", "workers    0/2", "workers    1/2")


def look(folder: Path, chosen: Sequence[str], widths: Sequence[int] = WIDTHS) -> None:
    """Write pictures of the commands, each at all widths in both themes, and what they write into a pipe."""
    folder.mkdir(parents=True, exist_ok=True)
    for columns in widths:
        with tempfile.TemporaryDirectory() as home:
            desk = Desk(Path(home) / "home/ada")
            for name, typed in COMMANDS.items():
                if chosen and name not in (*chosen, "submit", "divide"):
                    continue
                seen = desk.see(typed, columns, MOMENTS if name == "submit" else ())
                parts = [*seen.moments.values(), seen.lines]
                lines = [line for part in parts for line in (*prompt(typed, columns), *part, ())]
                lines += prompt(f"# {seen.status}", columns)
                for theme in svg.THEMES:
                    picture = svg.render(lines, columns, svg.THEMES[theme])
                    (folder / f"{name}-{columns}-{theme}.svg").write_text(picture)
                widest = max((len(line) for line in seen.lines), default=0)
                print(
                    f"{name:<16} {columns:>4} columns: {len(seen.lines):>3} lines, widest {widest}, status {seen.status}",
                    flush=True,
                )
                if columns == 80 and name in PLAIN:
                    (folder / f"{name}-pipe.txt").write_text(desk.piped(typed))
                    plain = desk.see(typed, 80, NO_COLOR="1")
                    coloured = [cell for line in plain.lines for cell in line if cell.colour != "default" or cell.bold]
                    assert not coloured or name in chosen, f"NO_COLOR: {name} has colours"


def sheet(folder: Path, name: str, theme: str) -> None:
    """Write one PNG of a command at all widths."""
    from playwright.sync_api import sync_playwright

    body = "".join(f"<p>{(folder / f'{name}-{columns}-{theme}.svg').read_text()}</p>" for columns in WIDTHS)
    back = "#222" if theme == "dark" else "#eee"
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1080, "height": 400})
        page.set_content(f"<body style='background:{back}'>{body}</body>")
        page.screenshot(path=str(folder / f"{name}-{theme}.png"), full_page=True)
        browser.close()


def main() -> int:
    """Write the pictures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--look", type=Path, metavar="FOLDER", help="write pictures of every command there instead")
    parser.add_argument("--only", default="", metavar="NAME,…", help="with --look: these commands")
    parser.add_argument(
        "--widths", type=int, nargs="+", default=WIDTHS, metavar="COLUMNS", help="with --look: these widths"
    )
    options = parser.parse_args()
    chosen = [name for name in options.only.split(",") if name]
    if options.look:
        look(options.look, chosen, options.widths)
    return 0


if __name__ == "__main__":
    sys.exit(main())
