"""What support needs of a run in one file: its record and its logs, without secrets and the environment's values."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import os
import re
import shlex
import tarfile
from collections.abc import Iterator
from pathlib import Path

from hpcml import earlier_names, safe_files
from hpcml.errors import StorageError
from hpcml.failures import evidence
from hpcml.runs import directories
from hpcml.runs.record import Record
from hpcml.runs.secret_texts import HIDDEN, removed
from hpcml.runs.why import Answer

_RECORD = (
    "status.json",
    "events.jsonl",
    "plan.json",
    "request.json",
    "submission.json",
    "job.sh",
    "step.sh",
    "image.sh",
)
_OF_ATTEMPT = (*earlier_names.both("interconnect.json"), "script-error.json", "exit", "nodes", "versions", "probe")
_MOST = 2000  # files
_LONGEST = 1 << 20  # bytes of a file of the record; a log has its begin and its end
_LEAST = 4  # characters of a value that is looked for everywhere: shorter ones are in every text
_EXPORT = re.compile(r"(?m)^(\s*'?export [A-Za-z_]\w*=).*$")


def write(run: directories.Run, answer: Answer, target: Path) -> int:
    """Write the archive, which is not there yet; return the number of files in it.

    Raises
    ------
    StorageError
        If the run's files cannot be read, or the archive cannot be written.
    """
    with directories.storage(run.paths.directory):
        values = _values(run)
    with directories.storage(target):
        descriptor = safe_files.create(target)
        try:
            with open(descriptor, "wb") as file, tarfile.open(fileobj=file, mode="w:gz") as archive:
                return _pack(run, answer, archive, values)
        except BaseException:
            target.unlink(missing_ok=True)
            raise


def _pack(run: directories.Run, answer: Answer, archive: tarfile.TarFile, values: list[str]) -> int:
    answer_json = json.dumps(answer.as_json(), indent=1, default=str)
    count = 0
    for name, text in itertools.chain([("why.json", answer_json)], _texts(run)):
        data = _clean(name, text, values).encode(errors="replace")
        member = tarfile.TarInfo(f"{run.id}/{name}")
        member.size, member.mode = len(data), 0o600
        archive.addfile(member, io.BytesIO(data))
        count += 1
    return count


def _texts(run: directories.Run) -> Iterator[tuple[str, str]]:
    """Yield the name and the text of each file; links, pipes and other accounts' files are left out."""
    top = run.paths.directory
    wanted = [top / name for name in _RECORD]
    for folder in _listed(top / "attempts"):
        for name in _OF_ATTEMPT:
            wanted += _listed(folder / name) or [folder / name]
    logs = _listed(run.paths.logs)
    for path in wanted[:_MOST]:
        try:
            data = safe_files.read(path, _LONGEST)
        except OSError:
            continue  # what is not there, is a folder, or may not be read is no part of it
        yield str(path.relative_to(top)), data.decode(errors="replace")
    for path in logs[:_MOST]:
        if parts := evidence.pieces(path):
            yield str(path.relative_to(top)), "\n[…]\n".join(part.text for part in parts)


def _listed(folder: Path) -> list[Path]:
    if not safe_files.is_own_folder(folder):
        return []
    return [folder / name for name in sorted(os.listdir(folder))]


def _values(run: directories.Run) -> list[str]:
    """Return the values of the run's variables and its live secrets, the longest first."""
    values: set[str] = set()
    try:
        for word in shlex.split(safe_files.read(run.paths.variables).decode(errors="replace")):
            values.add(word.partition("=")[2])
    except FileNotFoundError:
        pass  # a run without variables of its own
    except ValueError as error:
        raise StorageError(
            f"The run's environment variables cannot be read: {error}",
            place=str(run.paths.variables),
            hint="Nothing was packed.",
        ) from error
    values |= {value for _, value in Record(run.paths).plan.environment}
    for attempt in _listed(run.paths.directory / "attempts"):
        for path in (attempt / "secret").glob("**/*"):  # those of tunnels are in folders
            with contextlib.suppress(FileNotFoundError):  # the run has just ended
                if not safe_files.is_own_folder(path):
                    values.add(safe_files.read(path, 65536).decode(errors="replace").strip())
    texts = {value for value in values if len(value) >= _LEAST}
    texts |= {json.dumps(value)[1:-1] for value in texts} | {
        line for value in texts for line in value.split("\n") if len(line) >= 16
    }
    return sorted(texts, key=len, reverse=True)


def _clean(name: str, text: str, values: list[str]) -> str:
    for value in values:
        text = text.replace(value, HIDDEN)
    if name.endswith(".sh"):
        text = _EXPORT.sub(rf"\1{HIDDEN}", text)
    return removed(text)
