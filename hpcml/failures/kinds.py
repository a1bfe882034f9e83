"""Of which kind a failure is, by what may help: more memory, more time, another node, or a change of the script."""

from __future__ import annotations

from hpcml.failures.judgement import Cause
from hpcml.failures.rules import BY_NAME, Retry

KINDS = ("oom", "timeout", "node", "error", "unknown")
_OF_RETRY = {Retry.MEMORY: "oom", Retry.TIME: "timeout", Retry.EXCLUDE: "node"}
_GPU_MEMORY = ("rmm-pool", "gpu-memory")  # more of the node's memory is no remedy


def of_rule(rule: str, *, known: bool = True) -> str:
    """Return the kind of a failure whose cause a rule tells (empty: none does); unknown where nothing shows it."""
    retry = BY_NAME[rule].retry if rule in BY_NAME else Retry.NONE
    if rule in _GPU_MEMORY:
        return "oom"
    return _OF_RETRY.get(retry, "error") if known else "unknown"


def of_cause(cause: Cause | None) -> str:
    """Return the kind of a cause."""
    return of_rule(cause.rule, known=cause.known) if cause else "unknown"
