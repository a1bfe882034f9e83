"""The definitions of images: those that ship with hpcml, and the user's own."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from hpcml import assets, safe_files
from hpcml.errors import NotFoundError, did_you_mean, nearest
from hpcml.images.sif import PREFIX
from hpcml.sites import settings_layers

_USED = re.compile(r"\{\{\s*(\w+)\s*\}\}")


class Definition(NamedTuple):
    """A definition file; ``name`` is what an image of it is called when the user does not say."""

    name: str
    path: Path
    text: str

    @property
    def used(self) -> set[str]:
        """The build arguments in it (a comment's are not replaced)."""
        lines = (line for line in self.text.splitlines() if not line.lstrip().startswith("#"))
        return {name for line in lines for name in _USED.findall(line)}

    @property
    def defaults(self) -> dict[str, str]:
        """The build arguments that it gives a value itself, in ``%arguments``."""
        section = re.search(r"^%arguments\b[^\n]*\n(.*?)(?=^%|\Z)", self.text, re.MULTILINE | re.DOTALL)
        lines = [line.strip() for line in (section[1] if section else "").splitlines()]
        pairs = (line.partition("=") for line in lines if "=" in line and not line.startswith("#"))
        return {key.strip(): value.strip() for key, _, value in pairs}

    def header(self, key: str) -> str:
        """Return a line of its head, as ``Bootstrap`` or ``OSVersion``; nothing if there is none."""
        line = re.search(rf"^{key}[ \t]*:[ \t]*(.*?)[ \t]*$", self.text, re.MULTILINE | re.IGNORECASE)
        return line[1] if line else ""

    def label(self, key: str) -> str:
        """Return the value of one of hpcml's labels as it is; nothing if there is none."""
        line = re.search(rf"^[ \t]*{re.escape(PREFIX + key)}[ \t]+(\S+)", self.text, re.MULTILINE)
        return line[1] if line else ""


def shipped_definitions() -> dict[str, Path]:
    """Return the definitions that ship with hpcml, by name."""
    paths = assets.folder("containers").glob("*.def")
    return {path.stem: path for path in sorted(paths, key=lambda path: path.stem)}


def find_definition(word: str, folder: Path) -> Definition:
    """Return a definition by its file or by the name of one of hpcml's; NotFoundError if it cannot be read."""
    names = shipped_definitions()
    path = names[word] if word in names else folder / settings_layers.user_path(word)
    try:
        return Definition(path.stem, path, safe_files.read(path, safe_files.SETTINGS, ours=False, follow=True).decode())
    except OSError as error:
        hint = did_you_mean(nearest(word, names), f"Choose a .def file, or one of: {', '.join(names)}.")
        raise NotFoundError(f"The definition cannot be read: {error.strerror}", place=str(path), hint=hint) from error
    except UnicodeDecodeError as error:
        raise NotFoundError("The definition is not a text file", place=str(path), hint="Name a .def file.") from error
