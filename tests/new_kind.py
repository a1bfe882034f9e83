"""A copy of hpcml with one more kind of run: the one that docs/kinds.md shows."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TABLE = "hpcml/kinds/__init__.py"
_BLOCK = re.compile(r"```python\n# (\S+)\n(.*?)```", re.DOTALL)


def install(folder: Path) -> list[str]:
    """Copy hpcml into a folder and add the kind; return the files outside the kind's folder that this changed."""
    shutil.copytree(ROOT / "hpcml", folder / "hpcml", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("templates", "containers", "jobs", "docs"):
        (folder / name).symlink_to(ROOT / name)
    changed = {TABLE}
    page = (ROOT / "docs/kinds.md").read_text(encoding="utf-8")
    for name, text in _BLOCK.findall(page):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        changed |= {name} if not name.startswith("hpcml/kinds/echo/") else set()
    for package in ("login", "node"):
        (folder / "hpcml/kinds/echo" / package / "__init__.py").touch()
    table = (folder / TABLE).read_text()
    new = table.replace("import batch, dask, hold, ranks", "import batch, dask, echo, hold, ranks").replace(
        "hold.KIND)", "hold.KIND, echo.KIND)"
    )
    assert sum(old != line for old, line in zip(table.splitlines(), new.splitlines(), strict=True)) == 2
    (folder / TABLE).write_text(new)
    return sorted(changed)
