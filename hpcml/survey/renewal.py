"""What of an older profile stays when it is written anew: what its user wrote, and what only a job on a node tells."""

from __future__ import annotations

from hpcml.sites.layers import Layers
from hpcml.sites.schema import Fact
from hpcml.survey.draft import NODE, Draft, Told, read_by


def keep(draft: Draft, old: Layers, written: dict[str, Fact], *, probed: bool) -> list[str]:
    """Lay over a draft what an older profile has from others than this command; return the keys that differ.

    Parameters
    ----------
    old
        The older profile's own table alone.
    written
        Its facts as they stand there.
    probed
        Whether a node was asked now: else what one said before stays.
    """
    kept = []
    before = {(*table, name): value for table, values in draft.values.items() for name, value in values.items()}
    for escaped, value in old.values.items():
        parts = tuple(part.replace("\0", ".") for part in escaped.split("."))
        if parts[0] in ("facts", "extends", "description"):
            continue
        key = ".".join(parts)
        above = next((name for name in _and_above(key) if name in written), "")
        fact = written.get(above)
        if fact is not None and not _stays(fact, probed=probed):
            continue
        table, name = parts[:-1], parts[-1]
        holder = draft.values.get(table[:-1], {}).get(table[-1]) if table else None
        if isinstance(holder, dict):  # as identify.environment
            holder[name] = value.value
        else:
            draft.values.setdefault(table, {})[name] = value.value
            draft.facts.pop(key, None)
            if fact is not None:
                draft.facts[key] = Told(fact.confidence, fact.date, fact.source)
        if not isinstance(holder, dict) and before.get(parts) != value.value:
            kept.append(key)
    for key, fact in written.items():
        if fact.value and _stays(fact, probed=probed):
            draft.facts[key] = Told(fact.confidence, fact.date, fact.source, fact.value)
    return kept


def _stays(fact: Fact, *, probed: bool) -> bool:
    who = read_by(fact.source)
    return not who or (who == NODE and not probed)


def _and_above(key: str) -> list[str]:
    parts = key.split(".")
    return [".".join(parts[:end]) for end in range(len(parts), 0, -1)]
