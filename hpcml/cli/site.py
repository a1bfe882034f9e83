"""``hpcml site``: list, show, compare and write site profiles."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING

from hpcml import typed_json
from hpcml.cli import common
from hpcml.errors import ConfigError, UsageError
from hpcml.sites import lookup, settings_layers
from hpcml.terminal import json_text, note, say, say_fitted, say_lines, say_message

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from hpcml.sites.schema import Fact
    from hpcml.survey.profile_draft import Draft

# A key of a table that the other profile has not, as a partition's: that it has a default there tells nothing.
_NOT_THERE = (None, "default")
_MOST = {"ls": 0, "show": 1, "diff": 2, "init": 1}  # names that each takes
_TAKES = {
    "ls": ("accepts no profile", ""),
    "show": ("accepts at most one profile", " leonardo"),
    "diff": ("needs two profiles", " leonardo juwels"),
    "init": ("needs one name", " mycluster"),
}


def add_options(parser: ArgumentParser) -> None:
    """Add what only this verb takes, and the common options."""
    common.add_set(parser)
    common.add_json(parser)
    text = "ls: list profiles; show: print one; diff: compare two; init: write one for this machine"
    parser.add_argument("what", metavar="ls|show|diff|init", choices=tuple(_MOST), help=text)
    text = "with show: a name (default: the detected site); with diff: two names or files; "
    text += "with init: the new profile's name"
    parser.add_argument("names", nargs="*", metavar="SITE", help=text)
    parser.add_argument("--origin", action="store_true", help="with show: also print where each value was set")
    parser.add_argument("--facts", action="store_true", help="with show: print each value's source, date and certainty")
    _add_options_of_init(parser)


def run(options: Namespace) -> int:
    """List the profiles, show the one in force, or compare two; UsageError if the names or the options do not fit."""
    if options.what != "init" and (given := _given(options)):
        raise UsageError(f"{given} is an option of hpcml site init only", place=given, hint=f"Remove {given}.")
    most = _MOST[options.what]
    if len(options.names) > most or (options.what in ("diff", "init") and len(options.names) < most):
        many, example = _TAKES[options.what]
        place = " ".join(options.names) or "SITE"
        hint = f"Write hpcml site {options.what}{example}."
        raise UsageError(f"hpcml site {options.what} {many}", place=place, hint=hint)
    if options.what == "ls":
        return _site_ls(options)
    if options.what == "init":
        return _site_init(options)
    return _site_diff(options) if options.what == "diff" else _site_show(options)


def _site_show(options: Namespace) -> int:
    loaded = common.load_site("".join(options.names), common.here(), options.set or ())
    if options.facts:
        return _show_facts(loaded, as_json=options.json)
    table = typed_json.plain(loaded.site)
    if options.json:
        origins = {key.replace("\0", "."): value.origin for key, value in loaded.layers.values.items()}
        common.print_json({"site": table, "chosen_because": loaded.chosen_because, "origins": origins})
        return 0
    doubts = loaded.site.doubts()
    also = f"; {doubts} values are unconfirmed (see --facts)" if doubts else ""
    say(f"# {loaded.site.name}: {loaded.chosen_because}{also}")
    for key, value in _flat(table):
        origin = f"  # {loaded.layers.origin(key)}" if options.origin else ""
        say(f"{key} = {json_text(value)}{origin}")
    return 0


def _flat(table: dict[str, object], prefix: str = "") -> list[tuple[str, object]]:
    """Return the settings of a site by dotted key; its facts are none."""
    rows: list[tuple[str, object]] = []
    for name, value in table.items():
        if isinstance(value, dict):
            rows += _flat(value, f"{prefix}{name}.") if f"{prefix}{name}" != "facts" else []
        else:
            rows.append((f"{prefix}{name}", value))
    return rows


def _show_facts(loaded: lookup.LoadedSite, *, as_json: bool) -> int:
    """Print each value that the profile has a fact of, and each of the user's own, with who says so."""
    rows = list(_facts(loaded))
    if as_json:
        common.print_json([{"key": key, "value": value, **_told(fact)} for key, value, fact in rows])
        return 0
    for position, (key, value, fact) in enumerate(rows):
        say_fitted(f"{key} = {json_text(value)}", sys.stdout, rest="    ")
        if position + 1 == len(rows) or rows[position + 1][2] != fact:  # several values of one fact stand above it
            say_fitted(_words(fact), sys.stdout, first="    ", rest="    ")
    if not rows:
        note(f"profile {loaded.site.name} names no source for its values")
    return 0


def _facts(loaded: lookup.LoadedSite) -> Iterator[tuple[str, object, Fact | str]]:
    """Yield key, value and fact; of a value that was set elsewhere, its origin in the place of a fact."""
    for key, value in _flat(typed_json.plain(loaded.site)):
        origin = loaded.layers.origin(key)
        if fact := loaded.site.facts.get(key):
            yield key, value, fact
        elif origin != "default" and not origin.startswith("profile "):
            yield key, value, origin
    for key, fact in loaded.site.facts.items():
        if fact.value:
            yield key, fact.value, fact


def _told(source: Fact | str) -> dict[str, str]:
    if isinstance(source, str):
        return {"origin": source}
    return {"source": source.source, "date": source.date, "confidence": source.confidence}


def _words(source: Fact | str) -> str:
    if isinstance(source, str):
        return "hpcml's default" if source == "default" else f"from {source}"
    return f"{' '.join(filter(None, (source.confidence, source.date)))}: {source.source}"


def _site_diff(options: Namespace) -> int:
    """Compare two profiles."""
    show_difference(options.names, options.names, as_json=options.json)
    return 0


def show_difference(names: Sequence[str], called: Sequence[str], *, as_json: bool = False) -> bool:
    """Print the keys in which two profiles differ, with both values and who says so; return True if they do."""
    environment = settings_layers.process_environment()
    both = [lookup.load_profile(name, environment) for name in names]
    for text in {text: None for loaded in both for text in loaded.notes}:
        note(text)
    first, second = (_values(loaded) for loaded in both)
    rows = []
    for key in dict.fromkeys([*first, *second]):
        sides = (first.get(key, _NOT_THERE), second.get(key, _NOT_THERE))
        tells = (key in first and key in second) or any(source != "default" for _, source in sides)
        if tells and sides[0][0] != sides[1][0]:
            rows.append((key, sides))
    if as_json:
        common.print_json(
            [
                {"key": key, "sites": [{"value": value, **_told(source)} for value, source in sides]}
                for key, sides in rows
            ]
        )
        return bool(rows)
    for key, sides in rows:
        say(key)
        for name, (value, source) in zip(called, sides, strict=True):
            text = "not set" if value is None else json_text(value)
            say_fitted(text, sys.stdout, first=f"  {name}: ", rest="      ")
            if value is not None:
                say_fitted(_words(source), sys.stdout, first="      ", rest="      ")
    if not rows:
        say("The profiles are equal.")
    return bool(rows)


def _values(loaded: lookup.LoadedSite) -> dict[str, tuple[object, Fact | str]]:
    """Return each setting of a profile, and how it is known or where it was set; and its facts that are no setting."""
    settings: dict[str, tuple[object, Fact | str]] = {
        key: (value, loaded.site.facts.get(key) or loaded.layers.origin(key))
        for key, value in _flat(typed_json.plain(loaded.site))
        if key not in ("name", "description", "extends")
    }
    return settings | {key: (fact.value, fact) for key, fact in loaded.site.facts.items() if fact.value}


def _site_ls(options: Namespace) -> int:
    rows = []
    try:
        chosen = common.load_site("", common.here(), options.set or ()).site.name
    except ConfigError as error:
        say_message(f"hpcml: {error}")
        chosen = ""
    for name, paths in sorted(lookup.profile_files(settings_layers.process_environment()).items()):
        description = lookup.read_profile(paths[-1]).get("description", "")
        rows.append(
            {"site": name, "here": name == chosen, "description": description, "files": [str(path) for path in paths]}
        )
    if options.json:
        common.print_json(rows)
        return 0
    for row in rows:
        mark = "*" if row["here"] else " "
        say_fitted(str(row["description"]), sys.stdout, first=f"{mark} {row['site']:<12} ", rest=" " * 15)
    if chosen:
        say("* marks the profile that hpcml uses without --site", sys.stderr)
    return 0


# -- hpcml site init: write a profile of this machine from its own answers --------------------------------------------


_FLAGS = ("probe", "print", "force", "refresh", "yes")
_DEADLINE = "10m"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


def _add_options_of_init(parser: ArgumentParser) -> None:
    """Add what only ``init`` takes."""
    parser.add_argument(
        "--probe",
        action="store_true",
        help="with init: also examine one or two compute nodes, with a job of at most two minutes",
    )
    parser.add_argument("--print", action="store_true", help="with init: print the profile, and write nothing")
    parser.add_argument("--force", action="store_true", help="with init: replace an existing profile")
    parser.add_argument(
        "--refresh",
        action="store_true",
        help="with init: collect the machine's data again, show differences, ask before writing; keep your values",
    )
    parser.add_argument("--yes", action="store_true", help="with init --refresh: write without asking")
    parser.add_argument(
        "--account",
        "-A",
        metavar="ACCOUNT",
        default="",
        help="with init --probe: account to charge (default: Slurm's default account)",
    )
    parser.add_argument(
        "--partition",
        "-p",
        metavar="PARTITION",
        default="",
        help="with init --probe: partition of the job (default: the first partition with GPUs)",
    )
    parser.add_argument(
        "--qos",
        "-q",
        metavar="QOS",
        default="",
        help="with init --probe: QoS of the job (default: a QoS for quick tests, else the partition's QoS)",
    )
    parser.add_argument(
        "--deadline",
        metavar="TIME",
        default=_DEADLINE,
        help="with init --probe: cancel the job if it does not end within TIME after its submission (default: 10m)",
    )


def _given(options: Namespace) -> str:
    """Return the first option that only ``init`` takes and that is given, as it is written; nothing if none is."""
    names = (*_FLAGS, "account", "partition", "qos")
    option = next(
        (name for name in names if getattr(options, name)), "deadline" if options.deadline != _DEADLINE else ""
    )
    return f"--{option}" if option else ""


def _site_init(options: Namespace) -> int:
    """Write the profile of this machine, or show how it differs from the existing one."""
    from hpcml.survey import machine
    from hpcml.units import parse_seconds

    (name,) = options.names
    if not _NAME.fullmatch(name) or name.endswith(".toml"):
        hint = "Example: hpcml site init mycluster. This command writes the file mycluster.toml."
        raise UsageError(f"'{name}' is not a valid profile name", place="SITE", hint=hint)
    environment = settings_layers.process_environment()
    path = lookup.config_folders(environment)[-1] / "profiles" / f"{name}.toml"
    _check_place(path, options)
    seconds = max(1.0, common.parsed(parse_seconds, options.deadline, "--deadline", "10m"))
    survey = machine.Survey()
    if options.probe:
        common.end_by_signals()  # as by Ctrl-C the job is cancelled
        say_message("hpcml: examining a node with a job of at most two minutes; Ctrl-C cancels the job.")
        survey.probe(options.account, options.partition, options.qos, seconds)
    kept = survey.keep_of(path) if options.refresh else []
    survey.check()
    heading = _heading(name, survey.date)
    text = survey.draft.text(heading)
    if options.print:
        say_lines(text.rstrip("\n"))
    elif options.refresh:
        with survey.on_disk(heading) as new:
            differs = show_difference([str(path), str(new)], ["old", "new"])
        _refresh(options, path, text, kept, differs=differs)
    else:
        machine.put(path, text)
        _say_written(options, path, survey.draft)
    return 0


def _check_place(path: Path, options: Namespace) -> None:
    is_present = path.exists() or path.is_symlink()
    if options.refresh and not is_present:
        hint = f"Write the profile first: hpcml site init {path.stem}."
        raise ConfigError("There is no profile to refresh", place=str(path), hint=hint)
    if is_present and not (options.force or options.refresh or options.print):
        hint = "Add --refresh to see the differences, add --force to replace the profile, or use another name."
        raise UsageError("A profile with this name already exists", place=str(path), hint=hint)


def _heading(name: str, date: str) -> tuple[str, ...]:
    return (
        f"{name}: written by hpcml site init on {date}, from the output of this machine's commands.",
        "If you correct a value, also remove or change its entry in [facts]: --refresh then keeps your value.",
        "A QUESTION line asks for a value that no command shows. Set the value below the line, and remove the line.",
    )


def _refresh(options: Namespace, path: Path, text: str, kept: list[str], *, differs: bool) -> None:
    from hpcml.survey import machine

    if kept:
        say_fitted(f"Your own values are unchanged: {', '.join(kept)}.", sys.stdout, rest="  ")
    if not differs:
        return
    if not common.confirmed(f"Write the new profile to {path}?", options.yes):
        say_fitted("Nothing was written.", sys.stdout)
        return
    machine.put(path, text, old=True)
    say_fitted(f"Wrote {path}; the old profile is now {path.name}.old.", sys.stdout)


def _say_written(options: Namespace, path: Path, draft: Draft) -> None:
    names = {
        table_name: [table[1] for table in draft.values if len(table) == 2 and table[0] == table_name]
        for table_name in ("partitions", "qos")
    }
    if options.json:
        common.print_json({"path": str(path), **names, "questions": draft.questions})
        return
    counts = f"{len(names['partitions'])} partitions, {len(names['qos'])} QoS"
    say_fitted(f"Wrote {common.typed(path, sys.stdout)}: {counts}.", sys.stdout)
    say_fitted(
        f"Answer the {len(draft.questions)} questions in the profile. Each question begins with QUESTION.", sys.stdout
    )
    say_fitted(f"  hpcml site show {path.stem} --facts", sys.stdout)
    say_fitted(f"  hpcml doctor --site {path.stem}", sys.stdout)
    say_fitted(f"  hpcml submit --site {path.stem} --check first.py", sys.stdout)
