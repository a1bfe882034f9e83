"""``hpcml site``: list and show site profiles."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from hpcml.cli import common
from hpcml.errors import ConfigError
from hpcml.sites import layers, lookup
from hpcml.terminal import json_text, say, say_fitted, say_message

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace


def add_options(parser: ArgumentParser) -> None:
    """Add what only this verb takes, and the common options."""
    common.add_set(parser)
    common.add_json(parser)
    parser.add_argument(
        "what", metavar="ls|show", choices=("ls", "show"), help="list the profiles, or show one in force"
    )
    parser.add_argument("name", nargs="?", default="", metavar="SITE", help="default: the site found here")
    parser.add_argument("--origin", action="store_true", help="say where each value comes from")


def run(options: Namespace) -> int:
    """List the profiles, or show the one in force."""
    if options.what == "ls":
        return _site_ls(options)
    loaded = common.load_site(options.name, common.here(), options.set or ())
    table = layers.as_table(loaded.site)
    if options.json:
        origins = {key.replace("\0", "."): value.origin for key, value in loaded.layers.values.items()}
        common.print_json({"site": table, "chosen_because": loaded.chosen_because, "origins": origins})
        return 0
    say(f"# {loaded.site.name}: {loaded.chosen_because}")
    for key, value in _flat(table):
        origin = f"  # {loaded.layers.origin(key)}" if options.origin else ""
        say(f"{key} = {json_text(value)}{origin}")
    return 0


def _flat(table: dict[str, object], prefix: str = "") -> list[tuple[str, object]]:
    rows: list[tuple[str, object]] = []
    for name, value in table.items():
        if isinstance(value, dict):
            rows += _flat(value, f"{prefix}{name}.")
        else:
            rows.append((f"{prefix}{name}", value))
    return rows


def _site_ls(options: Namespace) -> int:
    rows = []
    try:
        chosen = common.load_site("", common.here(), options.set or ()).site.name
    except ConfigError as error:
        say_message(f"hpcml: {error}")
        chosen = ""
    for name, paths in sorted(lookup.profile_files(layers.process_environment()).items()):
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
    return 0
