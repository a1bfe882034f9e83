"""What `hpcml why` answered to the failures that tests staged: for the table of docs/benchmarks/why.json."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


def record(name: str, found: dict[str, Any], says: str) -> None:
    """Keep the cause that a staged failure got beside the words that the true one has; ``HPCML_WHY_TABLE`` says where."""
    if not (path := os.environ.get("HPCML_WHY_TABLE")):
        return
    right = says in found["cause"] or says in found["short"]
    verdict = "unknown" if not found["known"] else "right" if right else "wrong"
    row = {
        "failure": name, "true": says, "cause": found["cause"], "short": found["short"], "nodes": found["nodes"],
        "verdict": verdict,
    }  # fmt: skip
    with Path(path).open("a") as file:
        file.write(json.dumps(row) + "\n")
