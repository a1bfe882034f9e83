"""The fenced blocks of README and docs, and how those that are marked runnable are run."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *(page for folder in ("docs", "jobs", "containers", "tests") for page in (ROOT / folder).rglob("*.md")),
    ]
)
# The others speak of more than the command.
OWN = [page for page in PAGES if page.parent in (ROOT, DOCS, DOCS / "teaching")]
RUN = re.compile(r"<!-- run\b(?P<words>.*?)-->")
NOT_RUN = re.compile(r"<!-- not run: \S.*-->")
FENCE = re.compile(r"```(?P<words>[a-z ]*)")


@dataclass(frozen=True)
class Block:
    """A fenced block: where it begins, its language (and the word behind it), its text, and how it is run, if it is.

    ``excused``: a comment says why it is not run.
    """

    page: Path
    line: int
    language: str
    kind: str
    text: str
    run: dict[str, str] | None
    excused: bool

    @property
    def on_lab(self) -> bool:
        return (self.run or {}).get("on") == "lab"

    @property
    def place(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    def commands(self) -> list[str]:
        """Return the lines that a person types."""
        lines = [line for line in self.text.splitlines() if line.strip()]
        return [line[2:] for line in lines if line[:2] in ("$ ", "# ")] if self.language == "console" else lines


def split(page: Path) -> tuple[list[Block], str]:
    """Return a page's fenced blocks, and its text without them."""
    blocks: list[Block] = []
    prose: list[str] = []
    opened: tuple[int, list[str], dict[str, str] | None, bool] | None = None
    inside: list[str] = []
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        fence = FENCE.fullmatch(line)
        if opened is not None and line == "```":
            words = [*opened[1], "", ""]
            blocks.append(Block(page, opened[0], words[0], words[1], "\n".join(inside) + "\n", *opened[2:]))
            opened = None
        elif opened is not None:
            inside.append(line)
        elif fence:
            marked = RUN.fullmatch(prose[-1]) if prose else None
            said = dict(word.split("=") for word in marked["words"].split()) if marked else None
            excused = bool(prose and NOT_RUN.fullmatch(prose[-1]))
            opened, inside = (number, fence["words"].split(), said, excused), []
        else:
            prose.append(line)
    assert opened is None, f"{page.name}: a block is not closed"
    return blocks, "\n".join(prose)


BLOCKS = [block for page in PAGES for block in split(page)[0]]
OWN_BLOCKS = [block for block in BLOCKS if block.page in OWN]
SHELL = [block for block in OWN_BLOCKS if block.language in ("bash", "console")]


# check STATUS EXPECTED PLACE
# On a terminal a submission waits.
TERMINAL = """hpcml() {
  case " $* " in
    *" --detach "* | *" --prepare "* | *" --dry-run"* | *" --check "*) command hpcml "$@" ;;
    " submit "*) command hpcml submit --wait "${@:2}" ;;
    *) command hpcml "$@" ;;
  esac
}"""
CHECK = 'check() { [ "$1" = "$2" ] || { echo "$3: exit status $1, $2 expected" >&2; exit 1; }; }'


GIVEN = {  # scripts of the user's that pages speak of
    "train.py": "import hpcml\nprint(hpcml.connect().submit(sum, [1, 2]).result())\n",
    "first.py": "import hpcml\nprint(len(hpcml.connect().scheduler_info()['workers']))\n",
    "application": "#!/bin/sh\nhostname\n",
}


def saved(name: str, text: str) -> str:
    return f"cat >{shlex.quote(name)} <<'END OF FILE'\n{text}END OF FILE"


def is_named(block: Block, blocks: list[Block]) -> bool:
    """Whether another block of a Python block's page runs its file."""
    name = Path((block.run or {})["file"]).name
    return any(name in other.text for other in blocks if other.language != "python")


def session(blocks: list[Block], *, on_lab: bool = False) -> str:
    """Return the runnable blocks of a page as one bash script; Python is saved, and run here if it says with what."""
    lines = [CHECK, TERMINAL, *(saved(name, text) for name, text in GIVEN.items()), "chmod +x application",
             'top="$PWD"']  # fmt: skip
    for block in blocks:
        run = block.run or {}
        if block.language in ("yaml", "sh", "python"):
            lines.append(f'(cd "$top" || exit 1\n{saved(run["file"], block.text)}\n)')
            if run.get("with") == "python" and not on_lab:
                lines.append(f'(cd "$top" && python {shlex.quote(run["file"])})\ncheck $? 0 {block.place}')
            continue
        if block.on_lab != on_lab:
            continue
        if "after" in run:
            lines.append(f"hpcml submit --wait {run['after']}\ncheck $? 0 {block.place}")
        commands = block.commands()
        statuses = run.get("status", "0").split(",")
        statuses = ["0"] * (len(commands) - len(statuses)) + statuses  # of the last lines
        for line, status in zip(commands, statuses, strict=True):
            lines.append(f"{line}\ncheck $? {status} {block.place}")
    return "\n".join(lines) + "\n"


def of_page(page: Path) -> list[Block]:
    return [block for block in OWN_BLOCKS if block.page == page and block.run is not None]


LAB_PAGES = sorted({block.page for block in OWN_BLOCKS if block.on_lab})
RUNNABLE = sorted({block.page for block in OWN_BLOCKS if block.run is not None and not block.on_lab
                   and (block in SHELL or "with" in block.run)})  # fmt: skip
