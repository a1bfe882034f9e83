"""``hpcml wheelhouse``: fetch the wheels that a machine without an index installs."""

from __future__ import annotations

import shlex
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from hpcml.cli import common
from hpcml.cli.meter import metered
from hpcml.errors import ConfigError
from hpcml.terminal import Raw, say, say_fitted
from hpcml.units import format_bytes

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from hpcml.installation.wheelhouse import Wanted
    from hpcml.remote.delivery import Delivery
    from hpcml.remote.ssh.connection import Connection

_NONE = "none"  # in the place of an extra: hpcml and Jinja2 alone


def add_options(parser: ArgumentParser) -> None:
    """Add what only this verb takes."""
    parser.epilog = "pip fetches them; its own settings say where (PIP_INDEX_URL, PIP_EXTRA_INDEX_URL)."
    parser.add_argument(
        "--extra",
        action="append",
        metavar="EXTRA",
        help="what to fetch beside hpcml and Jinja2: node, local, jupyter…, or none (node; repeatable)",
    )
    parser.add_argument(
        "--python",
        metavar="VERSION",
        default="",
        help="the nodes' Python, e.g. 3.11 (that of this hpcml; with --host of the hpcml there, or the newest there)",
    )
    parser.add_argument(
        "--platform",
        metavar="PLATFORM",
        default="",
        help="of the nodes, as pip has it (manylinux_2_28_x86_64: glibc 2.28 or newer; with --host the login node's)",
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="FOLDER",
        default="wheelhouse",
        help="folder to make (wheelhouse); with --host there, where a relative one begins at your home",
    )
    common.add_json(parser)


def run(options: Namespace) -> int:
    """Make the folder, and say how it is used."""
    from hpcml.installation import wheelhouse

    wanted = _wanted(options)
    wheelhouse.check(wanted)
    folder = Path(options.output)
    names = wheelhouse.make(folder, wanted, Raw(sys.stderr).write)
    size = _size(folder)
    if options.json:
        common.print_json({"path": str(folder.absolute()), "wheels": names, "bytes": size, **wanted._asdict()})
        return 0
    say_fitted(f"{folder} is written: {len(names)} wheels, {format_bytes(size)}. On the other machine:", sys.stdout)
    _say_use(folder.name, wanted)
    return 0


def send(connect: Callable[[], Connection], options: Namespace) -> int:
    """Make the folder for the login node's Python, put it there, and say how it is used; nothing of it stays here."""
    from hpcml.installation import wheelhouse
    from hpcml.remote.delivery import Delivery

    wheelhouse.check(_wanted(options))  # what was typed, before anybody is asked
    connection = connect()
    delivery = Delivery(connection, "hpcml wheelhouse", options.output, whole=True)
    wanted = _wanted_there(delivery, options)
    wheelhouse.check(wanted)
    with tempfile.TemporaryDirectory(prefix="hpcml-wheelhouse-") as above:  # 0700
        folder = Path(above) / "wheelhouse"
        names = wheelhouse.make(folder, wanted, Raw(sys.stderr).write)
        size = _size(folder)
        say(f"  sending    {len(names)} wheels, {format_bytes(size)} to {connection.host}", sys.stderr)
        with metered(size) as sent:
            delivery.send(folder, sent)
    if options.json:
        facts = {"host": connection.host, "path": delivery.path, "wheels": names, "bytes": size}
        common.print_json({**facts, **wanted._asdict()})
        return 0
    where = f"{delivery.path} is on {connection.host}: {len(names)} wheels, {format_bytes(size)}. There:"
    say_fitted(where, sys.stdout)
    _say_use(delivery.path, wanted)
    return 0


def _wanted(options: Namespace, python: str = f"3.{sys.version_info.minor}", platform: str = "") -> Wanted:
    """Return what is asked for; ``python`` and ``platform`` count where the options name none."""
    from hpcml.installation import wheelhouse

    extras = tuple(dict.fromkeys(extra for extra in options.extra or ["node"] if extra != _NONE))
    platform = options.platform or platform or wheelhouse.PLATFORM
    return wheelhouse.Wanted(extras, options.python or python, platform)


def _wanted_there(delivery: Delivery, options: Namespace) -> Wanted:
    """Return what is asked for, for the Python and the platform of the login node where the options name none.

    Raises
    ------
    ConfigError
        If no Python there is known that runs hpcml.
    """
    from hpcml.remote import delivery as remote

    on_path = delivery.look()
    if options.python and options.platform:
        return _wanted(options)
    own = remote.machine(delivery.connection)
    found = own if own.python else on_path
    if not (options.python or found.python):
        hint = "Name it: --python 3.11, as `python3 --version` says there with its module loaded."
        raise ConfigError(f"No Python from 3.11 on is on the PATH of {delivery.host}", place="--python", hint=hint)
    wanted = _wanted(options, found.python, found.platform)
    whose = f"as the hpcml on {delivery.host} has" if own.python else f"of {delivery.host}"
    say(f"  wheels     for Python {wanted.python} and {wanted.platform}, {whose}", sys.stderr)
    return wanted


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


def _say_use(path: str, wanted: Wanted) -> None:
    """Say what is typed where the folder is used."""
    say_fitted(f"  python{wanted.python} -m venv ~/hpcml", sys.stdout)
    words = shlex.join(["--find-links", path, wanted.requirement])
    say_fitted(f"  ~/hpcml/bin/pip install --no-index {words}", sys.stdout)
