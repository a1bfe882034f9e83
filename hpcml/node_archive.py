"""Pack the modules that run on the nodes: their list, and the archive that a run gets as its lib.zip."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any

from hpcml import safe_files
from hpcml.paths import LIBRARY

_PACKAGE = Path(__file__).resolve().parent
SEAL = 64  # characters of a digest
# What a run's library has under other names: in the place of the command line, for scripts that call hpcml, and what
# Python imports as it starts.
RENAMED = {
    "hpcml/cli/__init__.py": "hpcml/cli/__init__.py",
    **dict.fromkeys(("hpcml/__main__.py", "hpcml/cli/main.py"), "hpcml/node/script/hpcml_command.py"),
    "sitecustomize.py": "hpcml/kinds/dask/node/script/sitecustomize_of_run.py",
}


def node_side() -> list[str]:
    """Return the modules that run on the nodes, relative to the folder that holds the package.

    Of a kind of run these are all but those of its folder ``login``.
    """
    paths = (
        "__init__.py",
        "attempt_history.py",
        "socket_relay.py",
        "script_api.py",
        "earlier_names.py",
        "errors.py",
        "safe_files.py",
        "workload_forms.py",
        "gpu_vendor.py",
        "features_by_point.py",
        "installed_packages.py",
        "kind.py",
        "hold_queue.py",
        "leases.py",
        "listeners.py",
        "paths.py",
        "run_files.py",
        "typed_json.py",
        "samples.py",
        "services.py",
        "settings.py",
        "site_records.py",
        "states.py",
        "terminal.py",
        "units.py",
        "outputs_brought_back.py",
    )
    root = len(f"{_PACKAGE}/")
    folders = ("node", "kinds", "failures", "repairs", "report")
    walked = [walk for folder in folders for walk in os.walk(_PACKAGE / folder)]
    node = [f"{at}/{name}"[root:] for at, _, names in walked for name in names if not at.endswith("/login")]
    return [f"hpcml/{name}" for name in (*paths, *sorted(name for name in node if name.endswith(".py")))]


class _Travelling(SourceFileLoader):
    """Reads a module of this package, or its compiled form, under the name that it has in the archive of a run."""

    @staticmethod
    def _here(path: str) -> str:
        return f"{_PACKAGE.parent}/{path.removeprefix(f'{LIBRARY}/')}"

    def path_stats(self, path: str) -> Mapping[str, Any]:
        return super().path_stats(self._here(path))

    def get_data(self, path: str) -> bytes:
        return super().get_data(self._here(path))

    def set_data(self, path: str, data: Any, *, _mode: int = 0o666) -> None:
        super().set_data(self._here(path), data, _mode=_mode)


def node_archive() -> bytes:
    """Return the modules that run on the nodes as an archive that Python imports from, with their compiled forms.

    It is kept beside the package's compiled modules, where this user may write, until a module changes.
    """
    import zlib

    names = node_side()
    parts = (*names, *RENAMED.values(), "hpcml/node_archive.py")
    states = [(name, state.st_mtime_ns, state.st_size) for name in parts if (state := (_PACKAGE.parent / name).stat())]
    folder, prefix = _PACKAGE / "__pycache__", f"lib.{sys.implementation.cache_tag}."
    kept = folder / f"{prefix}{zlib.crc32(repr(states).encode()):08x}.zip"
    with contextlib.suppress(OSError):
        if (archive := kept.read_bytes()).endswith(seal(archive).encode()):
            return archive
    archive = _archive(names)
    if not sys.dont_write_bytecode:
        with contextlib.suppress(OSError):
            for old in folder.glob(f"{prefix}*.zip"):
                old.unlink()
            safe_files.write(kept, archive, 0o644)
    return archive


def seal(archive: bytes) -> str:
    """Return the end of a whole archive: the SHA-256 of all that precedes it (job.sh checks it too)."""
    import hashlib

    return hashlib.sha256(archive[:-SEAL]).hexdigest()


def _archive(names: list[str]) -> bytes:
    """Make the archive.

    Python compiles nothing that it finds in an archive for the next process: without compiled forms every role would
    compile every module. They hold for this interpreter's version; another one takes the sources. What they name as
    their file is in no folder, so that a traceback shows the lines that travelled. Nothing is packed: that takes ten
    times as long as copying, and Python reads one as fast as the other. The archive's comment is its :func:`seal`.
    """
    import io
    import marshal
    import zipfile
    from importlib.util import MAGIC_NUMBER, source_hash

    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as members:
        for name in (*names, *RENAMED):
            loader = _Travelling(name, f"{LIBRARY}/{RENAMED.get(name, name)}")
            source = loader.get_data(loader.path)
            unchecked = MAGIC_NUMBER + b"\1\0\0\0" + source_hash(source)
            members.writestr(zipfile.ZipInfo(name), source)
            members.writestr(zipfile.ZipInfo(f"{name}c"), unchecked + marshal.dumps(loader.get_code(name)))
        members.comment = bytes(SEAL)
    archive = buffer.getvalue()
    return archive[:-SEAL] + seal(archive).encode()
