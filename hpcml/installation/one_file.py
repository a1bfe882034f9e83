"""hpcml and what it needs on a login node as one file, which any Python that is new enough runs."""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Iterator
from importlib import metadata, util
from pathlib import Path

from hpcml import assets, files
from hpcml.installation import start

NEEDED = ("jinja2", "markupsafe")  # all that hpcml's base install needs; nothing of it is compiled
_ASSETS = ("templates", "containers", "jobs")
_KINDS = frozenset((".def", ".j2", ".md", ".py", ".sh", ".toml", ".typed"))
_LEFT_OUT = ("__pycache__", "_assets")  # the latter are found by assets.folder
_SHEBANG = b"#!/usr/bin/env python3\n"


def make() -> bytes:
    """Return the file's bytes."""
    members = {f"lib/{name}": data for name, data in sorted(_members())}
    digest = hashlib.sha256()
    for name, data in members.items():
        digest.update(b"%d %s %d\n" % (len(name), name.encode(), len(data)) + data)
    first = Path(start.__file__).read_text(encoding="utf-8").replace(start.DIGEST, digest.hexdigest()[:16])
    out = io.BytesIO()
    out.write(_SHEBANG)
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in (("__main__.py", first.encode()), *members.items()):
            archive.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED)
    return out.getvalue()


def _members() -> Iterator[tuple[str, bytes]]:
    """Yield the name and the bytes of each file of hpcml and of what it needs."""
    yield from _files(assets.package_root() / "hpcml", "hpcml")
    for kind in _ASSETS:
        yield from _files(assets.folder(kind), f"hpcml/_assets/{kind}")
    for name in NEEDED:
        spec = util.find_spec(name)
        assert spec is not None
        assert spec.submodule_search_locations is not None
        yield from _files(Path(next(iter(spec.submodule_search_locations))), name)
    for name in ("hpcml", *NEEDED):
        yield from _papers(name)


def _files(folder: Path, name: str) -> Iterator[tuple[str, bytes]]:
    for path in folder.rglob("*"):
        inside = path.relative_to(folder)
        left_out = any(part in _LEFT_OUT or part.startswith(".") for part in inside.parts)
        if path.suffix in _KINDS and path.is_file() and not left_out:
            yield f"{name}/{inside.as_posix()}", files.read(path, ours=False, follow=True)


def _papers(name: str) -> Iterator[tuple[str, bytes]]:
    """Yield what a package says of itself, and its licence, where it is installed as one; the record lists these."""
    try:
        found = metadata.files(name) or ()
    except metadata.PackageNotFoundError:
        return
    infos = [path for path in found if path.parts[0].endswith(".dist-info")]
    kept = [path for path in infos if path.name == "METADATA" or "licen" in path.as_posix().lower()]
    for path in kept:
        yield f"{path.as_posix()}", Path(str(path.locate())).read_bytes()
    if kept:
        record = "".join(sorted(f"{path.as_posix()},,\n" for path in kept))
        yield f"{kept[0].parts[0]}/RECORD", record.encode()
