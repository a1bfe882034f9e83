"""Keys of profiles that have another name now: the old names count for one release, with a note."""

from __future__ import annotations

# Old key (of a table: of all keys in it) and its name now, for profiles, files of settings, variables, lines of scripts
# and --set.
RENAMED = {
    "deadlines.driver_grace": "deadlines.script_grace",
    "deadlines.fabric": "deadlines.interconnect",
    "fabric": "interconnect",
}
_FACTS = "facts."  # of a value, by the value's key


def current(key: str) -> str:
    """Return the name that a key has now; ``key`` is as Layers keep it (in a part of a name a dot is NUL)."""
    if key.startswith(_FACTS):
        value, dot, field = key.removeprefix(_FACTS).partition(".")
        return f"{_FACTS}{current(value.replace(chr(0), '.')).replace('.', chr(0))}{dot}{field}"
    for old, new in RENAMED.items():
        if key == old or key.startswith(f"{old}."):
            return new + key.removeprefix(old)
    return key


def note_of(key: str, origin: str) -> str:
    """Return a note that a key has another name now."""
    if key.startswith(_FACTS):  # one note for all that is said of a value
        key = ".".join(key.split(".")[:2])
    shown, new = (name.replace("\0", ".") for name in (key, current(key)))
    return f"{origin}: the key {shown} is now called {new}; a later version will not accept the old name"
