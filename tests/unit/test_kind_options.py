"""A kind of run brings options of its own: rows of the table of options, and a group of the request."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from hpcml.errors import UsageError
from hpcml.kinds.dask.options import Dask, asked
from hpcml.request.options import OPTIONS
from hpcml.request.reading import request_of
from hpcml.request.record import Code, RunRequest

# A second kind, which stands in the table before the options are read. It shares own_clusters with Dask runs.
SECOND_KIND = """
import json, sys, types
from pathlib import Path
from typing import NamedTuple
from hpcml import kinds
from hpcml.request.option import KindOptions, Option, flag, whole

class Parts(NamedTuple):
    parts: int = 0
    own_clusters: bool = False

takers = frozenset(["submit", "lines", "python"])
module = types.ModuleType("of_parts")
module.OPTIONS = KindOptions(
    Parts(),
    {"how": (Option("parts", "how many parts", takers, read=whole),),
     "what to do": (Option("own_clusters", "let it", takers, read=flag),)},
    {"--portions": "Use --parts."},
)
sys.modules["of_parts"] = module
kinds.KINDS["parts"] = kinds.get("dask")._replace(name="parts", options="of_parts")

from hpcml.cli import commands
from hpcml.errors import HpcmlError
from hpcml.request import options, sbatch_options, script_lines
from hpcml.request.reading import given_by_keywords, request_of
from hpcml.request.record import Code

parser = commands.build_parser("submit")
script = Path("job.py")
script.write_text("# hpcml: --parts 3\\n")

def answer(*words):
    try:
        given = vars(parser.parse_args(words))
        script_lines.lay_below(given, script, parser) if "--nodes" in words else None
        request = request_of(given, Code(script))
    except HpcmlError as error:
        return str(error)
    return [request.kind, request.of_kind and request.of_kind._asdict(), request.given().get("parts")]

print(json.dumps({
    "words": [answer(), answer("--parts", "2", "--own-clusters"), answer("--nodes", "1"), answer("--profile", "dask"),
              answer("--parts", "2", "--profile", "dask"), answer("--parts", "x"), answer("--portions", "2")],
    "python": request_of(given_by_keywords({"parts": 4}, options.of("python"), "hpcml.submit()"), Code()).of_kind,
    "kinds": {name: sorted(options.OPTIONS[name].kinds) for name in ("nodes", "profile", "parts", "own_clusters")},
    "help": "--parts PARTS" in parser.format_help(whole=True),
}))
"""


def test_another_kind_adds_options_without_a_change_elsewhere(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SECOND_KIND], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    unread = "'x' is not a whole number (--parts).\nWrite --parts 4."
    other = "--profile is for runs of kind dask, but this run is of kind parts (--profile).\nRemove --profile."
    unknown = "There is no option '--portions' (hpcml submit).\nUse --parts."
    assert facts["words"] == [
        ["dask", None, None], ["parts", {"parts": 2, "own_clusters": True}, 2],
        ["parts", {"parts": 3, "own_clusters": False}, 3], ["dask", {"own_clusters": False, "profile": "dask"}, None],
        other, unread, unknown,
    ]  # fmt: skip
    assert facts["python"] == [4, False]
    assert facts["kinds"] == {"nodes": [], "profile": ["dask"], "parts": ["parts"], "own_clusters": ["dask", "parts"]}
    assert facts["help"]


def test_what_is_asked_of_dask_is_a_group_of_its_own() -> None:
    code = Code(Path("/x/job.py"))
    assert {name for name, option in OPTIONS.items() if "dask" in option.kinds} == set(Dask._fields)
    assert asked(request_of({"own_clusters": True, "profile": ["rmm", "dask"]}, code)) == Dask(True, "rmm,dask")
    assert asked(request_of({"nodes": "2"}, code)) == Dask()
    assert request_of({}, code).given()["own_clusters"] is False
    assert RunRequest().value("profile") == ""
    with pytest.raises(UsageError, match="--profile is empty"):
        request_of({"profile": [" "]}, code)
