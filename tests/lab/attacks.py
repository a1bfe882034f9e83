"""Count what mallory tries: each test module that attacks has its own count, shown when all tests are over."""

from __future__ import annotations

from dataclasses import dataclass, field

ALL: list[Attempts] = []  # one for each module, in the order in which they ran; conftest.py prints them


@dataclass
class Attempts:
    """The tries of one test module."""

    module: str
    tried: int = 0
    got_in: list[str] = field(default_factory=list)

    def refused(self, label: str, tries: int = 1) -> None:
        """Count tries that came to nothing; ``label`` says which, for who reads the test."""
        assert label
        self.tried += tries

    def succeeded(self, label: str, tries: int = 1) -> None:
        """Count tries that did what mallory wanted. The test that tried them fails by itself."""
        self.tried += tries
        self.got_in += [label] * tries

    def judge(self, label: str, *, refused: bool, tries: int = 1) -> None:
        """Count tries, and fail the test if they succeeded."""
        (self.refused if refused else self.succeeded)(label, tries)
        assert refused, f"mallory succeeded: {label}"

    def summary(self) -> list[str]:
        """Return the line for the end of the test run, and one for each try that succeeded."""
        refused = self.tried - len(self.got_in)
        first = f"attacks: {self.tried} tried, {refused} refused ({self.module})"
        return [first, *(f"  succeeded: {label}" for label in self.got_in[:20])]


def begin(module: str) -> Attempts:
    """Return a new count for a test module."""
    ALL.append(Attempts(module))
    return ALL[-1]
