"""What scheduler and workers import while a script starts: what its own text says, and nothing that could hurt it."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hpcml.node.roles import early_imports


def wanted(folder: Path, text: str | bytes, *, gpu: str = "", form: str = "", service: str = "") -> list[str]:
    script = folder / "script.py"
    script.write_bytes(text if isinstance(text, bytes) else text.encode())
    settings: Any = SimpleNamespace(
        script=str(script), form=form, service=service, gpu=SimpleNamespace(mode=gpu) if gpu else None
    )
    return early_imports.wanted(settings)


@pytest.mark.parametrize(("text", "gpu", "found"), [
    ("import dask.dataframe as dd", "", ["dask.dataframe"]),
    ("from dask import dataframe", "", ["dask.dataframe"]),
    ("from dask.dataframe import read_csv", "", ["dask.dataframe"]),
    ("def late():\n    import dask.array", "", ["dask.array"]),
    ("from dask_ml.cluster import KMeans", "", ["dask.array", "dask.dataframe"]),
    ("import dask_cudf", "dask", ["dask.dataframe", "dask_cudf"]),
    ("try:\n    import dask_cudf\nexcept ImportError:\n    pass", "", ["dask.dataframe"]),
    ("import dask_cudf", "polars", ["dask.dataframe"]),
    ("import dask.dataframe", "dask", ["dask.dataframe", "dask_cudf"]),
    ("import dask.dataframe", "polars", ["dask.dataframe"]),
    ("import dask.array", "dask", ["dask.array"]),
    ("import dask\nfrom dask.distributed import Client\nimport dask_mlx, numpy, mine", "dask", []),
    ("from . import dask_cudf\nfrom .dask_ml import x", "", []),
    ("text = 'import dask.dataframe'  # import dask.array", "", []),
    ("import dask.dataframe\nfrom", "", []),
    (b"\xff\xfe\x00import", "", []),
    ("import dask.dataframe\n" + "#" * early_imports.LARGEST, "", []),
])  # fmt: skip
def test_a_script_s_own_words_count(tmp_path: Path, text: str | bytes, gpu: str, found: list[str]) -> None:
    assert wanted(tmp_path, text, gpu=gpu) == found


def test_what_is_no_python_file_is_not_looked_at(tmp_path: Path) -> None:
    text = "import dask.dataframe"
    assert wanted(tmp_path, text, form="notebook") == wanted(tmp_path, text, service="jupyter") == []
    settings: Any = SimpleNamespace(script=str(tmp_path / "none.py"), form="", service="", gpu=None)
    assert early_imports.wanted(settings) == []


def test_workers_are_asked_and_the_process_imports_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "imported_early_a.py").write_text("")
    (tmp_path / "imported_early_b.py").write_text("raise RuntimeError('no GPU')")
    monkeypatch.syspath_prepend(tmp_path)
    modules = ["imported_early_none", "imported_early_b", "imported_early_a"]
    sent: list[tuple[str, dict[str, Any]]] = []
    scheduler = SimpleNamespace(workers={"one": 1, "two": 2}, worker_send=lambda *words: sent.append(words))

    async def ordered() -> None:
        with monkeypatch.context() as waiting:
            waiting.setattr(early_imports, "SENT", 3600.0)
            early_imports.begin(modules)
            for _ in range(3):
                await asyncio.sleep(0)
        assert "imported_early_a" not in sys.modules  # Dask sends first, in turns of the loop
        early_imports.begin(modules, [scheduler])
        await asyncio.sleep(2 * early_imports.SENT)  # what is due before comes before, however busy the machine

    asyncio.run(asyncio.wait_for(ordered(), 60))
    assert sent == [(name, {"op": early_imports.ASK, "modules": modules}) for name in ("one", "two")]
    told = capsys.readouterr()
    assert told.out.startswith(
        "hpcml: imported_early_b was not imported early (RuntimeError).\nhpcml: imported early in "
    )
    assert told.out.endswith(" s: imported_early_a\n")
    assert told.err == ""
    worker = SimpleNamespace(stream_handlers={})
    early_imports.take_part(worker)
    worker.stream_handlers[early_imports.ASK](modules=["imported_early_a"])  # as Dask calls it
    assert "imported early in" in capsys.readouterr().out
    early_imports.import_now(["imported_early_none"])
    assert capsys.readouterr().out == ""
