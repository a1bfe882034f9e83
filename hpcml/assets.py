"""Find what ships beside the code: templates, examples, pages and profiles, in a wheel and in a checkout alike."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from hpcml import safe_files

if TYPE_CHECKING:
    import jinja2

_PACKAGE = Path(__file__).resolve().parent


def folder(kind: str) -> Path:
    """Return the folder of one kind of asset: ``templates``, ``containers``, ``jobs``, ``docs`` or ``profiles``.

    A wheel holds all but the last in ``hpcml/_assets``; an editable install has no such folder (hatchling does not
    force-include there), so the checkout around the package serves.
    """
    if kind == "profiles":
        return _PACKAGE / "sites/profiles"
    shipped = _PACKAGE / "_assets" / kind
    return shipped if shipped.is_dir() else _PACKAGE.parent / kind


def compiled_templates(syntax: Mapping[str, bool]) -> jinja2.BytecodeCache:
    """Return the store of compiled templates of a syntax: beside the package's compiled modules, if possible.

    Jinja2 compiles a template again whose text has changed, or whose file is not whole or may not be read. To compile
    takes a third of a submission's time. The code in such a file is trusted as that of the ``.pyc`` files beside it.
    """
    import zlib

    import jinja2

    from hpcml.node_archive import SEAL, seal

    class Kept(jinja2.BytecodeCache):
        def load_bytecode(self, bucket: jinja2.bccache.Bucket) -> None:
            with contextlib.suppress(OSError):
                if (kept := _file(bucket).read_bytes()).endswith(seal(kept).encode()):
                    bucket.bytecode_from_string(kept[:-SEAL])

        def dump_bytecode(self, bucket: jinja2.bccache.Bucket) -> None:
            if not sys.dont_write_bytecode:
                with contextlib.suppress(OSError):
                    code = bucket.bytecode_to_string()
                    safe_files.write(_file(bucket), code + seal(code + bytes(SEAL)).encode(), 0o644)

    def _file(bucket: jinja2.bccache.Bucket) -> Path:
        return _PACKAGE / f"__pycache__/{bucket.key}.{zlib.crc32(repr(syntax).encode()):08x}.jinja"

    return Kept()


def package_root() -> Path:
    """Return the folder that holds the package ``hpcml``."""
    return _PACKAGE.parent
