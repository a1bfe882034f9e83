"""What the fixtures of tests/jobs/conftest.py are, for annotations."""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from typing import Any

RunJob = Callable[
    ..., tuple[dict[str, Any], pathlib.Path]
]  # run_job(module, *arguments) -> result.json, results' folder
Refused = Callable[..., str]  # refused(module, *arguments) -> the sentence
