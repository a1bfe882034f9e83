"""The rules that keep the house in order: who imports whom, who touches the world."""

from __future__ import annotations

import ast
import fnmatch
import itertools
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import jinja2
import jinja2.nodes
import pytest

from hpcml import features_by_point, kinds, listeners, node_archive
from hpcml.states import ACTIVE, ENDED, PENDING, STATE_BY_PHASE, Phase, State
from tests import words

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "hpcml"

NODE_PACKAGES = {"dask", "distributed", "cloudpickle", "tornado", "psutil", "cryptography"}
GPU_PACKAGES = {
    "numpy", "zict", "distributed_ucxx", "ucxx", "dask_cuda", "pynvml", "rmm", "cupy", "cuda",
}  # imported in functions, where they are there  # fmt: skip
PICTURE_PACKAGES = {"matplotlib"}  # without it hpcml interconnect says so, and leaves the picture out
SWEEP_PACKAGES = {"optuna"}  # without it a search and a pruner are refused
JUPYTER_PACKAGES = {
    "jupyter_client", "nbclient", "nbformat", "jupyter_core", "jupyter_server", "jupyterlab", "traitlets",
    "ipykernel", "zmq",
}  # in functions too, of hpcml[jupyter]  # fmt: skip
FILTERS = {"sh", "argv", "directive", "comment"}


def _modules() -> dict[str, Path]:
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        name = ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
        found[name.removesuffix(".__init__") if name != "__init__" else "hpcml"] = path
    return found


def _imports(path: Path) -> set[str]:
    """Return the dotted names that a module imports, in functions and for type checking too."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name}: imports are absolute"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def _packages(path: Path) -> set[str]:
    return {name.partition(".")[0] for name in _imports(path)} - {"hpcml"}


MODULES = _modules()
KINDS = {f"hpcml/kinds/{kind}/__init__.py" for kind in kinds.KINDS}


def test_imports_go_in_one_direction() -> None:
    """The contracts are in pyproject.toml."""
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stdout


def test_the_nodes_side_needs_no_package_but_those_that_are_there() -> None:
    there = set(sys.stdlib_module_names) | NODE_PACKAGES | GPU_PACKAGES
    there |= PICTURE_PACKAGES | JUPYTER_PACKAGES | SWEEP_PACKAGES
    for name, path in MODULES.items():
        if name == "script_api" or name.startswith(("node", "repairs")):
            assert not _packages(path) - there, name


def test_what_travels_with_a_run_is_all_that_the_nodes_side_imports() -> None:
    """But for the names of hpcml, and methods of a kind, that only the login node's side has."""
    travels = set(node_archive.node_side())
    for path in travels:
        of_the_login_node: tuple[str, ...] = ("hpcml.api.", "hpcml.runs.") if path == "hpcml/__init__.py" else ()
        if path in KINDS:
            of_the_login_node = (f"{path.removesuffix('/__init__.py').replace('/', '.')}.login",)
        for name in _imports(ROOT / path):
            if name.startswith(of_the_login_node):
                continue
            parts = name.split(".")
            places = {"/".join(parts[:end]) for end in range(2, len(parts) + 1)}
            files = {f"{place}.py" for place in places} | {f"{place}/__init__.py" for place in places}
            assert parts[0] != "hpcml" or files & travels, (path, name)


@pytest.mark.parametrize(
    "name",
    [
        "units", "errors", "paths", "request.option", "request.options", "request.record", "options.table",
        "plan.make_plan",
        "plan.batch_script", "plan.container", "kinds.dask.login.options", "kinds.dask.login.plan",
        "kinds.ranks.login.options", "kinds.ranks.login.plan", "kinds.ranks.variables", "schedulers.slurm_options",
    ],
)  # fmt: skip
def test_what_decides_neither_acts_nor_reads_a_clock(name: str) -> None:
    forbidden = {
        "os", "io", "shutil", "socket", "subprocess", "tempfile", "time", "datetime", "random", "secrets", "uuid",
    }  # fmt: skip
    assert not _packages(MODULES[name]) & forbidden
    tree = ast.parse(MODULES[name].read_text())
    acts = {
        "open", "read_text", "write_text", "read_bytes", "write_bytes", "mkdir", "unlink", "stat", "exists",
        "is_file",
    }  # fmt: skip
    called = {
        node.func.attr for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    }
    called |= {
        node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    assert not called & acts


@pytest.mark.parametrize(
    "command",
    [["--help"], ["submit", "--help"], ["--version"], ["ls"], ["status"], ["site", "ls"], ["--complete", "status", ""]],
)
def test_what_is_asked_for_often_imports_little(command: list[str], tmp_path: Path) -> None:
    code = ("import sys, json; from hpcml.cli.main import main; main(json.loads(sys.argv[1])); "
            "print(json.dumps(sorted(sys.modules)), file=sys.stderr)")  # fmt: skip
    done = subprocess.run([sys.executable, "-c", code, json.dumps(command)], env={"HOME": str(tmp_path), "PATH": "/usr/bin"},
                          capture_output=True, text=True, check=True, cwd=tmp_path)  # fmt: skip
    loaded = {module.partition(".")[0] for module in json.loads(done.stderr.splitlines()[-1])}
    assert not loaded & {"dask", "distributed", "rich", "jinja2", "numpy", "cryptography", "tornado"}


def test_a_look_at_runs_imports_neither_options_nor_rules(tmp_path: Path) -> None:
    """``ls`` and ``status`` of a run that ended well need no table of options, no repairs and no patterns of logs."""
    code = ("import sys; from hpcml.cli import status; from hpcml.cli.main import main; main(['ls']); main(['status']); "
            "from hpcml.runs import listing, report, request_cost; from hpcml.report import ending; print(*sys.modules, file=sys.stderr)")  # fmt: skip
    done = subprocess.run([sys.executable, "-P", "-c", code], env={"HOME": str(tmp_path), "PATH": "/usr/bin"},
                          capture_output=True, text=True, check=True, cwd=tmp_path)  # fmt: skip
    needless = r"hpcml\.(?:options\.table|kinds\.\w+\.login|repairs|failures\.(?:rules|evidence|judgement)|runs\.(?:why|submit)|plan\.make_plan)\S*"
    assert not re.findall(needless, done.stderr.splitlines()[-1])
    assert "_hashlib" not in done.stderr.split(), "OpenSSL takes some milliseconds"


def test_one_kind_of_run_is_imported_by_few() -> None:
    """By the table of kinds, and by what a script calls; all others take a kind from the table."""
    of_a_kind = tuple(f"hpcml.kinds.{kind}" for kind in kinds.KINDS)
    importers = {
        name
        for name, path in MODULES.items()
        if not f"hpcml.{name}".startswith(of_a_kind) and any(word.startswith(of_a_kind) for word in _imports(path))
    }
    assert importers == {"kinds", "script_api", "api.elastic"}


def test_a_kind_is_imported_without_what_only_one_machine_needs() -> None:
    """Its module stands on both sides: methods import what they need of the folders ``login`` and ``node``."""
    code = "import sys, hpcml.kinds; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True).stdout
    assert not re.findall(r"hpcml\.kinds\.\w+\.(?:node|login)\S*|hpcml\.(?:node|request|sites|samples)\S*", loaded)


@pytest.mark.parametrize("site", ["local", "slurm"])
def test_a_dry_run_imports_nothing_for_a_script_or_a_report(site: str, tmp_path: Path) -> None:
    """It shows a summary: Jinja2 is half of what rendering costs, and a report reads samples and logs."""
    (tmp_path / "a.py").write_text("print(1)\n")
    code = ("import sys, json; from hpcml.cli.main import main; main(json.loads(sys.argv[1])); "
            "print(json.dumps(sorted(sys.modules)), file=sys.stderr)")  # fmt: skip
    command = ["submit", "--site", site, "--dry-run", "--nodes", "2", "a.py"]
    done = subprocess.run([sys.executable, "-c", code, json.dumps(command)], env={"HOME": str(tmp_path), "PATH": "/usr/bin"},
                          capture_output=True, text=True, check=True, cwd=tmp_path)  # fmt: skip
    loaded = set(json.loads(done.stderr.splitlines()[-1]))
    assert not loaded & {"jinja2", "hpcml.samples", "hpcml.report.ledger", "hpcml.failures.judgement"}


def test_slurm_s_variables_are_named_behind_the_seam_alone() -> None:
    """Beside hpcml.schedulers by one module on the nodes, by Slurm's step of agents, and by what a profile cites."""
    files = [path for folder in ("hpcml", "templates") for path in (ROOT / folder).rglob("*") if path.is_file()]
    texts = {path: path.read_text(encoding="utf-8") for path in files if path.suffix in (".py", ".sh", ".j2", ".toml")}
    named = {str(path.relative_to(ROOT)) for path, text in texts.items() if re.search(r"SLURM[A-Z]*_[A-Z]", text)}
    outside = {name for name in named if not name.startswith("hpcml/schedulers/")}
    assert outside == {"hpcml/node/job.py", "templates/agents.sh", "hpcml/sites/profiles/vega.toml"}


def test_every_value_in_a_template_passes_a_filter() -> None:
    environment = jinja2.Environment()  # noqa: S701 - only parsed
    for path in sorted((ROOT / "templates").glob("*.j2")):
        for output in environment.parse(path.read_text()).find_all(jinja2.nodes.Output):
            for node in output.nodes:
                if not isinstance(node, jinja2.nodes.TemplateData):
                    place = f"{path.name}:{node.lineno}"
                    assert isinstance(node, jinja2.nodes.Filter), place
                    assert node.name in FILTERS, place


def test_the_page_s_table_is_in_the_order_of_the_contract() -> None:
    """A row may name several modules; those below another package have its place."""
    contract = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
    layers = next(one["layers"] for one in contract["contracts"] if one["type"] == "layers")
    place = {name: number for number, layer in enumerate(layers) for name in re.split(r" [|:] ", layer)}
    page = (ROOT / "docs/architecture.md").read_text(encoding="utf-8").partition("\n| folder or module |")[2]
    rows = [re.findall(r"`([\w/]+)`", line.split("|")[1]) for line in page.partition("\n\n")[0].splitlines()[2:]]
    assert {name for row in rows for name in row if "/" not in name} == {*place} - {"__main__"}
    places = [sorted(place[name.partition("/")[0]] for name in row) for row in rows]
    assert all(above[-1] <= below[0] for above, below in itertools.pairwise(places)), (
        "a row is above one that imports it"
    )


# -- core and features -----------------------------------------------------------------------------------------------------

SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["hpcml"]
MOST_ARROWS = {"core": 10, "features": 22}  # may only fall


def _part(module: str) -> tuple[bool, str]:
    """Return whether a module is of the core, and its part of the core or its feature: the longest name that fits."""
    fits = [
        (name.count("."), "*" not in name, len(name), is_core, part)
        for is_core in (True, False)
        for part, names in SETTINGS["core" if is_core else "features"].items()
        for name in names
        if fnmatch.fnmatchcase(module, name) or fnmatch.fnmatchcase(module, f"{name}.*")
    ]
    assert fits, f"{module} is in no part of the core and no feature (pyproject.toml)"
    *_, is_core, part = max(fits)
    return is_core, part


def test_the_core_imports_no_feature_and_no_feature_another_but_where_it_is_said() -> None:
    """Imports in functions and for type checking count too."""
    found: dict[str, dict[str, set[str]]] = {"core": {}, "features": {}}
    parts = {name: _part("" if name == "hpcml" else name) for name in MODULES}
    for name, path in MODULES.items():
        is_core, part = parts[name]
        for imported in _imports(path):
            module = imported.removeprefix("hpcml.")
            module = module if module in MODULES else module.rpartition(".")[0]
            if not imported.startswith("hpcml.") or module not in parts or parts[module] == (is_core, part):
                continue
            if not parts[module][0]:
                arrows = found["core" if is_core else "features"]
                arrows.setdefault(f"{part} -> {parts[module][1]}", set()).add(f"{name} -> {module}")
    for side, arrows in found.items():
        allowed = SETTINGS["arrows"][side]
        assert {name: arrows[name] for name in arrows.keys() - {*allowed}} == {}, (
            f"{side}: use a feature point, or move it down"
        )
        assert {*allowed} - arrows.keys() == set(), f"{side}: these are gone: remove them from pyproject.toml"
        assert len(allowed) <= MOST_ARROWS[side]


def test_each_extension_point_is_a_function_that_the_core_calls() -> None:
    texts = "\n".join(path.read_text() for name, path in MODULES.items() if name != "features_by_point")
    for point, names in features_by_point.POINTS.items():
        assert all(callable(function) for function in features_by_point.added(point)), point
        assert len(names) == len(set(names)) > 0, point
        assert not any(_part(name.removeprefix("hpcml.").rpartition(".")[0])[0] for name in names), (
            f"{point}: not a feature"
        )
        assert re.search(rf"""features_by_point\.(?:added|only|collected)\(\s*["']{re.escape(point)}["']""", texts), (
            point
        )


# -- size --------------------------------------------------------------------------------------------------------------

MOST_COMPLEX, HIGHEST = 20, 30
# The functions of which more than 20 paths are counted, and how many: none may rise, and no other may come.
COMPLEX = {
    "doctor.ports._of_all": 23,
    "failures.evidence.logs": 25,
    "failures.judgement._judged": 23,
    "failures.cause.of_hit": 24,
    "failures.judgement._out_of_memory": 24,
    "failures.script_without_error._signalled": 29,
    "kinds.dask.node.script.run_cluster.__init__": 23,
    "node.interconnect.result._of_collective": 29,
    "runs.waiting.follow": 30,
}
# The lines of each package, which may only fall: a commit that raises a number says what this buys.
MOST_LINES = {
    ".": 6241,
    "api": 1023,
    "cli": 8156,
    "doctor": 1539,
    "failures": 3244,
    "images": 1066,
    "kinds": 12199,
    "node": 12222,
    "options": 2453,
    "plan": 910,
    "remote": 3995,
    "repairs": 984,
    "report": 2354,
    "request": 588,
    "runs": 10062,
    "schedulers": 3868,
    "sites": 1544,
    "survey": 1210,
    "sweeps": 1440,
}


def _complexity(node: ast.AST) -> int:
    """Return how many decisions are in a function, without those of functions in it, counted as radon does."""
    count = 0
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        match child:
            case ast.If() | ast.IfExp() | ast.Assert():
                count += 1
            case ast.For() | ast.AsyncFor() | ast.While():
                count += 1 + bool(child.orelse)
            case ast.Try() | ast.TryStar():
                count += len(child.handlers) + bool(child.orelse)
            case ast.BoolOp():
                count += len(child.values) - 1
            case ast.comprehension():
                count += 1 + len(child.ifs)
            case ast.Match():
                wild = sum(isinstance(one.pattern, ast.MatchAs) and one.pattern.pattern is None for one in child.cases)
                count += max(0, len(child.cases) - bool(wild))
            case _:
                pass
        count += _complexity(child)
    return count


def test_no_function_decides_too_much() -> None:
    """Ruff's own rule counts neither operands of `and` nor comprehensions, which a reader has to follow too."""
    found = {
        f"{name}.{node.name}": decisions
        for name, path in MODULES.items()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (decisions := 1 + _complexity(node)) > MOST_COMPLEX
    }
    assert {name: count for name, count in found.items() if count > COMPLEX.get(name, 0)} == {}
    assert COMPLEX.keys() - found.keys() == set(), "these are simpler now: remove them"
    assert max(COMPLEX.values()) <= HIGHEST
    assert len(COMPLEX) <= 10


def test_no_package_grows() -> None:
    lines: dict[str, int] = {}
    for path in MODULES.values():
        package = path.relative_to(PACKAGE).parts[0] if path.parent != PACKAGE else "."
        lines[package] = lines.get(package, 0) + len(path.read_text().splitlines())
    assert {name: count for name, count in lines.items() if count > MOST_LINES.get(name, 0)} == {}


# -- nobody else's code ---------------------------------------------------------------------------------------------------

STARTS = re.compile(r"""-m["']?[ ,]+f?["']?\{?(?:hpcml\b|pip["']|submitit|distributed|dask_cuda|module\})""")
SERVERS = {"Scheduler", "Worker", "Nanny"}  # of Dask


def test_no_python_that_hpcml_starts_imports_from_the_working_folder() -> None:
    """``-m`` and ``-c`` put that folder first on the path, and somebody else may have put modules there."""
    found = []
    for path in (*PACKAGE.rglob("*.py"), *(ROOT / "templates").rglob("*.*")):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if STARTS.search(line) and not re.search(r"""-[PI]\b|``python|`python|prog=""", line):
                found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()}")
    of_a_map = [one for one in found if one.startswith("hpcml/api/map.py")]  # test_map.py reads its python -P
    assert found == of_a_map
    assert len(of_a_map) == 1


def test_the_code_of_a_python_that_hpcml_starts_leaves_out_the_working_folder() -> None:
    for name, path in MODULES.items():
        for node in ast.walk(ast.parse(path.read_text())) if '"-c"' in path.read_text() else ():
            words = [one.value if isinstance(one, ast.Constant) else "" for one in getattr(node, "elts", ())]
            if "-c" not in words or words[0] in ("sh", "bash", "/bin/sh") or words[-1] == "hpcml":
                continue
            said = {str(word) for word in words} & {"-P", "-I", "-IS", "-Pu"}
            code = node.elts[words.index("-c") + 1]  # type: ignore[attr-defined]
            text = _constant(path, code.id) if isinstance(code, ast.Name) else ""
            assert said or "sys.path[:] = filter(None, sys.path)" in text or name in NO_START, (name, words)


def test_a_dask_server_of_hpcml_s_has_a_folder_of_its_own() -> None:
    """Guarded refuses one without; so each class of them is guarded, and Dask's own are started nowhere."""
    for name, path in MODULES.items():
        for node in ast.walk(ast.parse(path.read_text())) if "distributed" in path.read_text() else ():
            if isinstance(node, ast.ClassDef):
                bases = [ast.unparse(base).rpartition(".")[2] for base in node.bases]
                if SERVERS & set(bases) and "Protocol" not in bases and "NamedTuple" not in bases:
                    assert bases[0] == "Guarded", (name, node.name)
            elif isinstance(node, ast.Call):
                called = ast.unparse(node.func).rpartition(".")[2]
                assert called not in SERVERS | {"LocalCluster"} or name in NO_SERVER, (name, called)


OPENS = {
    "bind", "listen", "create_server", "start_server", "start_unix_server", "create_unix_server", "bind_sockets",
    "create_datagram_endpoint", "bind_unix_socket", "add_socket", "add_sockets", "serve_forever", "HTTPServer",
    "TCPServer", "make_server", "run_app", "run_simple", "bind_to_random_port", "socket_listen", "Manager",
    "BaseManager", "SyncManager", "SharedMemoryManager",
}  # fmt: skip
# Modules that listen for who imports them, and what may be imported of them all the same.
SERVER_MODULES = {
    "xmlrpc": (), "http.server": (), "wsgiref": (), "multiprocessing.managers": (), "asyncore": (), "aiohttp": (),
    "multiprocessing.connection": ("Connection",), "socketserver": (), "tornado.httpserver": (), "tornado.netutil": (),
    "tornado.tcpserver": (), "flask": (), "uvicorn": (), "grpc": (), "bokeh.server": (), "waitress": (),
}  # fmt: skip
NO_SOCKET = {  # what has such a name and opens nothing
    ("kinds.dask.node.script.run_cluster", "signature.bind"),  # of inspect
    ("remote.routes", "self.server.serve_forever"),  # a listener's threads
    ("remote.routes", "socketserver"),  # for its handlers
}  # fmt: skip
# Programs that listen, in Python, shell and the definitions of images; the files that start one, and its row.
LISTENS = re.compile(
    r"""\b(?:nc|ncat|netcat) -\w*l|\bsocat\b|http\.server|SimpleHTTP|/sshd\b|\bdask-scheduler\b|"scheduler", "--|\bray start\b"""
    r"""|redis-server|jupyter (?:lab|notebook|server)\b|import LabApp\b|ControlMaster="yes"|"-[LRD]", f"""
)
PROGRAMS = {
    "hpcml/kinds/dask/node/jupyter/server.py": "JUPYTER",
    "hpcml/remote/routes.py": "SSH",
    "hpcml/remote/ssh.py": "SSH",
    "hpcml/remote/tunnel_server.py": "SSH",  # and sshd -i, which has no port
}


def _opened_sockets(tree: ast.AST) -> set[str]:
    """Return what a module uses that opens a socket: names, also in texts for getattr, and modules."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            word = ast.unparse(node)
            end = word.rpartition(".")[2]
            handled = word.startswith("socketserver.") and not end.endswith("Handler")
            found |= {word} if end in OPENS or handled else set()
        elif isinstance(node, ast.ImportFrom):
            name, words = str(node.module), {alias.name for alias in node.names}
            found |= words & OPENS
            for module, allowed in SERVER_MODULES.items():
                if name == module or name.startswith(f"{module}."):
                    found |= words - {*allowed}
                found |= {module} if module in {f"{name}.{word}" for word in words} else set()
        elif isinstance(node, ast.Import):
            names = {alias.name for alias in node.names}
            found |= {name for name in names for module in SERVER_MODULES if f"{name}.".startswith(f"{module}.")}
        elif isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in ("getattr", "methodcaller"):
            found |= {str(word.value) for word in node.args if isinstance(word, ast.Constant) and word.value in OPENS}
    return found


def test_sockets_are_opened_by_one_module() -> None:
    """Each with a row of its table, from which the pages on security and the attacks of the tests are made."""
    trees = {name: ast.parse(path.read_text()) for name, path in MODULES.items() if name != "listeners"}
    assert {(name, word) for name, tree in trees.items() for word in _opened_sockets(tree)} == NO_SOCKET


@pytest.mark.parametrize(
    "code",
    [
        "import socket as s\ns.socket().bind(('', 0))", "from socket import create_server as c", "getattr(sock, 'bind')(place)",
        "await asyncio.start_server(act)", "loop.create_server(make)", "import xmlrpc.server\nxmlrpc.server.SimpleXMLRPCServer(p)",
        "from http.server import SimpleHTTPRequestHandler", "from http import server", "import multiprocessing\nmultiprocessing.Manager()",
        "from multiprocessing.connection import Listener", "import socketserver\nclass S(socketserver.ThreadingTCPServer): pass",
        "from socketserver import TCPServer", "context.socket(zmq.REP).bind('tcp://*:1')", "application.listen(8888)",
        "ctypes.CDLL(None).bind(number, place, size)", "loop.create_datagram_endpoint(make)", "from tornado import netutil",
    ],
)  # fmt: skip
def test_other_ways_to_open_a_socket_are_found(code: str) -> None:
    module = ast.parse(f"async def main():\n    {code.replace(chr(10), chr(10) + '    ')}")
    assert _opened_sockets(module)


def test_programs_that_listen_are_started_by_few_files() -> None:
    files = [path for folder in ("hpcml", "templates", "containers") for path in (ROOT / folder).rglob("*.*")]
    texts = {
        str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
        for path in files
        if path.is_file() and path.parent.name != "__pycache__"
    }
    assert {path for path, text in texts.items() if LISTENS.search(text)} == {*PROGRAMS}
    assert all(hasattr(listeners, row) for row in PROGRAMS.values())


TEMPORARY = (
    "`~/.hpcml/incoming`, `hpcml-upload-*`, `hpcml-check-*`, `hpcml-help-*`, `hpcml-pack-*`, `hpcml-site-*`, "
    "`hpcml-hop.*`, `hpcml-build-*`"
)
# The modules that create names in places where others may create names too, each with its row of docs/security.md.
CREATES = {
    "cli.help": TEMPORARY, "cli.on_host": TEMPORARY, "cli.pack": TEMPORARY, "images.build": TEMPORARY,
    "remote.routes": TEMPORARY, "runs.forecast": TEMPORARY, "runs.submit": TEMPORARY, "survey.machine": TEMPORARY,
    "remote.receiver": "temporary names of new runs' folders and of replaced files", "remote.server": TEMPORARY,
    "cli.pack_start": "cache of `hpcml.pyz`", "node.scratch": "`$TMPDIR/hpcml_…`, a process's folder",
    "cli.tunnel": "`known_hosts` and the ssh key of an `srun` route, HTML pages with a token",
    "remote.tunnel_server": "a service's `token_file`",  # beside it, in the attempt's secret folder
}  # fmt: skip
MAKES_NAMES = {"mkdtemp", "mkstemp", "mktemp", "TemporaryDirectory", "NamedTemporaryFile", "TemporaryFile", "SpooledTemporaryFile",
               "SharedMemory", "ShareableList", "shm_open"}  # fmt: skip
IN_TMP = re.compile(r"""(?<![\w.])(?:/tmp|/dev/shm|/var/tmp|/run/user)/\w|mktemp\b""")


def _made_names(path: Path) -> set[str]:
    """Return what a module uses that makes names of files for a moment, and texts that begin in a folder of all users."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if (
            isinstance(node, (ast.Name, ast.Attribute))
            and (word := ast.unparse(node).rpartition(".")[2]) in MAKES_NAMES
        ):
            found.add(word)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and IN_TMP.match(node.value):
            found.add(node.value)
    return found


def test_names_in_folders_of_all_users_are_made_by_known_modules() -> None:
    """Each has a row of "Paths and names" in docs/security.md, which says why nobody else can use the name."""
    assert {name for name, path in MODULES.items() if _made_names(path)} == {*CREATES}
    page = (ROOT / "docs/security.md").read_text(encoding="utf-8")
    assert {row for row in CREATES.values() if f"\n| {row} | " not in page} == set()
    shell = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "templates").rglob("*") if path.is_file()}
    assert {name for name, text in shell.items() if IN_TMP.search(text)} == set()


def test_each_listener_has_a_row_in_the_table() -> None:
    rows = {name: value for name, value in vars(listeners).items() if isinstance(value, listeners.Listener)}
    assert sorted(rows.values()) == sorted(listeners.TABLE)
    opened = {
        word for path in MODULES.values() for word in re.findall(r"listeners\.([A-Z][A-Z_]+)\b", path.read_text())
    }
    assert opened & {*rows} == {name for name, row in rows.items() if row.opener == "hpcml"}


# -- who names a program that is started outside an allocation -------------------------------------------------------------

STARTERS = {"run", "stream", "Child", "start_in_background", "interactive", "become"}  # of hpcml.subprocesses
# Commands whose first word stands in other functions of hpcml, each looked at: ssh, srun, sbatch and the like.
FIRST_WORD_ELSEWHERE = {
    ("cli.help", "_show"): "PAGER of the user's shell",
    ("cli.shell", "run"): "srun, or SHELL of the user's shell on the local site",
    ("cli.ssh_config", "run"): "ssh",
    ("remote.login_call", "__init__"): "ssh",
    ("remote.pack_delivery", "_asked"): "ssh",
    ("remote.routes", "_is_missing"): "ssh",
    ("remote.ssh", "alive"): "ssh",
    ("remote.ssh", "cancel"): "ssh",
    ("remote.ssh", "check_shell"): "ssh",
    ("remote.ssh", "forward"): "ssh",
    ("remote.ssh", "run"): "ssh",
    ("remote.tunnel_server", "_silent"): "ssh",
    ("remote.node_ssh", "prepare"): "srun",
    ("remote.tunnel_server", "become"): "srun",
    ("schedulers.slurm", "ask"): "sbatch, squeue and the other commands of Slurm",
    ("doctor.login_checks", "_quotas"): "lfs or quota",
}


def _starts(path: Path) -> list[tuple[str, ast.FunctionDef, ast.Call]]:
    """Return each call by which a module starts a process outside an allocation, with the function around it."""
    tree = ast.parse(path.read_text())
    aliases = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module == "hpcml.subprocesses"
        for alias in node.names
    }
    found = []
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    for function in functions:
        for node in ast.walk(function):
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                name = called.removeprefix("subprocesses.")
                if name in STARTERS and (called != name or name in aliases):
                    found.append((name, function, node))
    return found


def _first_word_is_ours(function: ast.FunctionDef, command: ast.expr) -> bool:
    """Whether the first word of a command stands in the function itself: a text, or hpcml's own Python."""
    if isinstance(command, ast.Name):
        assigned = [
            node.value
            for node in ast.walk(function)
            if isinstance(node, ast.Assign | ast.AnnAssign)
            and node.value is not None
            and command.id in [ast.unparse(one) for one in getattr(node, "targets", [getattr(node, "target", None)])]
        ]
        pairs = [  # as in: command, blocked = ["bash", …], []
            node.value.elts[0]
            for node in ast.walk(function)
            if isinstance(node, ast.Assign)
            and isinstance(node.targets[0], ast.Tuple)
            and isinstance(node.value, ast.Tuple)
            and ast.unparse(node.targets[0].elts[0]) == command.id
        ]
        values = assigned + pairs
        return bool(values) and all(_first_word_is_ours(function, value) for value in values)
    if not isinstance(command, ast.List) or not command.elts:
        return False
    first = command.elts[0]
    if isinstance(first, ast.Starred):
        return _first_word_is_ours(function, first.value)
    return isinstance(first, ast.Constant) or ast.unparse(first) == "sys.executable"


def test_who_starts_a_program_says_who_names_it() -> None:
    """A constant only where the program's word stands in hpcml's code; else it comes from the settings' layers."""
    assert {"subprocesses"} == {
        name
        for name, path in MODULES.items()
        if "subprocess" in _imports(path) and not name.startswith(("node", "kinds")) and name != "cli.pack_start"
    }, "pack_start is the packed program's first file, which starts its own Python"
    others = r"os\.(exec|spawn|posix_spawn|system|popen|fork)|create_subprocess|pty\.(spawn|fork)|\bmultiprocessing\b"
    assert {"cli.main", "cli.pack_start", "subprocesses"} == {
        name
        for name, path in MODULES.items()
        if re.search(others, path.read_text()) and not re.search(r"\bnode\b|^repairs", name)
    }, "these start hpcml itself again"
    looked_at, total = set(), 0
    for name, path in MODULES.items():
        for starter, function, call in _starts(path) if name != "subprocesses" else ():
            total += 1
            place = (name, function.name)
            keywords = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
            assert "program" in keywords, (*place, starter)
            if keywords["program"] in ("HPCML", "TYPED") and not _first_word_is_ours(function, call.args[0]):
                assert place in FIRST_WORD_ELSEWHERE, (*place, starter)
                looked_at.add(place)
    assert looked_at == set(FIRST_WORD_ELSEWHERE)
    assert total > 25, "the calls are found"


def test_who_names_a_program_is_told_by_the_layers_alone() -> None:
    makers = {name for name, path in MODULES.items() if re.search(r"\bNamed\(", path.read_text())}
    assert makers == {"config_trust", "sites.settings_layers"}


def _constant(path: Path, name: str) -> str:
    """Return what a module assigns to a name."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name:
            return ast.unparse(node.value)
    return ""


NO_START = ("node.sweep.forker",)  # argv of a point, which is a fork
NO_SERVER = ("runs.handle",)  # a NamedTuple


def test_words_that_are_out_are_used_nowhere_else() -> None:
    """docs/words.md has the words, and words_allowed.json the files that may still use them."""
    allowed = json.loads(words.ALLOWED.read_text(encoding="utf-8"))
    better = words.words_out()
    problems = [
        f"{path}: {word!r}: write {better[word]!r} (docs/words.md)"
        for word, paths in words.find_words().items()
        for path in paths
        if path not in allowed.get(word, ())
    ]
    assert not problems, "\n".join(problems)


# -- facts are fields ----------------------------------------------------------------------------------------------------

# Names of sentences for people: of an end, a status, a slot of an agent, an answer, a finding, an error.
SENTENCES = {"message", "hint", "last_end", "warnings", "setup_warnings", "sentence", "next_step"}
CUTS = {"startswith", "endswith", "removeprefix", "removesuffix", "partition", "rpartition", "split", "rsplit",
        "splitlines", "find", "rfind", "index", "rindex", "count"}  # fmt: skip
SEARCHES = {"search", "match", "fullmatch", "findall", "finditer"}
# What may look at a sentence all the same, and why that decides nothing.
LOOKS_AT_SENTENCES = {
    ("cli.why", "cause_of"): "the same sentence is not shown twice",
    ("cli.why", "tell_end"): "the same sentence is not shown twice",
    ("node.run_state", "warn"): "the same warning is not given twice",
    ("runs.status", "_with_files"): "the same warning is not given twice",
    ("runs.listing", "_read"): "the same error is not shown twice",
    ("failures.first_script_error", "of_child"): "what torchrun printed of a process of the user's",
}


def _sentences_looked_at(tree: ast.AST) -> list[ast.expr]:
    """Return the expressions that compare a sentence, or a name for one, with a text, cut it, or search in it."""
    names: set[str] = set()

    def is_sentence(node: ast.expr) -> bool:
        if isinstance(node, ast.Name):
            return node.id in names
        if isinstance(node, ast.Subscript):
            return isinstance(node.slice, ast.Constant) and node.slice.value in SENTENCES
        return isinstance(node, ast.Attribute) and node.attr in SENTENCES

    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                one = not (isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple))
                pairs = [(target, node.value)] if one else zip(target.elts, node.value.elts, strict=False)  # type: ignore[attr-defined]
                names |= {name.id for name, value in pairs if isinstance(name, ast.Name) and is_sentence(value)}
    found: list[ast.expr] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            texts = any(isinstance(operator, ast.In | ast.NotIn | ast.Eq | ast.NotEq) for operator in node.ops)
            found += [node] if texts and any(map(is_sentence, (node.left, *node.comparators))) else []
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            cuts = node.func.attr in CUTS and is_sentence(node.func.value)
            searches = node.func.attr in SEARCHES and any(map(is_sentence, node.args))
            found += [node] if cuts or searches else []
    return found


def test_no_code_decides_by_a_sentence_for_people() -> None:
    """A better wording would change what hpcml does: what code decides by has a field (hpcml/failures/end.py)."""
    places = set()
    for name, path in MODULES.items():
        tree = ast.parse(path.read_text())
        for function in ast.walk(tree):
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef) and _sentences_looked_at(function):
                places.add((name, function.name))
    assert places == {*LOOKS_AT_SENTENCES}


@pytest.mark.parametrize(
    "code",
    [
        '"out of memory" in end.message', 'slot.last_end == "killed"', 'status.message.startswith("the time limit")',
        'end.hint.rpartition("s were lost: ")', 're.search("held by", run.message)', 'PATTERN.match(mark["last_end"])',
        'sentence not in state.warnings', 'answer.next_step.split(":")',
        'mark, text = "ok", status.message\nif text.endswith(" status 1"): pass',
    ],
)  # fmt: skip
def test_looks_at_sentences_are_found(code: str) -> None:
    assert _sentences_looked_at(ast.parse(code))
    assert not _sentences_looked_at(ast.parse("end.memory_limit == MemoryLimit.NODE and not end.message"))


def test_no_rule_knows_a_line_that_hpcml_writes() -> None:
    """What hpcml knows has a field, as the ends of workers in their nodes' files."""
    from hpcml.failures.rules import RULES

    assert not [rule.name for rule in RULES if re.search(r"hpcml: ", rule.pattern)]


def _bare_words(tree: ast.AST) -> list[ast.Compare]:
    """Return comparisons of a phase or a state with a word of hpcml.states that is no member."""
    words = {"phase": {*Phase}, "state": {*State}, "job_state": {*State}}
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            sides = (node.left, *node.comparators)
            wanted = [words.get(side.attr, set()) for side in sides if isinstance(side, ast.Attribute)]
            texts = {one.value for side in sides for one in ast.walk(side) if isinstance(one, ast.Constant)}
            found += [node] if any(texts & kind for kind in wanted) else []
    return found


def test_phases_and_states_are_members() -> None:
    for name, path in MODULES.items():
        assert not _bare_words(ast.parse(path.read_text())), name
    for code in ('run.phase == "ended"', 'end.state in ("FAILED", "TIMEOUT")', '"CANCELLED" != status.state'):
        assert _bare_words(ast.parse(code))
    assert not _bare_words(
        ast.parse('run.phase == Phase.ENDED or row.state == "pruned" or mark["state"] == "starting"')
    )


def test_every_state_of_a_job_means_one_thing() -> None:
    """The words are Slurm's; those of runs alone are no job's."""
    groups = [*PENDING, *ACTIVE, *ENDED, State.REFUSED, State.PREPARED, State.UNREADABLE]
    assert sorted(groups) == sorted(State)
    assert {*Phase} - {*STATE_BY_PHASE} == {Phase.ENDED}


# Texts of users' programs and hints about them; what runs in an image without hpcml; what a worker's nanny hands over.
_SAY_VENDOR = {
    "failures/rules.py",
    "failures/library_rules.py",
    "node/hardware/python_environment.py",
    "kinds/dask/node/worker_environment.py",
}


def test_one_module_and_one_row_name_the_vendor_of_gpus() -> None:
    """A second vendor is a module beside nvidia.py and a row in gpu_vendor.py."""
    words = re.compile(r"NVML|nvidia-smi|CUDA_VISIBLE_DEVICES|(?<![\w-])--nv\b")
    found = {path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py") if words.search(path.read_text())}
    vendor = {"gpu_vendor.py", "node/hardware/nvidia.py", "node/hardware/nvidia_samples.py"}
    assert found == vendor | _SAY_VENDOR
