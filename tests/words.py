"""Find the words that are out (docs/words.md) in what users and maintainers read.

``python -m tests.words`` takes the files out of words_allowed.json that no longer use a word; it never adds one.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/words.md"
ALLOWED = ROOT / "tests/words_allowed.json"
NOT_PROSE = re.compile(r"\]\([^)]*\)|`+[^`\s]+`+")  # link targets, and code without a space: keys, names of files


def words_out() -> dict[str, str]:
    """Return the words of the page's first table, each with the words to use."""
    table = PAGE.read_text(encoding="utf-8").partition("## Words that are out")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \|$", table, re.MULTILINE)[1:]
    return {word: better for words, better in rows for word in words.split(", ")}


def texts() -> Iterator[tuple[str, str]]:
    """Yield each text to look at, with its file."""
    for path in sorted((ROOT / "hpcml").rglob("*.py")):
        nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
        strings = [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]
        loops = [node.target for node in nodes if isinstance(node, (ast.For, ast.comprehension))]
        strings += [f"for {target.id} in" for target in loops if isinstance(target, ast.Name)]
        # A string without a space is a key or a name.
        yield str(path.relative_to(ROOT)), "\n".join(string for string in strings if " " in string.strip())
    for page in (
        *(ROOT / f"{name}.md" for name in ("README", "CHANGELOG", "SECURITY")),
        *sorted((ROOT / "docs").rglob("*.md")),
    ):
        if page != PAGE:
            yield str(page.relative_to(ROOT)), page.read_text(encoding="utf-8")


def find_words() -> dict[str, list[str]]:
    """Return the files in which each word is, by word."""
    files: dict[str, list[str]] = {word: [] for word in words_out()}
    pattern_by_word = {word: re.compile(rf"\b{re.escape(word)}\b", re.IGNORECASE) for word in files}
    for path, text in texts():
        prose = " ".join(NOT_PROSE.sub("", text).split())
        for word, pattern in pattern_by_word.items():
            if pattern.search(prose):
                files[word].append(path)
    return files


def main() -> None:
    """Take out of the list of allowed files those that no longer use the word."""
    files = find_words()
    allowed = json.loads(ALLOWED.read_text(encoding="utf-8"))
    kept = {word: sorted(set(paths) & set(files.get(word, ()))) for word, paths in sorted(allowed.items())}
    text = json.dumps({word: paths for word, paths in kept.items() if paths}, indent=1)
    ALLOWED.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
