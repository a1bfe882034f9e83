"""``hpcml pack``: write hpcml and what it needs on a login node into one file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from hpcml import __version__, files
from hpcml.cli import common
from hpcml.errors import StorageError, UsageError
from hpcml.terminal import say_fitted
from hpcml.units import format_bytes

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace


def add_options(parser: ArgumentParser) -> None:
    """Add what only this verb takes."""
    parser.epilog = "It runs there by any Python from 3.11 on: python3 hpcml.pyz submit script.py."
    parser.add_argument("-o", "--output", metavar="FILE", default="hpcml.pyz", help="the file to write (hpcml.pyz)")
    parser.add_argument("--force", action="store_true", help="replace a file that is there")
    common.add_json(parser)
    parser.set_defaults(host=None)  # it is written where the user sits


def run(options: Namespace) -> int:
    """Write the file."""
    from hpcml.installation import one_file

    path = Path(options.output)
    if (path.exists() or path.is_symlink()) and not options.force:
        raise UsageError(f"{path} is there already", place="hpcml pack", hint="Choose another name, or give --force.")
    data = one_file.make()
    try:
        files.write(path, data, 0o755)
    except OSError as error:
        hint = "Make room there, or name another file with -o."
        raise StorageError(f"{path} cannot be written: {error.strerror}", place="hpcml pack", hint=hint) from error
    if options.json:
        common.print_json({"path": str(path.absolute()), "version": __version__, "bytes": len(data)})
        return 0
    say_fitted(
        f"{path} is written: hpcml {__version__} with all that a login node needs, {format_bytes(len(data))}.",
        sys.stdout,
    )
    say_fitted(f"Copy it to the login node; there: python3 {path.name} --help", sys.stdout)
    return 0
