"""What tests look for in a message: its values, not its words, which are on the page tests/golden/messages.txt."""

from __future__ import annotations

import re


def in_order(*values: object) -> str:
    """Return the pattern of a text that has these values in this order, whatever words are between them."""
    return f"(?s){'.*'.join(re.escape(str(value)) for value in values)}"
