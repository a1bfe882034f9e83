"""What code decides by of a run's end: its fields, whatever its sentences say, and what an older version wrote."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from failure_texts import TEXTS
from hpcml import assets, errors
from hpcml.failures import judgement
from hpcml.failures.cause import Case, Cause
from hpcml.failures.end import LESS_MEMORY, SLURM, End, MemoryLimit, OtherEnd, Reason, parse
from hpcml.failures.evidence import Piece, hits_in
from hpcml.failures.rule import Retry, Role, Where
from hpcml.failures.rules import BY_NAME, RULES
from hpcml.kind import Kind
from hpcml.kinds import KINDS
from hpcml.typed_json import DamagedError

EXCLUDING = [
    rule for rule in RULES if (rule.retry, rule.role) == (Retry.EXCLUDE, Role.ROOT) and Where.LOG in rule.where
]
NAMED = {"node-failure", "credential"}  # whose lines name a node themselves


def judged(end: End, kind: Kind | None = None, log: str = "", source: str = "worker") -> Cause:
    found = judgement.judge(Case(end, kind), hits_in(Piece(log, 1), source))
    assert found
    return found


@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: kind.name)
def test_each_rule_that_excludes_a_node_names_the_lost_node_of_every_kind(
    kind: Kind, subtests: pytest.Subtests
) -> None:
    assert len(EXCLUDING) >= 14
    for rule in EXCLUDING:
        for text in TEXTS[rule.name]:
            with subtests.test(rule.name, text=text):
                end = End(errors.ROLE_LOST, "script", "hpcml", "any sentence", quote=(text,), node="n3")
                cause = judged(parse(end.as_json()), kind)
                assert (cause.rule, cause.retry) == (rule.name, Retry.EXCLUDE)
                assert cause.nodes == ("n3",) or (rule.name in NAMED and cause.nodes)


@pytest.mark.parametrize(
    "message", ["workers were lost: n1: it was killed", "rank 3 on n2 was killed: out of memory", "limit was reached"]
)
def test_memory_is_the_cause_by_its_field_alone(message: str) -> None:
    end = End(errors.ROLE_LOST, "script", "hpcml", message)
    assert judged(end).rule == ""
    assert judged(end._replace(message=f"{message} (out of memory)")).rule == ""
    assert judged(end._replace(memory_limit=MemoryLimit.NODE)).rule == "oom-kill"
    assert judged(end._replace(memory_limit=MemoryLimit.PROCESS, lost_nodes=("n1",))).rule == "worker-memory"
    assert judged(end._replace(memory_limit="of a newer version")).rule == ""


def test_the_local_site_has_no_memory_to_request() -> None:
    end = End(errors.ROLE_LOST, "script", "hpcml", "any sentence", memory_limit=MemoryLimit.NODE)
    for local in (False, True):
        cause = judgement.judge(Case(end, one_machine=local), [])
        assert cause
        assert ("Request" in cause.remedy, cause.remedy == LESS_MEMORY) == (not local, local)


def test_the_phase_of_an_end_that_an_earlier_version_wrote() -> None:
    table = End(errors.INTERCONNECT, by="hpcml", message="no RDMA").as_json()
    assert [parse(table | {"phase": phase}).phase for phase in ("driver", "fabric")] == ["script", "interconnect"]


def test_the_role_that_memory_ended_is_the_one_that_the_end_names() -> None:
    log = "slurmstepd-n1: error: Detected 1 oom_kill event in StepId=7.1. Some of the step tasks have been OOM Killed."
    end = End(errors.ROLE_LOST, "script", "hpcml", "any sentence", memory_limit=MemoryLimit.NODE)
    both = [*hits_in(Piece(log, 1), "scheduler"), *hits_in(Piece(log, 1), "worker")]
    for role in ("scheduler", "worker"):
        cause = judgement.judge(Case(end._replace(role=role)), both)
        assert cause
        assert cause.what == f"the {role} was killed because the node's memory limit was reached"


@pytest.mark.parametrize(
    ("reason", "by", "status"),
    [
        (Reason.BATCH_KILLED, "hpcml", errors.ALLOCATION_LOST), (Reason.NEVER_SATISFIED, SLURM, errors.CANCELLED),
        (Reason.NO_ADDRESS, "hpcml", errors.START_FAILED), (Reason.NO_CONTAINER_PROGRAM, "hpcml", errors.IMAGE),
    ],
)  # fmt: skip
def test_a_reason_names_its_rule(reason: str, by: str, status: int) -> None:
    cause = judged(End(status, "script", by, "any sentence", "any step", reason=reason))
    assert (cause.what, cause.rule, cause.known, cause.remedy) == ("any sentence", reason, True, "any step")
    assert judged(End(status, "script", by, "any sentence", reason="of a newer version")).rule == ""


def test_each_reason_has_its_row_and_image_sh_gives_no_other() -> None:
    assert {str(reason) for reason in Reason} - {Reason.EXIT} <= {*BY_NAME}
    written = re.findall(r"\brefuse ([a-z-]+)", (assets.folder("templates") / "image.sh").read_text())
    assert len(written) == 3
    assert {*written} < {*Reason}


def test_the_end_that_an_older_version_wrote_has_the_first_lost_node() -> None:
    end = End(errors.ROLE_LOST, "script", "hpcml", "workers were lost: n3: …; n4: …", node="n3")
    new = ("memory_limit", "lost_nodes", "role", "reason")
    old = {name: value for name, value in end.as_json().items() if name not in new}
    assert parse(old) == end._replace(ended_as="FAILED", lost_nodes=("n3",))
    by_script = {**old, "by": "script", "rank": 1}
    assert (parse(by_script).lost_nodes, parse(by_script).reason) == ((), "")
    by_itself = {**old, "by": "script", "exit_status": 3}
    assert parse(by_itself).reason == Reason.EXIT
    assert parse({**by_itself, "exit_status": 137}).reason == ""
    for name in new:
        with pytest.raises(DamagedError, match="is not a"):
            parse({**old, name: 1})


def test_a_status_shows_the_fields_of_its_end(tmp_path: Path) -> None:
    from hpcml.runs.status import Status, _with_end

    end = End(81, "script", "hpcml", "m", memory_limit=MemoryLimit.NODE, lost_nodes=("n3", "n4"), role="worker")
    end = end._replace(reason="r", over=True)
    status = _with_end(Status(tmp_path.name), end)
    assert status.end._replace(phase="script", ended_as="") == end
    shown = status.as_json()
    assert (shown["memory_limit"], shown["lost_nodes"], shown["role"]) == ("node", ("n3", "n4"), "worker")
    assert shown["others"] == []  # of a Dask run


def test_the_others_that_failed_are_written_and_read_back() -> None:
    other = OtherEnd(1, "n2", 7, "exited with status 7")
    end = End(137, "script", "script", "m", rank=0, node="n1", others=(other,))
    assert parse(end.as_json()).others == (other,)
    with pytest.raises(DamagedError, match=r"others\[0\]|others"):
        parse({**end.as_json(), "others": [7]})
