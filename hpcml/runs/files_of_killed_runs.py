"""Settle the files of an ended run's script on this machine, where the run was killed and could not do it itself.

A run's record may have come with somebody else's code, and would then choose the folder that files are brought to. So a
record counts here only with a proof that this account's hpcml made it, for this directory.
"""

from __future__ import annotations

import contextlib
import hmac
import os
from pathlib import Path

from hpcml import outputs_brought_back, safe_files
from hpcml.paths import RunPaths
from hpcml.sites.settings_layers import process_environment

_LENGTH = 32  # bytes of the key


def begin(run: RunPaths, directory: Path, home: Path, why: str = "") -> None:
    """Record the copy of a folder before the script runs.

    Parameters
    ----------
    run, directory
        The run's files, and where its directory will be when it is whole.
    why
        Why nothing can be brought to the folder, in a clause; empty: it can.
    """
    outputs_brought_back.begin(run, home, why, _proof(directory, str(home), make=True))


def settle(run: RunPaths, attempt: int) -> outputs_brought_back.Written | None:
    """Bring a run's files; return the record of them, None if the run has no record of its copy.

    Raises
    ------
    OSError
        If the record cannot be written.
    """
    home, proof = outputs_brought_back.claimed(run)
    own = _proof(run.directory, home, make=False)
    return outputs_brought_back.bring(run, attempt, trusted=bool(own) and hmac.compare_digest(own, proof))


def _proof(directory: Path, home: str, *, make: bool) -> str:
    """Return the signature that this account makes of a directory and its original folder; empty without a key."""
    key = _key(make=make)
    text = f"{directory.parent.resolve() / directory.name}\0{home}".encode(errors="surrogateescape")
    return hmac.digest(key, text, "sha256").hex() if key else ""


def _key(*, make: bool) -> bytes:
    """Return the account's key for records, which may be made; empty if there is none."""
    if not (home := process_environment().get("HOME", "")):
        return b""
    path = Path(home) / ".hpcml" / "record.key"
    with contextlib.suppress(OSError):
        if make and not path.exists():
            path.parent.mkdir(mode=0o700, exist_ok=True)
            _make(path)
        key = safe_files.read(path, _LENGTH)
        return key if len(key) == _LENGTH and safe_files.is_own_folder(path.parent) else b""
    return b""


def _make(path: Path) -> None:
    """Put a new key in place, unless another submission was first: by its key the record of that run is known."""
    new = safe_files.beside(path)
    safe_files.write(new, os.urandom(_LENGTH))
    try:
        os.link(new, path, follow_symlinks=False)
    except FileExistsError:
        pass
    except OSError:  # a file system without links
        safe_files.write(path, new.read_bytes())
    finally:
        new.unlink()
