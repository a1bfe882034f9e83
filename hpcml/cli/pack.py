"""``hpcml pack``: write hpcml and what it needs on a login node into one file."""

from __future__ import annotations

import hashlib
import io
import shlex
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from importlib import metadata, util
from pathlib import Path
from typing import TYPE_CHECKING

from hpcml import __version__, assets, safe_files
from hpcml.cli import common, pack_start
from hpcml.errors import StorageError, UsageError
from hpcml.terminal import say_fitted
from hpcml.units import format_bytes

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from hpcml.cli.on_host import Laptop

_MODE = 0o755
NEEDED = ("jinja2", "markupsafe")  # all that hpcml's base install needs; nothing of it is compiled
_ASSETS = {"templates": "**/*", "containers": "**/*", "jobs": "**/*", "docs": "*.md"}
_KINDS = frozenset((".def", ".j2", ".md", ".py", ".sh", ".toml", ".txt", ".typed"))
_LEFT_OUT = ("__pycache__", "_assets")  # the latter are found by assets.folder
_SHEBANG = b"#!/usr/bin/env python3\n"


def add_options(parser: ArgumentParser) -> None:
    """Add what only this verb takes."""
    parser.epilog = "Run the file on the login node with Python 3.11 or newer: python3 hpcml.pyz submit script.py."
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        default="hpcml.pyz",
        help="file to write; with --host, a path below your home on HOST (default: hpcml.pyz)",
    )
    parser.add_argument("--force", action="store_true", help="replace an existing file")
    common.add_json(parser)


def run(options: Namespace) -> int:
    """Write the file; UsageError if it exists, StorageError if it cannot be written."""
    path = Path(options.output)
    if (path.exists() or path.is_symlink()) and not options.force:
        raise UsageError(f"{path} already exists", place="hpcml pack", hint="Choose another name, or add --force.")
    data = make()
    try:
        safe_files.write(path, data, _MODE)
    except OSError as error:
        hint = "Free disk space, or choose another file with -o."
        raise StorageError(f"{path} cannot be written: {error.strerror}", place="hpcml pack", hint=hint) from error
    if options.json:
        common.print_json({"path": str(path.absolute()), "version": __version__, "bytes": len(data)})
        return 0
    say_fitted(
        f"Wrote {path}: hpcml {__version__} with all files that a login node needs, {format_bytes(len(data))}.",
        sys.stdout,
    )
    say_fitted(f"Copy the file to the login node. There, type: python3 {shlex.quote(path.name)} --help", sys.stdout)
    return 0


def from_laptop(laptop: Laptop) -> int:
    """Put the file on the login node, which needs no hpcml for that."""
    from hpcml.remote.pack_delivery import Delivery

    options, data = laptop.options, make()
    connection = laptop.connect()
    delivery = Delivery(connection, "hpcml pack", options.output, replace=options.force)
    with tempfile.TemporaryDirectory(prefix="hpcml-pack-") as folder, common.metered(len(data)) as sent:  # 0700
        safe_files.write(Path(folder) / "hpcml.pyz", data, _MODE)
        delivery.send(Path(folder), sent)
    if options.json:
        result = {"host": connection.host, "path": delivery.path, "version": __version__, "bytes": len(data)}
        common.print_json(result)
        return 0
    summary = f"hpcml {__version__} with all files that a login node needs, {format_bytes(len(data))}"
    say_fitted(f"{delivery.path} is on {connection.host}: {summary}. To start hpcml on that host:", sys.stdout)
    say_fitted(f"  python3 {shlex.quote(delivery.path)} --help", sys.stdout)
    return 0


# -- the file -------------------------------------------------------------------------------------------------------


def make() -> bytes:
    """Return the bytes of hpcml and of what it needs on a login node, as one file that Python 3.11 or newer runs."""
    members = {f"lib/{name}": data for name, data in sorted(_members())}
    digest = hashlib.sha256()
    for name, data in members.items():
        digest.update(b"%d %s %d\n" % (len(name), name.encode(), len(data)) + data)
    first = Path(pack_start.__file__).read_text(encoding="utf-8").replace(pack_start.DIGEST, digest.hexdigest()[:16])
    out = io.BytesIO()
    out.write(_SHEBANG)
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in (("__main__.py", first.encode()), *members.items()):
            archive.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED)
    return out.getvalue()


def _members() -> Iterator[tuple[str, bytes]]:
    """Yield the name and the bytes of each file of hpcml and of what it needs."""
    yield from _files(assets.package_root() / "hpcml", "hpcml")
    for kind, pattern in _ASSETS.items():
        yield from _files(assets.folder(kind), f"hpcml/_assets/{kind}", pattern)
    for name in NEEDED:
        spec = util.find_spec(name)
        assert spec is not None
        assert spec.submodule_search_locations is not None
        yield from _files(Path(next(iter(spec.submodule_search_locations))), name)
    for name in ("hpcml", *NEEDED):
        yield from _papers(name)


def _files(folder: Path, name: str, pattern: str = "**/*") -> Iterator[tuple[str, bytes]]:
    for path in folder.glob(pattern):
        inside = path.relative_to(folder)
        left_out = any(part in _LEFT_OUT or part.startswith(".") for part in inside.parts)
        if path.suffix in _KINDS and path.is_file() and not left_out:
            yield f"{name}/{inside.as_posix()}", safe_files.read(path, ours=False, follow=True)


def _papers(name: str) -> Iterator[tuple[str, bytes]]:
    """Yield the papers of a package, and its licence, where it is installed as one; the record lists these."""
    try:
        listed = metadata.files(name) or ()
    except metadata.PackageNotFoundError:
        return
    infos = [path for path in listed if path.parts[0].endswith(".dist-info")]
    kept = [path for path in infos if path.name == "METADATA" or "licen" in path.as_posix().lower()]
    for path in kept:
        yield f"{path.as_posix()}", Path(str(path.locate())).read_bytes()
    if kept:
        record = "".join(sorted(f"{path.as_posix()},,\n" for path in kept))
        yield f"{kept[0].parts[0]}/RECORD", record.encode()
