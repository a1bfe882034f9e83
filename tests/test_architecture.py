"""The rules that keep the house in order: who imports whom, who touches the world."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import jinja2
import jinja2.nodes
import pytest

from hpcml import render

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "hpcml"

# A module may import those of earlier levels, and of its own level only what is named in SIDEWAYS.
LEVELS = (
    {"terminal"},
    {"errors", "units", "layout", "entering", "files", "last_words"},
    {"answers"},
    {"remote_protocol", "config", "shell", "assets", "sif"},
    {"schema", "images"},
    {"build_failures"},
    {"sites", "jobs", "image_build", "image_check", "ssh_config", "ssh_login", "tunnel_probe"},
    {"inside.settings", "ssh"},
    {"workers", "container", "staging"},
    {"plan"},
    {"render", "runs", "slurm"},
    {"snapshot"},
    {"submit", "watch"},
    {"progress", "tunnel_remote", "tunnel_routes", "remote", "remote_serve"},
    {"tunnel"},
    {"tunnel_local"},
    {"commands"},
    {"submit_commands"},
    {"fabric", "image_commands", "jupyter_commands", "tunnel_commands", "remote_commands"},
    {"cli"},
    {"__main__"},
)
NODE_SIDE = {"errors", "units", "layout", "entering", "last_words", "terminal", "files"}
NODE_PACKAGES = {"dask", "distributed", "tornado", "psutil", "cryptography"}
GPU_PACKAGES = {
    "distributed_ucxx",
    "ucxx",
    "dask_cuda",
    "pynvml",
    "rmm",
    "cupy",
    "cuda",
}  # imported in functions, where they are there
JUPYTER_PACKAGES = {
    "jupyter_core",
    "jupyter_server",
    "jupyterlab",
    "traitlets",
    "ipykernel",
    "zmq",
}  # in functions too, of hpcml[jupyter]
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


def _own_imports(path: Path) -> set[str]:
    """Return the modules of hpcml that a module imports, without the package's name."""
    known = _modules()
    found = set()
    for name in _imports(path):
        parts = name.split(".")
        if parts[0] == "hpcml":
            candidates = [".".join(parts[1:end]) for end in range(len(parts), 1, -1)]
            found |= {next((candidate for candidate in candidates if candidate in known), "hpcml")}
    return found


def _packages(path: Path) -> set[str]:
    return {name.partition(".")[0] for name in _imports(path)} - {"hpcml"}


MODULES = _modules()


def test_every_module_of_the_submitting_side_has_a_level() -> None:
    levelled = {name for level in LEVELS for name in level}
    outside = {name for name in MODULES if not name.startswith("inside")} - {"hpcml", "driver"}
    assert outside <= levelled, outside - levelled
    assert levelled <= MODULES.keys()


@pytest.mark.parametrize("name", [name for level in LEVELS for name in level])
def test_imports_go_in_one_direction(name: str) -> None:
    level = next(index for index, names in enumerate(LEVELS) if name in names)
    allowed = {"hpcml"}.union(*LEVELS[:level])
    assert _own_imports(MODULES[name]) <= allowed


@pytest.mark.parametrize("name", [name for name in MODULES if name == "driver" or name.startswith("inside")])
def test_the_node_side_needs_nothing_that_the_submitting_side_has(name: str) -> None:
    own = {module for module in _own_imports(MODULES[name]) if not module.startswith("inside")}
    assert own <= NODE_SIDE
    assert _packages(MODULES[name]) <= set(sys.stdlib_module_names) | NODE_PACKAGES | GPU_PACKAGES | JUPYTER_PACKAGES


@pytest.mark.parametrize("name", sorted(MODULES))
def test_only_two_modules_start_processes(name: str) -> None:
    starts = {"subprocess", "multiprocessing", "pty"} & _packages(MODULES[name])
    assert not starts or name in ("shell", "inside.script")


@pytest.mark.parametrize("name", sorted(MODULES))
def test_only_the_rim_reads_the_environment(name: str) -> None:
    tree = ast.parse(MODULES[name].read_text())
    reads = [
        node.lineno for node in ast.walk(tree) if isinstance(node, ast.Attribute) and node.attr in ("environ", "getenv")
    ]
    assert not reads or name in ("config", "driver") or name.startswith("inside")


@pytest.mark.parametrize("name", ["units", "errors", "layout", "plan", "render"])
def test_what_decides_neither_acts_nor_reads_a_clock(name: str) -> None:
    forbidden = {
        "os",
        "io",
        "shutil",
        "socket",
        "subprocess",
        "tempfile",
        "time",
        "datetime",
        "random",
        "secrets",
        "uuid",
    }
    assert not _packages(MODULES[name]) & forbidden
    tree = ast.parse(MODULES[name].read_text())
    acts = {
        "open",
        "read_text",
        "write_text",
        "read_bytes",
        "write_bytes",
        "mkdir",
        "unlink",
        "stat",
        "exists",
        "is_file",
    }
    called = {
        node.func.attr for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    }
    called |= {
        node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    assert not called & acts


def test_one_module_prints() -> None:
    """What somebody else could have written reaches the terminal through one function, which shows its controls."""
    for name, path in MODULES.items():
        calls = {node.func.id for node in ast.walk(ast.parse(path.read_text()))
                 if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}  # fmt: skip
        assert "print" not in calls or name == "terminal" or name.startswith("inside"), name


@pytest.mark.parametrize("name", sorted(MODULES))
def test_a_module_begins_with_one_sentence(name: str) -> None:
    docstring = ast.get_docstring(ast.parse(MODULES[name].read_text())) or ""
    first = docstring.partition("\n\n")[0].strip()
    assert first
    assert first[-1] == "."


@pytest.mark.parametrize("command", [["--help"], ["submit", "--help"], ["--version"], ["ls"], ["site", "ls"]])
def test_what_is_asked_for_often_imports_little(command: list[str], tmp_path: Path) -> None:
    code = ("import sys, json; from hpcml.cli import main; main(json.loads(sys.argv[1])); "
            "print(json.dumps(sorted(sys.modules)), file=sys.stderr)")  # fmt: skip
    done = subprocess.run([sys.executable, "-c", code, json.dumps(command)], env={"HOME": str(tmp_path), "PATH": "/usr/bin"},
                          capture_output=True, text=True, check=True, cwd=tmp_path)  # fmt: skip
    loaded = {module.partition(".")[0] for module in json.loads(done.stderr.splitlines()[-1])}
    assert not loaded & {"dask", "distributed", "rich", "jinja2", "numpy", "cryptography", "tornado"}


def test_every_value_in_a_template_passes_a_filter() -> None:
    environment = jinja2.Environment()  # noqa: S701 - only parsed
    for path in sorted((ROOT / "templates").glob("*.j2")):
        for output in environment.parse(path.read_text()).find_all(jinja2.nodes.Output):
            for node in output.nodes:
                if not isinstance(node, jinja2.nodes.TemplateData):
                    place = f"{path.name}:{node.lineno}"
                    assert isinstance(node, jinja2.nodes.Filter), place
                    assert node.name in FILTERS, place


def test_the_renderer_has_exactly_those_filters() -> None:
    own = render._environment(()).filters.keys() - jinja2.Environment().filters.keys()  # noqa: S701 - only looked at
    assert own == FILTERS
