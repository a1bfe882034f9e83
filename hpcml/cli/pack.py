"""``hpcml pack``: write hpcml and what it needs on a login node into one file."""

from __future__ import annotations

import shlex
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from hpcml import __version__, files
from hpcml.cli import common
from hpcml.errors import StorageError, UsageError
from hpcml.terminal import say_fitted
from hpcml.units import format_bytes

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from hpcml.remote.ssh import Connection

_MODE = 0o755


def add_options(parser: ArgumentParser) -> None:
    """Add what only this verb takes."""
    parser.epilog = "It runs there by any Python from 3.11 on: python3 hpcml.pyz submit script.py."
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        default="hpcml.pyz",
        help="the file to write (hpcml.pyz); with --host there, where a relative one begins at your home",
    )
    parser.add_argument("--force", action="store_true", help="replace a file that is there")
    common.add_json(parser)


def run(options: Namespace) -> int:
    """Write the file."""
    from hpcml.installation import one_file

    path = Path(options.output)
    if (path.exists() or path.is_symlink()) and not options.force:
        raise UsageError(f"{path} is there already", place="hpcml pack", hint="Choose another name, or give --force.")
    data = one_file.make()
    try:
        files.write(path, data, _MODE)
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


def send(connect: Callable[[], Connection], options: Namespace) -> int:
    """Put the file on the login node, which needs no hpcml for that."""
    from hpcml.installation import one_file
    from hpcml.remote.channel import Delivery

    data = one_file.make()
    connection = connect()
    delivery = Delivery(connection, "hpcml pack", options.output, replace=options.force)
    with tempfile.TemporaryDirectory(prefix="hpcml-pack-") as folder, common.metered(len(data)) as sent:  # 0700
        files.write(Path(folder) / "hpcml.pyz", data, _MODE)
        delivery.send(Path(folder), sent)
    if options.json:
        facts = {"host": connection.host, "path": delivery.path, "version": __version__, "bytes": len(data)}
        common.print_json(facts)
        return 0
    what = f"hpcml {__version__} with all that a login node needs, {format_bytes(len(data))}"
    say_fitted(f"{delivery.path} is on {connection.host}: {what}. There:", sys.stdout)
    say_fitted(f"  python3 {shlex.quote(delivery.path)} --help", sys.stdout)
    return 0
