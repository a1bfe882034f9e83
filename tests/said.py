"""What tests look for in a message: its values, not its words, which are on the page tests/golden/messages.txt."""

from __future__ import annotations

import re
from typing import Any


def in_order(*values: object) -> str:
    """Return the pattern of a text that has these values in this order, whatever words are between them."""
    return f"(?s){'.*'.join(re.escape(str(value)) for value in values)}"


class Says:
    """Equal to each text that has these values in this order: for texts within tables, as pytest.approx for numbers."""

    def __init__(self, *values: object) -> None:
        self.pattern = in_order(*values)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, str) and re.search(self.pattern, other) is not None

    def __hash__(self) -> int:
        return hash(self.pattern)

    def __repr__(self) -> str:
        return f"a text with {self.pattern}"


def says(*values: object) -> Any:
    """Return what is equal to each text that has these values in this order."""
    return Says(*values)
