"""Examples at the end of each command's help."""

from __future__ import annotations

EXAMPLES = {
    "submit": ("--nodes 4 --time 2h train.py --epochs 10", "--nodes 2 --gpus-per-node 4 --dry-run a.py"),
    "run": ("train.py --epochs 10",),
    "sweep": (
        "train.py --grid k=8,16 -- --epochs 10",
        "a.py --search 50 'k=randint(1,9)' --metric m",
        "status",
        "table train --csv",
        "plot train -o train.svg",
    ),
    "fabric": ("--nodes 2 --gpus-per-node 4", "last"),
    "jupyter": ("--nodes 2 --time 4h",),
    "new": ("train", "groups kmeans"),
    "ls": ("", "--failed --since 7d"),
    "status": ("", "train --json"),
    "top": ("", "--once train"),
    "why": ("", "train --json"),
    "report": ("", "train --open"),
    "logs": ("", "-f -n 20 last worker"),
    "wait": ("last", "prepare train"),
    "cancel": ("last", "--all --yes"),
    "rerun": ("last", "train --nodes 8 --time 4h"),
    "rm": ("train-20261121-074500-1a2b", "--failed --older-than 30d", "--older-than 30d --keep 20"),
    "shell": ("last", "train n2"),
    "fetch": ("last results",),
    "tunnel": ("last", "--host me@login.example.org --open last"),
    "doctor": ("", "--node --account astro"),
    "site": ("ls", "show leonardo --facts", "diff leonardo juwels", "init mycluster --probe"),
    "image": ("build cpu", "check --gpu rapids-cu12.sif"),
    "completion": ("bash",),
    "pack": ("", "-o bin/hpcml.pyz --force"),
}


def of(program: str) -> str:
    """Return the end of the help of ``hpcml COMMAND``, empty for a command's own verbs."""
    command = program.removeprefix("hpcml ")
    host = "--host me@login.example.org " if command == "fetch" else ""
    lines = [f"  hpcml {host}{command} {words}".rstrip() for words in EXAMPLES.get(command, ())]
    return "\n".join(["", f"example{'s' if len(lines) > 1 else ''}:", *lines, ""]) if lines else ""
