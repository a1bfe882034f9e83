"""The pages of the documentation, for ``hpcml help TOPIC``: the documentation itself is not installed."""

from __future__ import annotations

PAGES = (
    "architecture",
    "choosing",
    "commands",
    "comparison",
    "doctor",
    "elastic",
    "exit-status",
    "fabric",
    "first-run",
    "hardware-limits",
    "how-it-works",
    "images",
    "install",
    "jupyter",
    "lab",
    "laptop",
    "leonardo",
    "long-runs",
    "map",
    "porting",
    "reference-commands",
    "reference-profile",
    "report",
    "run-directory",
    "schedulers",
    "security",
    "security-for-administrators",
    "sites",
    "snakemake",
    "status",
    "surroundings",
    "sweeps",
    "templates",
    "troubleshooting",
    "tunnels",
    "tutorial",
    "writing-a-profile",
)
FOLDERS = ("benchmarks", "teaching", "upstream")  # of which a README.md is the page


def page(topic: str) -> str:
    """Return the file of a topic's page, from the top of the repository; empty if there is none."""
    name = topic.lower()
    return f"docs/{name}.md" if name in PAGES else f"docs/{name}/README.md" if name in FOLDERS else ""
