"""Texts that name the project's addresses: `make reference` writes them from two fields of pyproject.toml."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
REPORTS, PUBLIC = "security-contact", "public-address"
FIELDS = (REPORTS, PUBLIC)


class Place(NamedTuple):
    """A place in a file, between two comments that name the field; ``{}`` in a text is the address."""

    file: str
    field: str
    without: str
    given: str


_NO_REPORTS = """\
**No address for reports is published yet.** Do not describe a vulnerability in a public issue, a pull request or a
mailing list. Write to the person who gave you hpcml, or to your site's support."""
_REPORTS = """\
Report a vulnerability to <{}> before you publish it. Do not describe the vulnerability in a public issue, a pull
request or a mailing list."""
_NO_REPOSITORY = """\
hpcml is not yet in a public repository. Request a clone or a wheel from the person who showed you hpcml."""
_REPOSITORY = """\
Without a clone, write `hpcml[array] @ git+{}` in place of `./hpcml[array]`. Report faults, and ask questions, at
<{}>."""
PLACES = (
    Place("SECURITY.md", REPORTS, _NO_REPORTS, _REPORTS),
    Place("docs/security.md", REPORTS, _NO_REPORTS, _REPORTS),
    Place("README.md", PUBLIC, _NO_REPOSITORY, _REPOSITORY),
    Place("docs/first-run.md", PUBLIC, _NO_REPOSITORY, _REPOSITORY),
    Place("tests/site/home.md", PUBLIC, _NO_REPOSITORY, _REPOSITORY),
    Place(
        "SECURITY.md",
        PUBLIC,
        "hpcml is not yet in a public repository. Request the digests from the person who gave you the files.",
        "hpcml's repository is <{}>. Do not trust a copy from another place.",
    ),
    Place("pyproject.toml", PUBLIC, "", '[project.urls]\nRepository = "{}"'),
    Place("CITATION.cff", PUBLIC, "", 'repository-code: "{}"'),
)


def address(field: str) -> str:
    """Return what pyproject.toml has in a field, empty if there is no address yet."""
    tables = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]
    return str(tables["hpcml"][field]).strip()


def with_address(text: str, place: Place, where: str) -> str:
    """Return a file's text with this address; raise ValueError if the file has no place for it, or pip cannot use it."""
    if place.field == PUBLIC and where and not re.fullmatch(r"https://[^\s/]+/\S*[^\s/]", where):
        raise ValueError(f"{PUBLIC} is not an address of a repository that begins with https://: {where}")
    first, last = ("<!-- ", " -->") if place.file.endswith(".md") else ("# ", "")
    begin, end = f"{first}{place.field} (make reference){last}", f"{first}end of {place.field}{last}"
    words = (place.given if where else place.without).replace("{}", where)
    between = f"\n{words}\n" if words and first != "# " else words
    new, count = re.subn(
        rf"^{re.escape(begin)}\n.*?^{re.escape(end)}$",
        lambda _: "\n".join(part for part in (begin, between, end) if part),
        text,
        flags=re.DOTALL | re.MULTILINE,
    )
    if count != 1:
        raise ValueError(f"{count} places for the text between {begin} and {end} in {place.file}, not one")
    return new


def write() -> None:
    """Write the texts into the files."""
    for place in PLACES:
        path = ROOT / place.file
        path.write_text(with_address(path.read_text(encoding="utf-8"), place, address(place.field)), encoding="utf-8")
