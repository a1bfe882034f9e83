#!/usr/bin/env python3
"""Run a command in a world of its own, where it may start a lab beside another: `apart.py 2 pytest tests/lab/test_run.py`.

The command has its own processes, mounts and `/run`, and all of these end with it. Lab 1 is the lab's own folder. Any other
number has a folder beside it, mounted over it, users with other uids, and of lab 1 only what is read: the Python environments
and the image. So paths and names are the same in every lab, and no lab sees anything of another.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import lab_install
import lab_slurms
from lab_paths import NUMBER, PROGRAM, SLURM, USERS, LabError, Places
from lab_state import locked

SHARED = ("venv", "laptop-venv", "images")
# The shell stays as the first process: it takes the exit status of whatever is left behind.
SCRIPT = """
set -e
if [ -n "$SLURM_TREE" ]; then mount -t overlay -o "lowerdir=$SLURM_TREE:/usr" hpcml-slurm /usr; fi
while mountpoint -q /run/netns; do umount --lazy --recursive /run/netns; done
mount -t tmpfs -o mode=755 hpcml-lab /run
if [ "$OWN" != "$TOP" ]; then
  for name in $SHARED; do mkdir -p "$OWN/$name"; mount --bind -o ro "$TOP/$name" "$OWN/$name"; done
  mount --rbind "$OWN" "$TOP"
  mkdir /run/etc /run/etc-work
  mount -t overlay -o lowerdir=/etc,upperdir=/run/etc,workdir=/run/etc-work hpcml-etc /etc
  for user in $USERS; do usermod --uid $(($(id -u "$user") + UIDS)) "$user"; done
fi
set +e
"$@"
exit $?
"""


def main() -> int:
    parser = argparse.ArgumentParser(prog="apart.py", description=__doc__)
    parser.add_argument("number", type=int, choices=range(1, 10), metavar="NUMBER", help="of the lab, 1 to 9")
    text = "another Slurm than the machine's own (lab.py install --slurm)"
    parser.add_argument("--slurm", choices=sorted(lab_slurms.SUITES), default=os.environ.get(SLURM) or None, help=text)
    parser.add_argument("words", nargs=argparse.REMAINDER, metavar="CMD")
    options = parser.parse_args()
    if not options.words:
        parser.error("name a command")
    try:
        _become(options.number, options.words, options.slurm)
    except LabError as error:
        print(error, file=sys.stderr)
    return 1


def _become(number: int, words: list[str], version: str | None) -> None:
    places = Places.default()
    top = places.top
    if os.geteuid() != 0:
        raise LabError(lab_install.NEEDS_ROOT)
    if not all((top / name).is_dir() for name in SHARED[:2]):
        raise LabError(f"There is no lab yet to stand beside ({top}). Run: {PROGRAM} up, then {PROGRAM} env")
    if version and (reason := lab_slurms.reason_against(places, version)):
        raise LabError(reason)
    (top / "images").mkdir(exist_ok=True)
    own = Path(f"{top}{number}") if number > 1 else top
    # Held by what this process becomes, until the command has ended: two in one folder would end each other's lab.
    lock = own.with_name(f"{own.name}.lock").open("w")
    if not locked(lock):
        raise LabError(f"Lab {number} is in use ({lock.name}). Wait for its end, or name another number.")
    os.set_inheritable(lock.fileno(), True)
    variables = {
        NUMBER: str(number), SLURM: version or "",
        "SLURM_TREE": str(lab_slurms.tree(places, version)) if version else "", "TOP": str(top), "OWN": str(own),
        "SHARED": " ".join(SHARED), "USERS": " ".join(USERS.values()), "UIDS": str(1000 * (number - 1)),
    }  # fmt: skip
    enter = ["unshare", "--mount", "--propagation", "private", "--pid", "--fork", "--kill-child", "--mount-proc"]
    os.umask(0o022)
    os.execvpe(enter[0], [*enter, "sh", "-c", SCRIPT, "sh", *words], {**os.environ, **variables})


if __name__ == "__main__":
    sys.exit(main())
