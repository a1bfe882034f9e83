"""What the fixtures of tests/jobs/conftest.py are, for annotations, and the mark of tests that need PyTorch."""

from __future__ import annotations

import importlib.util
import pathlib
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

RunJob = Callable[
    ..., tuple[dict[str, Any], pathlib.Path]
]  # run_job(module, *arguments) -> result.json, results' folder
Refused = Callable[..., str]  # refused(module, *arguments) -> the sentence


class InARun(NamedTuple):
    """A run whose attempts are the jobs of a test: ``end()`` in a job is its end by the time limit, which ``stops`` runs."""

    end: Callable[[], None]
    stops: Callable[..., None]  # stops(module, *arguments)


needs_torch = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None,
    reason="PyTorch, of several GB with CUDA, is not in the tests' environment; to run these: .venv/bin/pip install torch",
)
