"""``hpcml wheelhouse``: fetch the wheels that a machine without an index installs."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from hpcml.cli import common
from hpcml.terminal import Raw, say_fitted
from hpcml.units import format_bytes

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

_NONE = "none"  # in the place of an extra: hpcml and Jinja2 alone


def add_options(parser: ArgumentParser) -> None:
    """Add what only this verb takes."""
    parser.epilog = "pip fetches them; its own settings say where (PIP_INDEX_URL, PIP_EXTRA_INDEX_URL)."
    python = f"3.{sys.version_info.minor}"
    parser.add_argument(
        "--extra",
        action="append",
        metavar="EXTRA",
        help="what to fetch beside hpcml and Jinja2: node, local, jupyter…, or none (node; repeatable)",
    )
    parser.add_argument(
        "--python", metavar="VERSION", default=python, help="the nodes' Python, e.g. 3.11 (that of this hpcml)"
    )
    parser.add_argument(
        "--platform",
        metavar="PLATFORM",
        default="",
        help="of the nodes, as pip has it (manylinux_2_28_x86_64: x86, glibc 2.28 or newer)",
    )
    parser.add_argument("-o", "--output", metavar="FOLDER", default="wheelhouse", help="folder to make (wheelhouse)")
    common.add_json(parser)
    parser.set_defaults(host=None)  # it is made where the user sits


def run(options: Namespace) -> int:
    """Make the folder, and say how it is used."""
    from hpcml.installation import wheelhouse

    extras = tuple(dict.fromkeys(extra for extra in options.extra or ["node"] if extra != _NONE))
    wanted = wheelhouse.Wanted(extras, options.python, options.platform or wheelhouse.PLATFORM)
    wheelhouse.check(wanted)
    folder = Path(options.output)
    names = wheelhouse.make(folder, wanted, Raw(sys.stderr).write)
    size = sum((folder / name).stat().st_size for name in names)
    if options.json:
        common.print_json({"path": str(folder.absolute()), "wheels": names, "bytes": size, **wanted._asdict()})
        return 0
    say_fitted(f"{folder} is written: {len(names)} wheels, {format_bytes(size)}. On the other machine:", sys.stdout)
    say_fitted(f"  python{wanted.python} -m venv ~/hpcml", sys.stdout)
    words = shlex.join(["--find-links", folder.name, wanted.requirement])
    install = f"  ~/hpcml/bin/pip install --no-index {words}"
    say_fitted(install, sys.stdout)
    return 0
