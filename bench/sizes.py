#!/usr/bin/env python3
"""Measure what pip installs for hpcml's extras: packages, size on disk, size of the wheels; and the size of hpcml.pyz.

Each extra gets a new environment and a new download of its wheels, so it needs a package index and 2 GB of disk.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
FIGURES = ROOT / "docs" / "benchmarks" / "sizes.json"
ADDS = {
    "": "Jinja2: enough to submit and show runs",
    "node": "Dask and cryptography, which a Dask cluster needs on the nodes",
    "array": "`node` and NumPy, for this page",
    "local": "the libraries of [the examples](../jobs/README.md) on CPUs",
}
OTHERS = ("polars",)  # extras of which docs/install.md shows the wheels
DEADLINE = 1800  # seconds, for each command


def measure(extra: str) -> dict[str, Any]:
    """Return the packages of an extra, and the bytes of their wheels and of the environment that pip makes of them."""
    with tempfile.TemporaryDirectory() as folder:
        python, wheels = Path(folder, "env", "bin", "python"), Path(folder, "wheels")
        what = f"{ROOT}[{extra}]" if extra else str(ROOT)
        _out([sys.executable, "-m", "venv", str(python.parents[1])])
        _out([str(python), "-m", "pip", "wheel", "-q", "--wheel-dir", str(wheels), what])
        install = [str(python), "-m", "pip", "install", "-q", "--no-index", "--find-links", str(wheels)]
        files = sorted(wheels.iterdir())
        _out([*install, "--no-deps", *map(str, files)])
        listed = json.loads(_out([str(python), "-m", "pip", "list", "--format=json"]))
        versions = {each["name"]: each["version"] for each in listed if each["name"] not in ("pip", "setuptools")}
        assert len(versions) == len(files), (versions, files)
        return {
            "packages": len(versions),
            "wheels_bytes": sum(path.stat().st_size for path in files),
            "bytes": _on_disk(python.parents[1]),
            "versions": versions,
        }


def one_file() -> dict[str, int]:
    """Return the bytes of hpcml.pyz, and of what it unpacks on its first use."""
    with tempfile.TemporaryDirectory() as folder:
        file, cache = Path(folder, "hpcml.pyz"), Path(folder, "cache")
        _out([sys.executable, "-m", "hpcml", "pack", "-o", str(file)])
        _out([sys.executable, str(file), "--version"], {**os.environ, "XDG_CACHE_HOME": str(cache)})
        return {"bytes": file.stat().st_size, "unpacked": _on_disk(cache / "hpcml")}


def _on_disk(path: Path) -> int:
    return int(_out(["du", "-s", "--block-size=1", str(path)]).split()[0])


def _out(command: list[str], variables: dict[str, str] | None = None) -> str:
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=DEADLINE, env=variables)
    return done.stdout


def table(document: dict[str, Any]) -> str:
    """Return the table of extras in Markdown, with the extras for GPUs, which nobody measured."""
    lines = ["| in brackets | adds | packages | size with pip |", "|---|---|---|---|"]
    for extra, adds in ADDS.items():
        found = document["extras"][extra]
        name = f"`{extra}`" if extra else "nothing"
        lines.append(f"| {name} | {adds} | {found['packages']} | {_mb(found['bytes'])} |")
    gpu = "Dask and RAPIDS for GPUs: install it in a second environment, such as `~/hpcml-gpu`. "
    gpu += "Its UCX has [no InfiniBand](images.md#infiniband)"
    lines.append(f"| `cuda12`, `cuda13` | {gpu} | not measured | not measured |")
    facts = f"We measured the sizes on {document['date'][:10]} with {document['python']} and {document['pip']}"
    return "\n".join([*lines, "", f"{facts}. The sizes include pip: `{document['command']}`"])


def array(document: dict[str, Any]) -> str:
    """Return the sentences on the first page's extras."""
    first, examples = document["extras"]["array"], document["extras"]["local"]
    return (
        f"`[array]` adds the packages that `first.py` needs ({first['packages']} packages with hpcml, "
        f"{_mb(first['bytes'])} with pip).\n`[local]` adds the packages that [the examples](jobs/README.md) need "
        f"({_mb(examples['bytes'])})."
    )


def wheels(document: dict[str, Any]) -> str:
    """Return the sentences on what travels to machines without internet."""
    node, polars = (document["extras"][extra] for extra in ("node", "polars"))
    one = document["one_file"]
    return (
        f"`hpcml.pyz` takes {_mb(one['bytes'])}. Its unpacked copy takes {_mb(one['unpacked'])}. The wheels of `node` and "
        f"hpcml take {_mb(node['wheels_bytes'])}.\n"
        f"The wheels of `polars` take {_mb(polars['wheels_bytes'])}. They include the wheels of `node`."
    )


def _mb(size: int) -> str:
    return f"{size / 1e6:.{int(size < 1e7)}f} MB" if size < 1e9 else f"{size / 1e9:.1f} GB"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="also write all figures to this file")
    options = parser.parse_args()
    document = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": f"python3 {shlex.join(['bench/sizes.py', *sys.argv[1:]])}",
        "python": f"Python {platform.python_version()}",
        "machine": platform.machine(),
        "pip": " ".join(_out([sys.executable, "-m", "pip", "--version"]).split()[:2]),
        "extras": {extra: measure(extra) for extra in (*ADDS, *OTHERS)},
        "one_file": one_file(),
    }
    print(table(document))
    if options.json:
        options.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
