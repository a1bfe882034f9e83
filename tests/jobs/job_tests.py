"""What the fixtures of tests/jobs/conftest.py are, for annotations, and the mark of tests that need PyTorch."""

from __future__ import annotations

import importlib.util
import pathlib
from collections.abc import Callable
from typing import Any

import pytest

RunJob = Callable[
    ..., tuple[dict[str, Any], pathlib.Path]
]  # run_job(module, *arguments) -> result.json, results' folder
Refused = Callable[..., str]  # refused(module, *arguments) -> the sentence

needs_torch = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None,
    reason="PyTorch, of several GB with CUDA, is not in the tests' environment; to run these: .venv/bin/pip install torch",
)
