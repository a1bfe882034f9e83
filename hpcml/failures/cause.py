"""A failed run as it is judged, the cause of a failure, and the cause that a line of a log shows."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from hpcml import errors
from hpcml.failures import evidence, last_output
from hpcml.failures.earliest_line import Clocks
from hpcml.failures.end import End
from hpcml.failures.evidence import Hit, Line, Piece
from hpcml.failures.rule import Retry, Role, Rule
from hpcml.failures.rules import BY_NAME, COLLECTIVE, filled
from hpcml.kind import Kind
from hpcml.paths import SCRIPT
from hpcml.units import first_of_many
from hpcml.workload_forms import Form

KINDS = ("oom", "timeout", "node", "error", "unknown")  # of failures, by what may help
SHOWN = 3  # lines of evidence, and of what followed; ranks that are named
TOLD = 300  # characters of an error's message in a sentence
LOGS = "hpcml logs RUN"  # the command, in a remedy
# Ends that hpcml itself decided: its own sentence is the best explanation.
_FINAL = {
    errors.STORAGE: "disk full or not usable",
    errors.CANCELLED: "cancelled",
    errors.NO_PROGRESS: "no newer checkpoint",
    errors.IMAGE: "image cannot be used",
    errors.VERSIONS: "versions differ",
    errors.PREEMPTED: "preempted",
    errors.IDLE: "idle too long",
    errors.INTERNAL: "defect in hpcml",
}
OPEN = {  # ends that follow from a fault elsewhere
    errors.START_FAILED: "could not start",
    errors.ALLOCATION_LOST: "ended without a status",
}
OF_ANOTHER_NODE = {"node-failure", "credential"}  # their lines are in the logs of the nodes that were well


class Case(NamedTuple):
    """A run that has ended, and what its files show beside the logs."""

    end: End
    kind: Kind | None = None  # of the run; None where its ends and its startup do not count, as of a sweep's point
    times: Mapping[str, float] = {}  # of its events, in seconds since 1970
    error: Mapping[str, Any] = {}  # the error that the script did not catch (script-error.json)
    last_error: Line | None = None  # the last line of the script's output where it ends a traceback
    others: Sequence[tuple[Line, Mapping[str, Any]]] = ()  # the errors that ended other ranks, in their order
    finished: Sequence[Line] = ()  # the last line of each rank that ended with status 0 before the run's end
    output: Piece = Piece("", 0)  # the end of the script's output; of ranks, of the one that failed first
    form: Form = Form.SCRIPT  # what was started
    script_log: str = f"{SCRIPT}.log"  # the name of the script's log
    clocks: Clocks = {}
    first_node: tuple[str, ...] = ()  # its name, nothing if it is not known
    one_machine: bool = False  # it was on the local site
    blocked_on: str = ""  # on what file system the script was blocked last
    # By process: a worker of the first node, and bytes of its GPU memory pool.
    pools: Mapping[int, tuple[str, int]] = {}

    @property
    def subject(self) -> str:
        """What failed, in a clause: the script, the program, or the rank that failed first."""
        if self.end.rank is not None:
            return f"rank {self.end.rank} on {self.end.node}"
        return f"the {self.noun}"

    @property
    def noun(self) -> str:
        """What was started, in a word."""
        return "program" if self.form is Form.PROGRAM else "script"

    @property
    def is_python(self) -> bool:
        """Whether Python runs what was started."""
        return self.form not in (Form.PROGRAM, Form.BATCH)

    @property
    def of_ranks(self) -> bool:
        """Whether the script is several processes."""
        return self.end.rank is not None or (self.kind is not None and self.kind.ranks is not None)

    def own(self, text: str, number: int = 0, time: float = 0.0) -> Line:
        """Return a line of the output of what failed."""
        source = "rank" if self.end.rank else SCRIPT
        return Line(text, source, f"logs/{self.end.log or self.script_log}", number, time, self.end.node, self.end.rank)

    def short_by_status(self, *, followed: bool) -> dict[int, str]:
        """Return by exit status why hpcml ends a run, ``followed``: for something that began elsewhere."""
        of_kind = self.kind.ends if self.kind else ()
        general = OPEN if followed else _FINAL
        return {**general, **{rule.status: rule.short for rule in of_kind if rule.followed == followed}}

    @property
    def last_output(self) -> Piece:
        """The end of the output of what failed, or what the run's end quotes of it."""
        return self.output if self.output.text else Piece("\n".join(self.end.quote), 0)

    @property
    def quoted(self) -> tuple[Line, ...]:
        """The last lines that say something, of those that were written down with the end."""
        quote, by_script = self.end.quote, self.end.by == "script"
        lines = [text for text in quote if last_output.last_line(Piece(text, 0))] if by_script else quote
        return tuple(self.own(text) if by_script else Line(text, "record") for text in lines[-SHOWN:])


class Cause(NamedTuple):
    """Why a run failed."""

    what: str  # a clause
    short: str  # at most six words
    known: bool = True  # False where there is no evidence of it
    rule: str = ""  # the name of the rule that knows it, empty if none does
    remedy: str = ""
    retry: Retry = Retry.NONE
    evidence: tuple[Line, ...] = ()
    followed: tuple[Line, ...] = ()
    occurrences: int = 0  # lines that show the same, on ``nodes``
    nodes: tuple[str, ...] = ()
    ranks: tuple[int, ...] = ()  # the first of those that show the same, of which there are ``occurrences``
    where: str = ""  # these ranks in words, empty where ``what`` names them

    @classmethod
    def by_rule(cls, rule: Rule, clause: str = "", **fields: Any) -> Cause:
        """Return the cause that a rule has words for, with other fields."""
        return cls(clause or rule.cause, rule.short, True, rule.name, rule.remedy, rule.retry, occurrences=1, **fields)

    @classmethod
    def of_hit(cls, hit: Hit, hits: Sequence[Hit], clause: str = "", *, named: bool = False) -> Cause:
        """Return the cause that a line shows, with all lines that show the same, and what followed.

        ``named``: the clause names whose cause it is.
        """
        rule = hit.rule
        same = [other for other in hits if other.rule.name == rule.name]
        first: dict[tuple[str, str], Line] = {}
        for other in (hit, *same):
            first.setdefault((other.line.file, other.line.node), other.line)
        later = [other for other in hits if other.rule.role in (Role.CASCADE, Role.CONFIRMATION)]
        followed: dict[str, Line] = {}
        for other in sorted(later, key=lambda one: one.line.time):
            followed.setdefault(other.rule.name, other.line)
        nodes = [line.node for line in first.values()]
        if rule.name in OF_ANOTHER_NODE:
            nodes = named_nodes((hit, *same))
        clause = clause or filled(rule.cause, hit.groups)
        others = sorted(line.rank for line in first.values() if line.rank not in (None, hit.line.rank))
        ranks = [*others] if hit.line.rank is None else [hit.line.rank, *others]
        where = of_ranks(ranks, hit.line.node)
        if named:
            where = f"also {of_ranks(ranks[1:], '', SHOWN - 1)}" if ranks[1:] else ""
        if rule.name == COLLECTIVE:
            clause += f"; {where} waited for it" if where else ""
            clause += f" ({hit.groups[1]}, SeqNum={hit.groups[0]})" if hit.groups[0] else ""
        cause = cls.by_rule(
            rule,
            f"{clause} ({hit.place})" if hit.place else clause,
            evidence=tuple(first.values())[:SHOWN],
            followed=tuple(followed.values())[:SHOWN],
            nodes=tuple(dict.fromkeys(filter(None, nodes))),
            ranks=tuple(ranks[:SHOWN]),
            where="" if rule.name == COLLECTIVE else where,
        )
        # A process ends once, whatever it wrote of that.
        count = len(ranks) or len([hit for hit in same if not hit.own]) + any(hit.own for hit in same)
        return cause._replace(short=filled(rule.short, hit.groups), occurrences=max(count, 1))

    @property
    def sentence(self) -> str:
        """The cause in one line."""
        nodes, occurrences = self.nodes, self.occurrences
        text = self.what[:1].upper() + self.what[1:] if self.known else f"Not known: {self.what}"
        named = first_of_many(nodes, 4, more=" and {} more nodes")
        if self.ranks:
            text += f" ({self.where})" if self.where else ""
        elif occurrences > 1:
            text += f" ({occurrences} times{f' on {named}' if named else ''})"
        elif named:
            text += f" (on {named})"
        return f"{text.rstrip('.')}."


def kind_of(rule: str, *, evident: bool = True) -> str:
    """Return the kind of a failure by its rule (empty: there is none); unknown where nothing shows the cause."""
    if rule in ("rmm-pool", "gpu-memory", "cublas-memory", "xla-memory"):  # more of the node's memory is no remedy
        return "oom"
    retry = BY_NAME[rule].retry if rule in BY_NAME else Retry.NONE
    kind = {Retry.MEMORY: "oom", Retry.TIME: "timeout", Retry.EXCLUDE: "node"}.get(retry, "error")
    return kind if evident else "unknown"


def with_run(remedy: str, run: str) -> str:
    """Return a next step with the run's id in its command."""
    return re.sub(r"(hpcml (?:logs|rerun)) RUN\b", rf"\1 {run}", remedy)


def of_ranks(ranks: Sequence[int], node: str, most: int = SHOWN) -> str:
    """Return ranks in words, of many the first; of one with its node."""
    if len(ranks) == 1:
        return f"rank {ranks[0]} on {node}" if node else f"rank {ranks[0]}"
    return f"ranks {first_of_many([*map(str, ranks)], most)}" if ranks else ""


def named_nodes(hits: Sequence[Hit]) -> list[str]:
    """Return the nodes that lines name themselves."""
    return [hit.groups[0] for hit in hits if hit.groups]


def known_by_rule(text: str, line: Line, *, own: bool = False) -> Hit | None:
    """Return the rule's hit in an error's text, if a rule matches; of several the one that starts a failure."""
    hits = [hit._replace(line=line, own=own) for hit in evidence.hits_in(evidence.Piece(text, 1), SCRIPT)]
    hits = [hit for hit in hits if hit.rule.role in (Role.ROOT, Role.CASCADE)]
    return min(hits, key=lambda hit: hit.rule.role is not Role.ROOT, default=None)


def roots(hits: Sequence[Hit], *, with_script: bool) -> list[Hit]:
    """Return the lines that begin a failure; ``with_script``: also those of the script's output."""
    return [hit for hit in hits if hit.rule.role is Role.ROOT and (with_script or not hit.own)]


def in_one_line(text: str) -> str:
    """Return a message in one line, because a library's first line often says too little; without a traceback in it."""
    kept, in_traceback = [], False
    for line in text.split("\n"):
        head, begins, _ = line.partition("Traceback (most recent call last):")
        in_traceback = bool(begins) or (in_traceback and line.startswith(" "))
        kept += [head.strip()] if begins or not in_traceback else []
    return " ".join(filter(None, kept))
