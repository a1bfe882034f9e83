"""MkDocs' hook: pages and what they link to have the paths of the repository, and headings the anchors of a code host."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[2]
HOME = Path(__file__).with_name("home.md")
LINK = re.compile(r"\]\(([^)#\s:]+)(?:#[^)\s]*)?\)")
FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


def anchor(heading: str, separator: str) -> str:
    """Return what GitHub makes of a heading: its words in lower case, a dash for each space."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", separator)


def pages_of(nav: object) -> list[str]:
    """Return the pages of a `nav`, in its order."""
    if isinstance(nav, str):
        return [nav]
    parts = nav.values() if isinstance(nav, dict) else nav if isinstance(nav, list) else []
    return [page for part in parts for page in pages_of(part)]


def on_config(config: Any) -> Any:
    """Set the anchors.

    Raises
    ------
    ValueError
        If the search has words for a page that is not in the navigation.
    """
    if unknown := sorted(set(config.extra["words"]) - set(pages_of(config.nav))):
        raise ValueError(f"mkdocs.yml has words for pages that are not in nav: {', '.join(unknown)}")
    config.mdx_configs.setdefault("toc", {})["slugify"] = anchor
    return config


def on_files(files: Files, config: Any) -> Files:
    """Take the pages of the repository and the files that they link to, in the place of what lies in `docs_dir` alone."""
    pages = {*pages_of(config.nav), *(f"docs/{file.src_uri}" for file in files.documentation_pages())}
    linked: set[str] = set()
    for page in pages:
        source = ROOT / page
        if source.is_file():
            targets = LINK.findall(FENCED.sub("", source.read_text(encoding="utf-8")))
            found = {(source.parent / target).resolve() for target in targets}
            linked |= {path.relative_to(ROOT).as_posix() for path in found if path.is_file() and ROOT in path.parents}
    theirs = [file for file in files if not Path(file.abs_src_path or "/").is_relative_to(ROOT / "docs")]
    ours = [File(name, str(ROOT), config.site_dir, config.use_directory_urls) for name in sorted(pages | linked)]
    return Files([*theirs, *ours])


def on_page_markdown(markdown: str, page: Any, config: Any, **_: object) -> str:
    """Give the page its weight and words for the search; leave out what only the tests read; README is the home page."""
    tab = page.ancestors[-1].title if page.ancestors else "Home" if page.is_homepage else "Maintainers"
    weights = config.extra["weights"]
    page.meta["search"] = {"boost": weights.get(page.file.src_uri, weights.get(tab, 1))}
    page.meta["tags"] = config.extra["words"].get(page.file.src_uri, [])
    if page.file.src_uri == "README.md":
        page.meta["hide"] = ["navigation", "toc"]
        return HOME.read_text(encoding="utf-8").replace("](../../", "](")
    return re.sub(
        r"^```(\w+) \w+$", r"```\1", re.sub(r"^<!--.*?-->\n", "", markdown, flags=re.MULTILINE), flags=re.MULTILINE
    )
