"""What a script's workers get of it: the lines of a job script, and the statements of its module."""

from __future__ import annotations

import ast
import asyncio
import os
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dask.config
import pytest
from distributed.exceptions import WorkerStartTimeoutError

from hpcml.kinds.dask.node import main_in_workers
from hpcml.kinds.dask.node.script import cluster_options_to_workers, run_cluster, state_to_workers
from tests.said import in_order, says

HOME = {"HOME": "/home/a", "OLD": "1", "PATH": "/bin"}


@pytest.mark.parametrize(("lines", "expected"), [
    (["export SCALE=10"], {"SCALE": "10"}),
    (["export A=1 B='x y'", "# nothing", ""], {"A": "1", "B": "x y"}),
    (["A=1", "B=$A export=2"], {}),
    (["A=1", "export A"], {"A": "1"}),
    (["OLD=2"], {"OLD": "2"}),
    (["export OLD"], {"OLD": "1"}),
    (["export PATH=/x:$PATH", "export LIB=${HOME}/lib", "export LIB2=$LIB/2"],
     {"PATH": "/x:/bin", "LIB": "/home/a/lib", "LIB2": "/home/a/lib/2"}),
])  # fmt: skip
def test_exports_of_a_job_script(lines: list[str], expected: dict[str, str]) -> None:
    assert cluster_options_to_workers.exports(lines, HOME) == (expected, [])


@pytest.mark.parametrize("line", [
    "module load gdal", "export A=$(date)", "export A=`date`", "cd /x && export A=1", "export A=${B:-1}", "export A='$HOME'",
    "export A=~/x", "export A='",
])  # fmt: skip
def test_lines_that_need_a_shell_are_named(line: str) -> None:
    variables, lacking = cluster_options_to_workers.exports([line, "export B=1"], HOME)
    assert variables == {"B": "1"}
    assert [words.partition(" (set runtime")[0] for words in lacking] == [f"the job script's line '{line}'"]


@pytest.mark.parametrize(("directives", "gpus", "named"), [
    (["--gres=gpu:1"], False, True), (["--gpus-per-node=2"], False, True), (["--gres=gpu:1"], True, False), (["--qos=high"], False, False),
])  # fmt: skip
def test_gpus_of_a_job_script_are_named_in_a_run_of_cpus(directives: list[str], *, gpus: bool, named: bool) -> None:
    options = {"job_extra_directives": directives}
    assert bool(cluster_options_to_workers.of_job_script(options, "slurm", {}, gpus=gpus)[1]) is named


def test_statements_of_a_script(subtests: pytest.Subtests) -> None:
    table = [
        (main_in_workers.is_definition, True, ["import os", "X: int = 3", "A, B = 1, 2", "P = namedtuple('P', 'x')", "f = lambda: g()",
            "HERE = Path(__file__).parent", "N = int(os.environ.get('N', 1))", "try:\n import a\nexcept ImportError:\n a = None"]),
        (main_in_workers.is_definition, False, ["client = Client()", "main()", "x = [f() for _ in y]", "for i in x: pass", "if f(): x = 1"]),
        (main_in_workers.has_effects, True, ["pd.set_option('a', 1)", "options.x = 1", "plt.rcParams['a'] = 1", "@register('a')\nclass A: pass",
            "if X:\n random.seed(1)"]),
        (main_in_workers.has_effects, False, ["print(1)", "sys.path.insert(0, 'a')", "os.environ['A'] = '1'", "x = f()", "names.append(1)",
            "def f(): random.seed(1)", "if __name__ == '__main__':\n random.seed(1)"]),
    ]  # fmt: skip
    for judge, expected, texts in table:
        for text in texts:
            with subtests.test(judge=judge.__name__, text=text):
                assert judge(ast.parse(text).body[0]) is expected


def test_a_script_without_a_guard_is_not_run_again(tmp_path: Path) -> None:
    """Its classes are found all the same, by several tasks at once."""
    script = tmp_path / "script.py"
    script.write_text("import os\nN = 2\nclass Model:\n    n = N\nopen('run', 'w')\n1 / 0\nx = Model()\n")
    module = main_in_workers.ScriptModule(str(script), "")
    with ThreadPoolExecutor(4) as pool:
        (found,) = set(pool.map(lambda _: module.Model, range(4)))
    assert (found.n, found.__module__) == (2, "__mp_main__")
    with pytest.raises(AttributeError, match="has no attribute 'x'"):
        getattr(module, "x")  # noqa: B009 - mypy knows of none


def test_a_constant_of_what_is_not_repeated_is_left_out(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A worker takes no part in what a script does with its cluster; it has all else."""
    script = tmp_path / "script.py"
    script.write_text(
        "from __future__ import annotations\nworkers = set(client.nthreads())\nCOUNT = len(workers)\nFACTOR = 2\n"
        "def f(x: Unknown) -> int:\n    return FACTOR * x\n"
    )
    found = main_in_workers.definitions(str(script))
    assert (found["f"](3), "COUNT" in found) == (6, False)
    assert re.search(in_order("COUNT =", "worker (NameError"), capfd.readouterr().err)


def test_what_a_script_asks_of_the_run_s_cluster() -> None:
    """It waits for no more workers than the run has; its notes show no value that may be secret."""

    async def count() -> int:
        return 3

    cluster: Any = SimpleNamespace(n_workers=3, asked=4, _count=count)
    asyncio.run(run_cluster.RunCluster._wait_for_workers(cluster, 4, 1.0))
    with pytest.raises(WorkerStartTimeoutError):
        asyncio.run(run_cluster.RunCluster._wait_for_workers(cluster, 5, 0.01))
    values = {"n_workers": 4, "memory_limit": "4GB", "env": {"TOKEN": "s"}, "name": "a b"}
    assert run_cluster._call("Cluster", (), values) == "Cluster(n_workers=4, memory_limit='4GB', env=…, name=…)"


def test_an_error_whose_traceback_is_text_is_an_error() -> None:
    module = SimpleNamespace(clean_exception=lambda error, traceback, **_: (error, traceback))
    run_cluster._take_errors_without_traceback(module)
    error = RecursionError("too deep")
    assert module.clean_exception(error, "File a.py, line 1") == (error, None)


@pytest.mark.parametrize(("last", "given"), [(b"umask", 1), (b"", 0), (b"now", 0)])
def test_what_a_script_takes_back_is_handed_over_too(last: bytes, given: int, monkeypatch: pytest.MonkeyPatch) -> None:
    gave: list[object] = []

    async def give(_: object, what: object, **__: object) -> list[str]:
        gave.append(what)
        return []

    async def less(_: object) -> list[str]:
        return []

    one: Any = object.__new__(cluster_options_to_workers.Opening)
    one.handover, one.lacking, one.shared, one.owner = state_to_workers.Handover(), [], False, lambda: None
    one._packed, one._of_others, one._less_memory = lambda: b"now", list, less
    monkeypatch.setattr(cluster_options_to_workers, "_last", (last, state_to_workers.Handover(umask=0)))
    monkeypatch.setattr(state_to_workers, "give", give)
    asyncio.run(one.hand_over(None))
    assert len(gave) == given


def test_a_worker_s_process_is_its_own_again_after_the_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLOUR", "the worker's")
    monkeypatch.chdir("/")
    worker = SimpleNamespace(local_directory="/tmp", memory_manager=None)
    plugin = state_to_workers.HandoverPlugin(
        state_to_workers.Handover(environment={"COLOUR": "the script's"}, folder=str(tmp_path))
    )
    asyncio.run(plugin.setup(worker))
    assert (os.environ["COLOUR"], Path.cwd()) == ("the script's", tmp_path)
    plugin.teardown(worker)
    assert (os.environ["COLOUR"], str(Path.cwd())) == ("the worker's", "/")


@pytest.mark.parametrize(("backend", "method", "given", "expected"), [
    ("auto", None, {}, {"array.backend": "cupy", "dataframe.backend": "cudf", "dataframe.shuffle.method": "tasks"}),
    ("gpu", "p2p", {}, {"array.backend": "cupy", "dataframe.backend": "cudf"}),
    ("auto", None, {"DASK_DATAFRAME__BACKEND": "pandas"}, {"array.backend": "cupy"}),
    ("auto", None, {"DASK_DATAFRAME__BACKEND": "cudf"}, {"array.backend": "cupy", "dataframe.shuffle.method": "tasks"}),
    ("cpu", None, {}, {"array.backend": "numpy", "dataframe.backend": "pandas"}),
])  # fmt: skip
def test_tables_of_gpus_are_shuffled_by_tasks(
    backend: str, method: str | None, given: dict[str, str], expected: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        run_cluster, "load", lambda: SimpleNamespace(settings=SimpleNamespace(workers=SimpleNamespace(gpu=())))
    )
    monkeypatch.setattr(run_cluster, "find_spec", lambda _: True)
    for name, value in {"HPCML_RUN_DIR": "/run", **given}.items():
        monkeypatch.setenv(name, value)
    with dask.config.set({"dataframe.shuffle.method": method}):
        assert run_cluster._backends(backend) == expected


@pytest.mark.parametrize(
    ("asked", "nodes", "threads", "gpu", "point", "expected"),
    [
        (4, 1, 0, (), "", ("1 worker", "one thread per CPU", "for 4 ", "--set workers.per_node=4)")),
        (7, 2, 3, (), "", ("2 workers", "3 threads each", "for 8 ", "--set workers.per_node=4)")),
        (1, 1, 2, (), "", ("1 worker", "(2 threads each)")),
        (4, 1, 1, ("a",), "", ("1 GPU worker", "(1 thread each)")),
        (4, 1, 1, (), '{"workers": 1}', ("1 worker", "(1 thread each)")),
        (None, 1, 1, (), "", ("1 worker", "(1 thread each)")),
    ],
)  # fmt: skip
def test_the_note_of_a_replaced_cluster_has_the_threads_and_the_option_for_more_workers(
    asked: int | None, nodes: int, threads: int, gpu: tuple[str, ...], point: str, expected: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    workers = SimpleNamespace(gpu=gpu, threads=threads)
    run = SimpleNamespace(workers=workers, job=SimpleNamespace(nodes=nodes), worker_count=nodes)
    monkeypatch.setattr(run_cluster, "load", lambda: SimpleNamespace(settings=run))
    monkeypatch.setattr(run_cluster, "_place", lambda: ("s.py", 3, True))
    monkeypatch.setattr(run_cluster, "_noted", set())
    if point:
        monkeypatch.setenv("HPCML_POINT", point)
    run_cluster._note_run("LocalCluster(…)", {"n_workers": asked})
    note = capsys.readouterr().err
    assert note == says("LocalCluster(…)", *expected)
    assert ("--set" in note) == ("--set" in expected[-1])


SHUFFLE = "dataframe.shuffle.method"


@pytest.mark.parametrize(
    ("before", "later", "backends", "expected"),
    [(None, None, "gpu cpu", None), (None, None, "gpu auto", "tasks"), (None, None, "gpu cpu gpu", "tasks"),
     (None, "p2p", "gpu cpu", "p2p"), ("tasks", None, "gpu cpu", "tasks"), (None, None, "gpu", "tasks")],
)  # fmt: skip
def test_a_later_connect_takes_back_the_shuffle_of_an_earlier_one_but_not_the_script_s(
    before: str | None, later: str | None, backends: str, expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        run_cluster, "load", lambda: SimpleNamespace(settings=SimpleNamespace(workers=SimpleNamespace(gpu=())))
    )
    plugins: list[run_cluster.BackendPlugin] = []
    client = SimpleNamespace(asynchronous=False, cluster=SimpleNamespace(asked=0), register_plugin=plugins.append)
    monkeypatch.setattr(run_cluster, "Client", lambda: client)
    monkeypatch.setattr(run_cluster, "find_spec", lambda _: True)
    monkeypatch.setattr(run_cluster, "_backend", {})
    monkeypatch.setenv("HPCML_RUN_DIR", "/run")
    with dask.config.set({SHUFFLE: before, "array.backend": "numpy", "dataframe.backend": "pandas"}):
        for number, backend in enumerate(backends.split()):
            if number and later:
                dask.config.set({SHUFFLE: later})
            run_cluster.connect({}, {}, backend)
        assert dask.config.get(SHUFFLE) == expected
        for plugin in [] if later else plugins:  # of a worker, which does not have the script's method
            plugin.setup(None)
        assert dask.config.get(SHUFFLE) == expected
