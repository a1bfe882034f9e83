#!/usr/bin/env python3
"""Make the pictures of the documentation from real runs on the lab, and pictures of every command to look at.

tests/lab/apart.py 2 tests/pictures/make.py   write docs/pictures (what the pages show), from runs on the lab (root)
tests/pictures/make.py --look FOLDER          write what each command shows at 60, 80 and 120 columns, dark and light
tests/pictures/make.py --first FOLDER         the same of the screens that a user sees first, with a report's page
"""

from __future__ import annotations

import argparse
import itertools
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "cli"))
sys.path.insert(1, str(Path(__file__).resolve().parents[1] / "lab"))

import browser
import picture_words
import shape
import svg

from labs import Lab
from screen import ROWS, Cell, Line, Result, plain, run

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
    "slow.py": 'import time\n\nimport hpcml\n\nhpcml.connect()\nfor step in range(1, 600):\n    print("step", step, flush=True)\n    time.sleep(1)\n',
    "missing.py": "import hpcml\nimport sklaern\n",
    "divide.py": "import hpcml\n\n\ndef share(total, people):\n    return total / people\n\n\n"
    "client = hpcml.connect()\nprint(client.submit(share, 1, 0).result())\n",
    "busy.py": "import dask.array as da\nimport hpcml\n\nclient = hpcml.connect()\nx = da.random.default_rng(0).normal(size=(40_000, 2_000), chunks=(500, 2_000))\n"
    "for step in range(1_000):\n    (x.T @ x - step).sum().compute()\n",
    "sums.py": "import dask.array as da\nimport hpcml\n\nclient = hpcml.connect()\nx = da.random.default_rng(0).normal(size=(8_000, 1_000), chunks=(500, 1_000))\n"
    "for step in range(1, 1_000):\n    print('sum', round(float((x + step).sum().compute())), 'at step', step, flush=True)\n",
    "point.py": "import argparse\n\nimport hpcml\n\nparser = argparse.ArgumentParser()\nparser.add_argument('--k', type=int)\nparser.add_argument('--rate', type=float)\n"
    "chosen = parser.parse_args()\nhpcml.connect()\nhpcml.run.report(loss=chosen.rate / chosen.k, seconds_of_training=0.5 * chosen.k)\n",
    "train.py": "import os\nimport time\n\nrank = int(os.environ['RANK'])\nkept = []\nfor epoch in range(12):\n"
    "    print('rank', rank, 'epoch', epoch, flush=True)\n    kept.append(b'x' * 200_000_000 if rank == 2 else b'')\n    time.sleep(1)\n",
    "groups.py": "import dask.array as da\nimport hpcml\nimport numpy as np\n\nclient = hpcml.connect()\n"
    "rows = da.random.default_rng(0).normal(size=(400_000, 40), chunks=(10_000, 40)).persist()\n"
    "centers = rows[:8].compute()\nfor step in range(20):\n"
    "    distances = ((rows[:, None, :] - centers) ** 2).sum(axis=2)\n"
    "    nearest = distances.argmin(axis=1).persist()\n"
    "    centers = np.stack([rows[nearest == k].mean(axis=0).compute() for k in range(8)])\n"
    "    print('step', step, 'distance', round(float(distances.min(axis=1).mean().compute()), 3), flush=True)\n",
    "typo.py": "import hpcml\n\nclient = hpcml.connect(\nprint(client)\n",
}

CELLS = (
    'import dask.array as da\nimport hpcml\n\nclient = hpcml.connect()\nprint(len(client.scheduler_info()["workers"]), "workers")',
    "x = da.random.default_rng(0).normal(size=(20_000, 1_000), chunks=(2_000, 1_000))\nx",
    "round(float(x.mean().compute()), 4)",
)


class Desk:
    """A home with scripts in it, where commands are typed: on this machine."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.folder = home / "tour"
        self.folder.mkdir(parents=True, exist_ok=True)
        for name, text in SCRIPTS.items():
            (self.folder / name).write_text(text)

    def command(self, words: Sequence[str], **variables: str) -> tuple[list[str], dict[str, str]]:
        """Return the words and the environment that run a command in the folder."""
        own = {"HOME": str(self.home), "PATH": f"{HPCML.parent}:/usr/bin:/bin", "LANG": "C.UTF-8", "HPCML_SITE": "local",
               "HPCML_SYSTEM_CONFIG": "/nowhere"}  # fmt: skip
        return ["env", f"--chdir={self.folder}", *words], {**own, **variables}

    def see(self, typed: str, columns: int, moments: Sequence[str] = (), keys: dict[str, bytes] | None = None,
            rows: int = ROWS, **variables: str) -> Result:  # fmt: skip
        """Type a line, press keys at moments, and return what the terminal shows."""
        words, environment = self.command(["bash", "-c", typed], **variables)
        return run(words, columns, environment, Path("/"), moments=moments, keys=keys, rows=rows, timeout=300)

    def close(self) -> None:
        """End the runs that are left, so that none outlives its files."""
        self.piped("hpcml cancel --all --yes; hpcml wait $(hpcml ls | awk 'NR > 1 {print $1}')")

    def piped(self, typed: str, **variables: str) -> str:
        """Return what a command writes into a pipe, standard error with it."""
        words, environment = self.command(["bash", "-c", typed], **variables)
        done = subprocess.run(words, env=environment, text=True, check=False, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, timeout=300)  # fmt: skip
        return done.stdout


class LabDesk(Desk):
    """The same on the login node of the lab, for alice; ``here`` is a desk on this machine, where a browser is."""

    def __init__(self, here: Desk) -> None:
        self.here = here
        self.lab = Lab()
        self.lab.up()
        super().__init__(self.lab.home("alice"))
        self.piped("chmod -R u+w ~/.hpcml; rm -rf ~/.hpcml")  # a test leaves read-only runs
        for path in (self.folder, *self.folder.iterdir()):
            owner = self.home.stat()
            os.chown(path, owner.st_uid, owner.st_gid)

    def command(self, words: Sequence[str], **variables: str) -> tuple[list[str], dict[str, str]]:
        """Return the words and the environment that run a command in the folder."""
        return self.lab.command(words, cwd=self.folder, env={"LANG": "C.UTF-8", "TERM": "xterm-256color", **variables})

    def last(self, name: str) -> Path:
        """Return the directory of the newest run of a name."""
        return max(self.home.glob(f".hpcml/runs/{name}-*"))


def one_frame(lines: Sequence[Line], moment: str) -> list[Line]:
    """Return a screen that was drawn until a text, without the lines of an earlier frame below it."""
    newest = next(place for place, text in enumerate(plain(lines)) if moment in text)
    return [*lines[: newest + 1], lines[-1]]


def prompt(typed: str, columns: int) -> list[Line]:
    """Return the lines of a command as it was typed, folded by the terminal."""
    text = f"$ {typed}"
    return [tuple(Cell(letter) for letter in text[at : at + columns]) for at in range(0, len(text), columns)]


COMMANDS = {
    "nothing": "hpcml",
    "submit-help": "hpcml submit --help",
    "submit": "hpcml submit --nodes 2 --wait first.py",
    "submit-long": "hpcml submit sum_of_everything_in_a_long_name.py",
    "interrupted": "hpcml submit slow.py",
    "wait-interrupted": "hpcml wait slow",
    "status-running": "hpcml status slow",
    "cancel": "hpcml cancel slow",
    "wait-cancelled": "hpcml wait slow",
    "cancel-again": "hpcml cancel slow",
    "detach": "hpcml submit --detach first.py",
    "wait": "hpcml wait first",
    "missing": "hpcml submit missing.py",
    "divide": "hpcml submit divide.py",
    "why": "hpcml why divide",
    "typo": "hpcml submit typo.py",
    "no-option": "hpcml submit --nodse 2 first.py",
    "no-command": "hpcml sumbit first.py",
    "no-file": "hpcml submit frist.py",
    "no-run": "hpcml status frist",
    "ls": "hpcml ls",
    "status": "hpcml status first",
    "status-failed": "hpcml status divide",
    "logs": "hpcml logs first",
    "logs-scheduler": "hpcml logs first scheduler",
    "interconnect": "hpcml interconnect",
    "interconnect-run": "hpcml interconnect first",
    "site-ls": "hpcml site ls",
    "site-show": "hpcml site show local",
    "dry-run": "hpcml submit --site leonardo --account my_account --nodes 4 --dry-run first.py",
    "image-ls": "hpcml image ls",
    "image-check": "hpcml image check absent.sif",
    "jupyter-detach": "hpcml jupyter --detach",
    "cancel-all": "hpcml cancel --all --yes",
    "rm": "hpcml rm --failed < /dev/null",
    "rerun": "hpcml rerun first",
    "top": "hpcml top sums",
    "doctor": "hpcml doctor",
    "sweep-table": "hpcml sweep table point",
    "tunnel": "hpcml tunnel last",
    **{f"{name}-help": f"hpcml {name} --help" for name in ("ls", "run", "image", "image build", "tunnel", "jupyter", "interconnect")},
}  # fmt: skip
FIRST_SCREENS = ("nothing", "submit", "dry-run", "ls", "status", "why", "top", "doctor", "sweep-table", "report")
BEFORE = {"top": "hpcml submit --detach --nodes 2 sums.py",
          "sweep-table": "hpcml sweep --wait point.py --grid k=2,4,8 --grid rate=0.1,0.001"}  # fmt: skip
AFTER = {"top": "hpcml cancel sums; hpcml wait sums"}
PAGES = {60: 400, 80: 800, 120: 1280}  # pixels of a browser's page beside a terminal of so many columns
PLAIN = (
    "submit",
    "typo",
    "ls",
    "status",
    "nothing",
    "wait",
    "cancel-again",
)  # are also shown in a pipe, and with NO_COLOR
MOMENTS = {"submit": ("the run starts", "workers    0/2", "workers    1/2")}
KEYS = {"top": {"at step 20": b"q"}, "interrupted": {"step 1": b"\x03"}, "wait-interrupted": {"continue": b"\x03"}}
BROKEN = re.compile(
    r'^\s*(\||File "|\^+$|#SBATCH|\d{4}-\d\d-\d\d )'
)  # quotes and logs, which stay as they were written


def look(folder: Path, chosen: Sequence[str], widths: Sequence[int] = WIDTHS) -> None:
    """Write pictures of the commands, each at all widths in both themes, and what they write into a pipe.

    A line in the list ends in ``broken`` where the terminal broke one that hpcml did not fold.
    """
    folder.mkdir(parents=True, exist_ok=True)
    wanted = [name for name in COMMANDS if not chosen or name in chosen]
    first = ["submit", "divide", *(["interrupted"] if any("slow" in COMMANDS[name] for name in wanted) else [])]
    for columns in widths:
        with tempfile.TemporaryDirectory() as home:
            desk = Desk(Path(home) / "home/ada")
            with closing(desk):
                for name in [name for name in COMMANDS if name in (*wanted, *first)]:
                    typed = COMMANDS[name]
                    desk.piped(BEFORE.get(name, ":"))
                    seen = desk.see(
                        typed, columns, MOMENTS.get(name, ()), KEYS.get(name), 24 if name == "top" else ROWS
                    )
                    desk.piped(AFTER.get(name, ":"))
                    if name == "top":
                        seen = seen._replace(lines=one_frame(seen.moments["at step 20"], "at step 20"))
                    parts = [*seen.moments.values(), seen.lines] if name in MOMENTS else [seen.lines]
                    lines = [line for part in parts for line in (*prompt(typed, columns), *part, ())]
                    lines += [*prompt("echo $?", columns), tuple(map(Cell, str(seen.status)))]
                    for theme in svg.THEMES:
                        (folder / f"{name}-{columns}-{theme}.svg").write_text(
                            svg.render(lines, columns, svg.THEMES[theme])
                        )
                    broken = [line for line in seen.broken if not BROKEN.match(line)]
                    what = f"  {len(broken)} broken: {broken[:3]}" if broken else ""
                    print(
                        f"{name:<16} {columns:>4} columns, {len(seen.lines):>3} lines, status {seen.status}{what}",
                        flush=True,
                    )
                    if columns == 80 and name in PLAIN:
                        (folder / f"{name}-pipe.txt").write_text(desk.piped(typed))
                        plain = desk.see(typed, 80, NO_COLOR="1")
                        coloured = [
                            cell for line in plain.lines for cell in line if cell.colour != "default" or cell.bold
                        ]
                        assert not coloured, f"NO_COLOR: {name} has colours"
                if "report" in chosen:
                    page = next(desk.home.glob(".hpcml/runs/first-*/report.html"))
                    for theme in svg.THEMES:
                        browser.top_of(page, folder / f"report-{columns}-{theme}.png", PAGES[columns], theme)
    for name, theme in itertools.product(wanted, svg.THEMES):
        sheet(folder, name, theme, widths)


def sheet(folder: Path, name: str, theme: str, widths: Sequence[int]) -> None:
    """Write one PNG of a command at all widths."""
    body = "".join(f"<p>{(folder / f'{name}-{columns}-{theme}.svg').read_text()}</p>" for columns in widths)
    browser.photograph(body, 1080, folder / f"{name}-{theme}.png", "#222" if theme == "dark" else "#eee")


def terminal(desk: Desk, name: str, *commands: str) -> list[str]:
    """Write the picture of a terminal in which commands are typed one after the other; return its text."""
    lines: list[Line] = []
    typed = []
    for command in commands:
        typed.append(len(lines))
        lines += [*prompt(command, 80), *desk.see(command, 80).lines, ()]
    return drawn(name, lines[:-1], typed)


def drawn(name: str, lines: Sequence[Line], typed: Sequence[int]) -> list[str]:
    """Write the picture of a terminal of 80 columns, and return its text."""
    (PICTURES / f"{name}.svg").write_text(svg.render(lines, 80, svg.THEMES["dark"], typed))
    return plain(lines)


def document(chosen: Sequence[str]) -> None:
    """Write the pictures of the documentation, or those that are named, and their words."""
    PICTURES.mkdir(exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as home,
        closing(Desk(Path(home) / "home/ada")) as here,
        closing(LabDesk(here)) as desk,
    ):
        for name, draw in DOCUMENTED.items():
            if not chosen or name in chosen:
                if lines := draw(desk):  # none of Dask's page
                    picture_words.record(name, lines)
                print(*sorted(path.relative_to(PICTURES.parent) for path in PICTURES.glob(f"{name}.*")), flush=True)


def _submit(desk: LabDesk) -> list[str]:
    """Show the second run: the first shows a note on whole nodes, which is longer than a line."""
    desk.piped("hpcml submit --wait --nodes 4 first.py")
    return terminal(desk, "submit", "hpcml submit --nodes 4 first.py")


def _runs(desk: LabDesk) -> list[str]:
    desk.piped("hpcml submit --wait --nodes 2 --name share divide.py; hpcml submit --wait first.py")
    return terminal(desk, "runs", "hpcml ls", "hpcml status first")


def _why(desk: LabDesk) -> list[str]:
    """Show a run of ranks, one of which needed more memory than its node has, and the command to repeat it."""
    desk.piped("hpcml submit --wait --nodes 2 --ranks 2 --memory-per-node 1000M train.py")
    return terminal(desk, "why", "hpcml why train")


def _top(desk: LabDesk) -> list[str]:
    """Take the picture of a view when tasks have been counted for a while."""
    desk.piped("hpcml submit --detach --nodes 4 sums.py")
    typed = COMMANDS["top"]
    (moment,) = KEYS["top"]  # the end of a line, which is drawn whole then
    seen = desk.see(typed, 80, keys=KEYS["top"], rows=24)
    desk.piped("hpcml cancel sums; hpcml wait sums")
    return drawn("top", [*prompt(typed, 80), *one_frame(seen.moments[moment], moment)], [0])


def _dashboard(desk: LabDesk) -> list[str]:
    """Photograph Dask's own page: of a run on this machine, for a tunnel to the lab needs its laptop."""
    here = desk.here
    here.piped("hpcml submit --detach --nodes 4 busy.py")
    with browser.tunnel(*here.command(["hpcml", "tunnel", "busy"])) as address:
        browser.dashboard(address, PICTURES / "dashboard.png")
    here.piped("hpcml cancel busy; hpcml wait busy")
    return []


def _jupyter(desk: LabDesk) -> list[str]:
    """Photograph JupyterLab's own page, likewise."""
    here = desk.here
    (here.folder / "tour.ipynb").write_text(browser.as_notebook(CELLS))
    here.piped("hpcml jupyter --detach --nodes 4")
    with browser.tunnel(*here.command(["hpcml", "tunnel", "--service", "jupyter", "jupyter"])) as address:
        token = next(here.home.glob(".hpcml/runs/jupyter-*/attempts/*/secret/jupyter.token")).read_text().strip()
        lines = browser.notebook(address, token, "tour.ipynb", "0.0001", PICTURES / "jupyter.png")
    here.piped("hpcml cancel jupyter; hpcml wait jupyter")
    return lines


def _interconnect(desk: LabDesk) -> list[str]:
    """Take the picture that ``hpcml interconnect`` makes itself."""
    print(desk.piped("hpcml interconnect --nodes 4 --wait"))
    text = (desk.last("interconnect") / "out/interconnect.svg").read_text()
    (PICTURES / "interconnect.svg").write_text(text)
    return re.findall(r">([^<>]*[a-z][^<>]*)</", text)


def _report(desk: LabDesk) -> list[str]:
    """Photograph the report of a run on four nodes."""
    desk.piped("hpcml submit --wait --nodes 4 groups.py")
    return browser.top_of(desk.last("groups") / "report.html", PICTURES / "report.png")


def _shape(_: LabDesk) -> list[str]:
    shape.PICTURE.write_text(shape.draw(), encoding="utf-8")
    return []  # a test compares the file with what is drawn


DOCUMENTED: dict[str, Callable[[LabDesk], list[str]]] = {
    "submit": _submit,
    "runs": _runs,
    "why": _why,
    "top": _top,
    "dashboard": _dashboard,
    "jupyter": _jupyter,
    "interconnect": _interconnect,
    "report": _report,
    "shape": _shape,
}


def main() -> int:
    """Write the pictures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--look", type=Path, metavar="FOLDER", help="write pictures of every command there instead")
    parser.add_argument(
        "--first", type=Path, metavar="FOLDER", help="write pictures of the first screens there instead"
    )
    parser.add_argument("--only", default="", metavar="NAME,…", help="these pictures, or these commands with --look")
    parser.add_argument(
        "--widths", type=int, nargs="+", default=WIDTHS, metavar="COLUMNS", help="with --look: these widths"
    )
    options = parser.parse_args()
    chosen = [name for name in options.only.split(",") if name]
    if options.first:
        look(options.first, chosen or FIRST_SCREENS, options.widths)
    elif options.look:
        look(options.look, chosen, options.widths)
    else:
        document(chosen)
    return 0


if __name__ == "__main__":
    sys.exit(main())
