"""Build an image of wheels with ``hpcml image build``, check it, and try what of it can be imported without a driver.

It takes tens of minutes, a Debian mirror and a package index, and an ordinary user with ids for ``--fakeroot``. An image
that is there already is looked at and not built: its record beside it says how it was built and how long that took.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

from hpcml import units
from hpcml.node.hardware import python_environment

DEADLINE = 7200  # seconds
MORE = ("bokeh", "dask_labextension", "dask_ml.cluster", "jupyter_server_proxy", "jupyterlab", "matplotlib", "pandas",
        "pyarrow", "sklearn", "skops.io")  # fmt: skip

# Run by the image's Python: each import in a process of its own, so that none is spoiled by one before it.
INSIDE = """
import importlib.metadata, json, os, subprocess, sys
failed = {}
for name in sys.argv[1:]:
    done = subprocess.run([sys.executable, "-c", f"import {name}"], capture_output=True, text=True)
    if done.returncode:
        failed[name] = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1][:300]
paths = (os.path.join(top, file) for top, _, files in os.walk("/opt") for file in files)
print(json.dumps({
    "failed": failed, "python": sys.version.split()[0],
    "bytes": sum(os.lstat(path).st_size for path in paths),
    "versions": {each.name: each.version for each in importlib.metadata.distributions()},
}))
"""


def look(hpcml: list[str], image: Path) -> dict[str, Any]:
    """Return the image's record, what ``image check`` finds, and what is inside."""
    record = json.loads(image.with_name(f"{image.name}.json").read_text())
    record["arguments"] = {key: Path(value).name for key, value in record["arguments"].items()}
    record["labels"] = {
        key: value for key, value in record["labels"].items() if not key.endswith("mirrorurl")
    }  # of the site
    checked = json.loads(_out([*hpcml, "image", "check", "--json", str(image)], statuses=(0, 88)))
    gpu = python_environment.GPU if record["labels"]["org.hpcml.kind"] == "rapids" else ()
    names = (*python_environment.CPU, *MORE, *gpu)
    inside = ["apptainer", "exec", "--cleanenv", str(image)]
    found = json.loads(_out([*inside, "python3", "-c", INSIDE, *names]).splitlines()[-1])
    imports = {name: found["failed"].get(name, "") for name in names}
    ucx = _out([*inside, "ucx_info", "-v", "-d"]).splitlines() if gpu else []
    return {
        "record": record,
        "check": {"good": checked["good"], "findings": checked["findings"]},
        "imports": imports,
        "bytes_unpacked": found["bytes"],
        "python": found["python"],
        "versions": dict(sorted(found["versions"].items())),
        "ucx": {
            "build": [line.lstrip("# ") for line in ucx if line.startswith(("# Library version", "# Configured"))],
            "transports": sorted({line.split()[-1] for line in ucx if "Transport:" in line}),
        },
    }


def table(images: dict[str, Any]) -> str:
    """Return the figures as Markdown."""
    lines = [
        "| image | built in (min:s) | size | unpacked | image check | imports without a driver | UCX |",
        "|---|---|---|---|---|---|---|",
    ]
    notes = []
    for name, one in images.items():
        record, failed = one["record"], {key: why for key, why in one["imports"].items() if why}
        bad = [row["subject"] for row in one["check"]["findings"] if row["state"] == "bad"]
        worked = f"{len(one['imports']) - len(failed)} of {len(one['imports'])}"
        ucx = (
            f"{one['ucx']['build'][0].split()[-1]}: {', '.join(one['ucx']['transports'])}"
            if one["ucx"]["build"]
            else ""
        )
        lines.append(
            f"| `{name}` | {units.format_seconds(record['seconds'])} | {units.format_bytes(record['size'])} | "
            f"{units.format_bytes(one['bytes_unpacked'])} | {', '.join(bad) or 'good'} | {worked} | {ucx} |"
        )
        notes += [f"* `{name}`: `import {key}`: {why}" for key, why in failed.items()]
        notes.append(f"* `{one['command']}`: {record['date'][:10]}, {record['program']}, {one['machine']['cores']} cores that others "
                     "used too")  # fmt: skip
    return "\n".join([*lines, "", *notes])


def _out(words: list[str], statuses: tuple[int, ...] = (0,)) -> str:
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=False, timeout=DEADLINE)
    if done.returncode not in statuses:
        sys.exit(f"image_wheels: {' '.join(words[:5])}… ended with status {done.returncode}; its words are above.")
    return done.stdout


def main() -> None:
    """Read the command line, build what is missing, and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("definition", help="cpu-wheels, rapids-cu12-wheels or rapids-cu13-wheels")
    parser.add_argument("image", type=Path, help="the image to look at; it is built first if it is not there")
    parser.add_argument("--build-arg", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--json", type=Path, required=True, metavar="FILE", help="where to put the figures")
    options = parser.parse_args()
    hpcml = [sys.executable, "-m", "hpcml"]
    words = [word for item in options.build_arg for word in ("--build-arg", item)]
    if not options.image.exists():
        _out([*hpcml, "image", "build", "--json", *words, options.definition, str(options.image)])
    given = [f"{key}={Path(value).name}" for key, value in (item.split("=", 1) for item in options.build_arg)]
    document = {
        "command": " ".join(["python3 bench/image_wheels.py", options.definition, options.image.name,
                             *(f"--build-arg {item}" for item in given)]),
        "machine": {"cores": os.cpu_count(), "kernel": platform.release(), "load": [round(one, 1) for one in os.getloadavg()]},
        **look(hpcml, options.image.absolute()),
    }  # fmt: skip
    images = json.loads(options.json.read_text()) if options.json.exists() else {}
    images[" ".join([options.definition, *given])] = document
    options.json.write_text(json.dumps(images, indent=1) + "\n")


if __name__ == "__main__":
    main()
