"""What a node imports for its workers before a script starts: what its own text says, and nothing that could hurt."""

from __future__ import annotations

import ast
import asyncio
import importlib
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hpcml.kinds.dask.node import dask_scheduler, dask_worker, gpus, script_imports
from hpcml.kinds.dask.node.messages import IMPORT
from hpcml.kinds.dask.node.script import replacements
from hpcml.node.script import launcher
from hpcml.node.tasks import process as tasks_process
from hpcml.paths import RunPaths
from hpcml.settings import Gpu
from hpcml.workload_forms import Form
from node_settings import settings as settings_of

IN_A_FUNCTION = "def fit():\n    from cuml.dask.cluster import KMeans\n    import cupy as cp"
SEES_VARIABLE = "import os; seen = os.environ['RAPIDS_NO_INITIALIZE']\n"


def wanted(folder: Path, text: str | bytes, *, form: Form = Form.SCRIPT) -> list[str]:
    script = folder / "script.py"
    script.write_bytes(text if isinstance(text, bytes) else text.encode())
    return script_imports.early(script_imports.of_script(settings_of(code__script=str(script), code__form=form)))


@pytest.mark.parametrize(("text", "found"), [
    ("import dask.dataframe as dd", ["dask.dataframe"]),
    ("from dask import dataframe", ["dask.dataframe"]),
    ("from dask.dataframe import read_csv", ["dask.dataframe"]),
    ("def late():\n    import dask.array", ["dask.array"]),
    ("from dask_ml.cluster import KMeans", ["dask.array", "dask.dataframe"]),
    ("import dask_cudf", ["dask.dataframe"]),
    ("import dask\nfrom dask.distributed import Client\nimport dask_mlx, numpy, mine", []),
    ("from . import dask_cudf\nfrom .dask_ml import x", []),
    ("text = 'import dask.dataframe'  # import dask.array", []),
    ("import dask.dataframe\nfrom", []),
    (b"\xff\xfe\x00import", []),
    ("import dask.dataframe\n" + "#" * script_imports.LARGEST_SCRIPT, []),
])  # fmt: skip
def test_a_script_s_own_words_count(tmp_path: Path, text: str | bytes, found: list[str]) -> None:
    assert wanted(tmp_path, text) == found


GPU = Gpu(1, "", -1.0, None, False, False, None, ("cupy",), "", False, None, -1.0, "", False, 0, ())


def may_use_cudf(script: Path, gpu: Gpu = GPU, form: Form = Form.SCRIPT) -> bool:
    settings = settings_of(code__script=str(script), code__form=form)
    return script_imports.may_use_cudf(script_imports.of_script(settings), gpu)


@pytest.mark.parametrize(("text", "may"), [
    ("import os, cupy\nimport dask.array as da\nfrom dask.distributed import Client, wait\nimport numpy.linalg", False),
    ("import dask.dataframe as dd", True),
    ("from cuml.dask.cluster import KMeans", True),
    ("import importlib", True),
    ("print('no import at all')", True),
    ("import os\nfrom", True),
])  # fmt: skip
def test_only_a_script_that_shows_no_use_of_cudf_starts_without_it(tmp_path: Path, text: str, may: bool) -> None:
    (tmp_path / "script.py").write_text(text)
    assert may_use_cudf(tmp_path / "script.py") is may


def test_settings_that_need_cudf_import_it_for_any_script(tmp_path: Path) -> None:
    (script := tmp_path / "script.py").write_text("import cupy")
    assert not may_use_cudf(script)
    assert may_use_cudf(script, GPU._replace(cudf_spill=True))
    assert may_use_cudf(script, GPU._replace(rmm_allocator_libs=("torch",)))
    assert may_use_cudf(script, form=Form.MODULE)
    assert may_use_cudf(tmp_path / "none.py")


def test_without_cudf_its_plugin_goes_and_its_spilling_stays_off(monkeypatch: pytest.MonkeyPatch) -> None:
    plugin, other = type("CUDFSetup", (), {})(), type("RMMSetup", (), {})()
    monkeypatch.setenv("CUDF_SPILL", "on")
    monkeypatch.setenv("CUDF_SPILL_STATS", "1")
    monkeypatch.setitem(sys.modules, "cudf", sys)
    assert gpus.needed([plugin, other]) == (plugin, other)
    monkeypatch.delitem(sys.modules, "cudf")
    assert gpus.needed([plugin, other]) == (other,)
    assert (os.environ["CUDF_SPILL"], os.environ["CUDF_SPILL_STATS"]) == ("off", "0")


def test_what_is_no_python_file_is_not_looked_at(tmp_path: Path) -> None:
    assert wanted(tmp_path, "import dask.dataframe", form=Form.NOTEBOOK) == []


def test_what_cannot_be_imported_is_left_to_the_graph_that_needs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "imported_early_a.py").write_text("")
    (tmp_path / "imported_early_b.py").write_text("raise RuntimeError('no GPU')")
    monkeypatch.syspath_prepend(tmp_path)
    script_imports.import_all(["imported_early_b", "imported_early_a"], "before the workers started")
    told = capsys.readouterr()
    assert told.out.startswith(
        "hpcml: imported_early_b could not be imported before the workers started (RuntimeError).\nhpcml: imported these modules before the workers started, in "
    )
    assert told.out.endswith(" s: imported_early_a\n")
    assert told.err == ""


@pytest.mark.parametrize(("text", "found"), [
    ("import cuml", ["cuml"]),
    (IN_A_FUNCTION, ["cupy", "cuml", "cuml.dask"]),
    ("from dask_cudf import read_csv", ["dask_cudf"]),
    ("import cumla, mine.cuml\nfrom .cuml import x", []),
])  # fmt: skip
def test_gpu_libraries_come_late(tmp_path: Path, text: str, found: list[str]) -> None:
    (script := tmp_path / "script.py").write_text(text)
    names = script_imports.of_script(settings_of(code__script=str(script), code__form=Form.SCRIPT))
    assert script_imports.late(names) == found


def test_scheduler_and_workers_import_what_a_gpu_script_imports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (script := tmp_path / "script.py").write_text("import cuml, dask.array\n")
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules/cuml.py").write_text(SEES_VARIABLE)
    monkeypatch.syspath_prepend(tmp_path / "modules")
    monkeypatch.delitem(sys.modules, "cuml", raising=False)
    monkeypatch.delenv("RAPIDS_NO_INITIALIZE", raising=False)
    sent = []
    one = SimpleNamespace(stream_comms={"tls://a": 0}, worker_send=lambda *told: sent.append(told))
    other = SimpleNamespace(stream_comms={"tls://b": 0}, worker_send=lambda *told: sent.append(told))
    context: Any = SimpleNamespace(settings=settings_of(code__script=str(script), code__form=Form.SCRIPT))
    schedulers: Any = [one, other]
    asyncio.run(dask_scheduler._import_early(context, schedulers))
    order = {"op": IMPORT, "modules": ["cuml"]}
    assert sent == [("tls://a", order), ("tls://b", order)]
    assert sys.modules["cuml"].seen == "1"
    del sys.modules["cuml"]
    with ThreadPoolExecutor(1) as tasks:
        worker: Any = SimpleNamespace(executors={"default": tasks})
        dask_worker._import_early(worker, order["modules"])
        first = tasks.submit(lambda: "cuml" in sys.modules)
        assert first.result(60)
    assert capsys.readouterr().out.count("these modules while the script started") == 3


@pytest.mark.parametrize(("text", "beside", "is_early"), [
    ('"""What it does."""\nfrom __future__ import annotations\nimport os, numpy\nfrom dask.distributed import Client', (), True),
    ("import os\nos.environ['DASK_X'] = '1'\nimport distributed", (), False),
    ("import mine\nimport distributed", ("mine.py",), False),
    ("import not_installed_anywhere\nimport distributed", (), False),
    ("import of_a_module_system\nimport distributed", (), False),  # it may set variables that Dask or NumPy read
    ("import joblib\nimport distributed", (), True),
    ("import of_the_user\nimport distributed", (), False),
    ("import distributed", ("queue.py",), False),
    ("import dask.array as da", (), True),
    ("import numpy", (), False),
    ("import numpy\nimport seconds_long.part", (), True),
    ("import seconds_long.part", ("seconds_long.py",), False),
])  # fmt: skip
def test_a_script_s_interpreter_imports_dask_early_where_that_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, beside: tuple[str, ...], is_early: bool
) -> None:
    files = [
        "user/imported_early_c.py",
        "user/of_the_user.py",
        "modules/of_a_module_system/__init__.py",
        "modules/any-1.dist-info/RECORD",
        "modules/seconds_long/__init__.py",
        "modules/seconds_long/part.py",
    ]
    for name in (*files, *(f"code/{name}" for name in beside), "code/script.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    monkeypatch.syspath_prepend(tmp_path / "modules")
    monkeypatch.syspath_prepend(tmp_path / "user")
    monkeypatch.delitem(sys.modules, "imported_early_c", raising=False)
    monkeypatch.setattr(replacements, "_EARLY", dict.fromkeys(replacements._EARLY, "imported_early_c"))
    monkeypatch.setattr(replacements, "_SLOW", {"numpy", "seconds_long"})
    monkeypatch.delitem(sys.modules, "seconds_long.part", raising=False)
    replacements.import_early(ast.parse(text), str(tmp_path / "code"))
    assert bool({"imported_early_c", "seconds_long.part"} & sys.modules.keys()) == is_early


COUNTS = "import sys\nsys.attempts += 1\nraise ImportError(f'attempt {sys.attempts}')\n"


def test_a_script_gets_the_error_of_an_early_import_that_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others come of the second attempt at an import, such as of pandas; a third one is the script's second."""
    for name in ("any-1.dist-info", "seconds_long"):
        (tmp_path / name).mkdir()
    (tmp_path / "seconds_long/__init__.py").write_text("")
    (tmp_path / "seconds_long/part.py").write_text(COUNTS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    monkeypatch.setattr(sys, "attempts", 0, raising=False)
    monkeypatch.setattr(replacements, "_SLOW", {"seconds_long"})
    for name in ("seconds_long", "seconds_long.part"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    replacements.import_early(ast.parse("import seconds_long.part.more"), str(tmp_path / "code"))
    assert sys.attempts == 0, "no folder of a script"  # type: ignore[attr-defined]
    (tmp_path / "code").mkdir()
    replacements.import_early(ast.parse("import seconds_long.part.more"), str(tmp_path / "code"))
    for attempt in (1, 2):
        with pytest.raises(ImportError, match=f"attempt {attempt}"):
            importlib.import_module("seconds_long.part")


@pytest.mark.parametrize("begins", [True, False])
def test_a_script_that_waits_begins_at_the_supervisor_s_word(tmp_path: Path, begins: bool) -> None:
    script = tmp_path / "script.py"
    script.write_text(f"import os\nprint('{launcher.BEGIN}' in os.environ, flush=True)\n")
    wait, begin = os.pipe()
    environment = os.environ | {launcher.BEGIN: str(wait)}
    process = subprocess.Popen([sys.executable, "-c", tasks_process._START, str(script)], env=environment,
                               stdout=subprocess.PIPE, text=True, pass_fds=(wait,))  # fmt: skip
    os.close(wait)
    if begins:
        os.write(begin, b"\n")
    os.close(begin)
    out, _ = process.communicate(timeout=120)
    assert (out, process.returncode) == (("False\n", 0) if begins else ("", 1))


def test_a_process_with_another_python_opens_no_connection_to_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DASK_SCHEDULER_ADDRESS", "tls://1.2.3.4:5")
    attempt = RunPaths(tmp_path).attempt(0)
    attempt.directory.mkdir(parents=True)
    attempt.link.write_text(json.dumps({"versions": {"python": "2.7.1"}}))
    monkeypatch.setattr("hpcml.node.context.load", lambda: SimpleNamespace(attempt=attempt))
    assert not replacements.install_in_child([])
    assert "in this process but 2.7.1 in the run" in capsys.readouterr().err
    assert "DASK_SCHEDULER_ADDRESS" not in os.environ


BELOW = """
env -u HPCML_PYTHONPATH MINE=script sh -c 'MINE=child "$0" -c "$1"; true' "$0" "$1"
true
"""


def test_a_child_s_variables_are_compared_with_those_of_the_script_s_start() -> None:
    """Not with those of the supervisor, which started it."""
    code = "from hpcml.node.script import interpreter_state; print(interpreter_state._environment_of_script()['MINE'])"
    environment = os.environ | {"HPCML_RUN_DIR": "/run", "HPCML_PYTHONPATH": "", "MINE": "supervisor"}
    command = ["sh", "-c", BELOW, sys.executable, code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=True)
    assert done.stdout == "script\n", done.stderr
