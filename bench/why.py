"""Stage failures on the lab, ask `hpcml why` for the cause of each, and keep the answers: docs/benchmarks/why.json.

The tests of tests/lab that stage failures say what the true cause is; each records what `hpcml why` answered. Run it as
root, with the lab's environment made from this checkout (make lab).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TESTS = ("tests/lab/test_why_staged.py", "tests/lab/test_with_accounting.py")


def main() -> int:
    """Run the tests and write the table; return pytest's exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, default=ROOT / "docs/benchmarks/why.json", help="where the table goes")
    parser.add_argument("--answers", type=Path, help="what tests have recorded that ran with HPCML_WHY_TABLE=FILE")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        answers, status = options.answers or Path(folder) / "answers.jsonl", 0
        if not options.answers:
            command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *TESTS]
            status = subprocess.run(
                command, cwd=ROOT, env={**os.environ, "HPCML_WHY_TABLE": str(answers)}, check=False
            ).returncode
        rows = [json.loads(line) for line in answers.read_text().splitlines()]
    counts = Counter(row["verdict"] for row in rows)
    facts = {
        "command": "sudo .venv/bin/python bench/why.py",
        **{verdict: counts[verdict] for verdict in ("right", "wrong", "unknown")},
        "failures": rows,
    }
    options.json.write_text(json.dumps(facts, indent=1) + "\n")
    print(f"{len(rows)} failures: {counts['right']} right, {counts['wrong']} wrong, {counts['unknown']} unknown")
    return status


if __name__ == "__main__":
    sys.exit(main())
