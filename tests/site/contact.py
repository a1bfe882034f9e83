"""The paragraphs that say where to report a vulnerability: `make reference` writes them from a field of pyproject.toml."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BEGIN, END = "<!-- security-contact (make reference) -->", "<!-- end of security-contact -->"
PAGES = ("SECURITY.md", "docs/security.md")
NONE = """\
**No address for reports is published yet.** Do not describe a vulnerability in a public issue, a pull request or a
mailing list. Write to the person who gave you hpcml, or to your site's support."""
SOME = """\
Report a vulnerability to {contact} before you publish it. Do not describe the vulnerability in a public issue, a pull
request or a mailing list."""


def contact() -> str:
    """Return the address or page to report to, empty if there is none yet."""
    tables = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]
    return str(tables["hpcml"]["security-contact"]).strip()


def with_contact(text: str, where: str) -> str:
    """Return a page's text with the paragraph for this address; raise ValueError if the page has no place for it."""
    paragraph = SOME.replace("{contact}", f"<{where}>") if where else NONE
    new, count = re.subn(
        rf"{re.escape(BEGIN)}\n.*?{re.escape(END)}",
        lambda _: f"{BEGIN}\n\n{paragraph}\n\n{END}",
        text,
        flags=re.DOTALL,
    )
    if count != 1:
        raise ValueError(f"{count} places for the paragraph between {BEGIN} and {END}, not one")
    return new


def write() -> None:
    """Write the paragraph into the pages."""
    for name in PAGES:
        path = ROOT / name
        path.write_text(with_contact(path.read_text(encoding="utf-8"), contact()), encoding="utf-8")
