"""What the supervisor and the agents may say to each other: one table of events, and the rhythm of signs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

ALIVE = 5.0  # seconds between two signs of life, or a part of deadlines.answer if that is short:
_SIGNS = 4  # as many signs as may be missed
Fields = Mapping[str, type | tuple[type, ...]]
Events = dict[str, Fields]  # by the name of an event: the fields that it must have, and their types
NUMBER = (int, float)
# What the agent of every kind may say. A kind adds its own.
EVENTS: Events = {
    "hello": {"versions": dict, "time": NUMBER, "reached": list},  # the addresses that it reached
    "alive": {},
    "mark": {"state": str, "refused": str},  # what its node's file in nodes/ says too
    "note": {"text": str},
}


def sign_every(answer: float) -> float:
    """Return the seconds between two signs of life; ``answer`` is deadlines.answer."""
    return min(ALIVE, answer / _SIGNS)


def is_one_of(events: Events, message: Mapping[str, Any]) -> bool:
    """Whether a message is one of some events, with its fields."""
    fields = events.get(message["event"]) if isinstance(message.get("event"), str) else None
    return fields is not None and all(isinstance(message.get(name), kind) for name, kind in fields.items())
