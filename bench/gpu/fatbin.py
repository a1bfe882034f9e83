"""The machine code in CUDA libraries: keep that of one GPU architecture and blank the rest, so that it packs small.

A library holds its kernels in the ELF section ``.nv_fatbin``: one fat binary after the other, each with an entry for
every architecture (machine code or PTX). A fat binary that has machine code for the wanted architecture loses all
other entries; one that has none is left as it is. Sizes and places do not change, so the library loads as before.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

MAGIC = 0xBA55ED50
MACHINE_CODE = 2  # an entry's kind; 1 is PTX
ALIGNMENT = 8
SECTION = b".nv_fatbin"

_ELF = struct.Struct("<4sBB10xHHIQQQIHHHHHH")  # ELF-64, little-endian
_SECTION = struct.Struct("<IIQQQQIIQQ")
_FAT = struct.Struct("<IHHQ")  # magic, version, size of this header, size of what follows
_ENTRY = struct.Struct("<HHIQ")  # kind, version, size of this header, size of the payload
_ARCHITECTURE_AT = 28


class FatbinError(Exception):
    """The section is not laid out as expected: nothing in it is to be blanked."""


class Entry(NamedTuple):
    """One piece of GPU code: kind (machine code or PTX), architecture (90 is sm_90), and where its payload lies."""

    kind: int
    architecture: int
    start: int
    size: int


def fatbin_section(data: bytes | mmap.mmap) -> tuple[int, int] | None:
    """Return offset and size of the section that holds GPU code; None if there is none or this is no ELF-64 file."""
    if len(data) < _ELF.size or data[:6] != b"\x7fELF\x02\x01":
        return None
    header = _ELF.unpack_from(data)
    table, size, count, names = header[8], header[13], header[14], header[15]
    if not table or table + size * count > len(data):
        return None
    sections = [_SECTION.unpack_from(data, table + size * number) for number in range(count)]
    names_at = sections[names][4]
    for section in sections:
        name_at = names_at + section[0]
        if data[name_at : name_at + len(SECTION) + 1] == SECTION + b"\0":
            return section[4], section[5]
    return None


def fat_binaries(data: bytes | mmap.mmap, position: int, size: int) -> Iterator[list[Entry]]:
    """Yield the entries of each fat binary in a section.

    Raises
    ------
    FatbinError
        If an entry reaches beyond its fat binary, or that beyond the section.
    """
    end = position + size
    while position + _FAT.size <= end:
        magic, _, header, length = _FAT.unpack_from(data, position)
        if magic != MAGIC:
            position += ALIGNMENT  # padding
            continue
        at, stop = position + header, position + header + length
        if stop > end:
            raise FatbinError(f"the fat binary at {position} is longer than its section")
        entries = []
        while at < stop:
            kind, _, entry_header, payload = _ENTRY.unpack_from(data, at)
            if entry_header < _ARCHITECTURE_AT + 4 or at + entry_header + payload > stop:
                raise FatbinError(f"the entry at {at} does not fit its fat binary")
            (architecture,) = struct.unpack_from("<I", data, at + _ARCHITECTURE_AT)
            entries.append(Entry(kind, architecture, at + entry_header, payload))
            at += entry_header + payload
        yield entries
        position = -(-stop // ALIGNMENT) * ALIGNMENT


def superfluous(entries: list[Entry], architecture: int) -> list[Entry]:
    """Return what a fat binary can do without on one architecture; nothing if it has no machine code for it."""
    wanted = (MACHINE_CODE, architecture)
    if wanted not in {(entry.kind, entry.architecture) for entry in entries}:
        return []
    return [entry for entry in entries if (entry.kind, entry.architecture) != wanted]


def keep_one_architecture(library: Path, architecture: int) -> int:
    """Blank the code of every other architecture in a file, in place; return the bytes blanked.

    Raises
    ------
    FatbinError
        If the section cannot be read to its end; the file is then unchanged.
    """
    with library.open("r+b") as file, mmap.mmap(file.fileno(), 0) as data:
        section = fatbin_section(data)
        if section is None:
            return 0
        found = [entry for entries in fat_binaries(data, *section) for entry in superfluous(entries, architecture)]
        for entry in found:
            data[entry.start : entry.start + entry.size] = bytes(entry.size)
        data.flush()
    return sum(entry.size for entry in found)
