"""All jobs that read files, on data that is wrong: one sentence that names the place, status 2, nothing half-written."""

from __future__ import annotations

import importlib
import pathlib
import resource
import shutil
from collections.abc import Callable, Iterator

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet
import pytest

from gallery import datasets, inputs, tables
from gallery.job import RefusedError
from gallery.kinds import KINDS
from tests.jobs.job_list import JOBS, Listed, shape
from tests.jobs.job_tests import Refused

READERS = [name for name, listed in JOBS.items() if listed.kind]
ROWS, FILES = 400, 4
Spoil = Callable[[pathlib.Path], object]


def part(folder: pathlib.Path, number: int = 2) -> pathlib.Path:
    return folder / f"part-{number:05d}.parquet"


def make(folder: pathlib.Path, listed: Listed, *, rows: int = ROWS, files: int = FILES, form: str = "parquet") -> None:
    name, how = shape(listed.kind)
    datasets.write(folder, KINDS[name](**how), rows=rows, partitions=files, form=form)


def refusal(refused: Refused, name: str, data: pathlib.Path) -> str:
    """Run a job on data that it must refuse; return the sentence."""
    return refused(importlib.import_module(name), *JOBS[name].reads.split(), "--data", data)


# What is done to a good data set, and what the sentence must hold.


def cut_data(folder: pathlib.Path) -> None:
    """Overwrite all pages of a file; its footer still tells rows and columns."""
    good = part(folder).read_bytes()
    footer = int.from_bytes(good[-8:-4], "little") + 8
    part(folder).write_bytes(b"PAR1" + bytes(len(good) - footer - 4) + good[-footer:])


def cut_footer(folder: pathlib.Path) -> None:
    good = part(folder).read_bytes()
    part(folder).write_bytes(good[: len(good) - 40])


def lose_column(folder: pathlib.Path) -> None:
    table = pyarrow.parquet.read_table(part(folder))
    pyarrow.parquet.write_table(table.drop_columns([table.column_names[0]]), part(folder))


def empty(folder: pathlib.Path) -> None:
    for path in folder.glob("*.parquet"):
        path.unlink()


def turn_to_folders(folder: pathlib.Path) -> None:
    for path in list(folder.glob("*.parquet")):
        path.unlink()
        path.mkdir()


def turn_to_link(folder: pathlib.Path) -> None:
    part(folder).unlink()
    part(folder).symlink_to(folder / "gone.parquet")


SPOILT: dict[str, tuple[Spoil, str]] = {
    "missing": (shutil.rmtree, "Nothing is at"),
    "an empty file": (lambda folder: part(folder).write_bytes(b""), "part-00002.parquet is empty (0 bytes)"),
    "no file": (empty, "holds no file of .parquet"),
    "folders named as files": (turn_to_folders, "holds no file of .parquet"),
    "a link to nothing": (turn_to_link, "part-00002.parquet is no file"),
    "not Parquet at all": (lambda folder: part(folder).write_text("a,b\n1,2\n"), "part-00002.parquet cannot be read"),
    "a footer cut short": (cut_footer, "part-00002.parquet cannot be read"),
    "a column less": (lose_column, "part-00002.parquet has no column"),
    "two formats": (lambda folder: (folder / "more.csv").write_text("a,b\n1,2\n"), "files of several formats (csv, parquet)"),
}  # fmt: skip


def test_spoilt_files(subtests: pytest.Subtests, refused: Refused, tmp_path: pathlib.Path) -> None:
    """All jobs look at the files by one function; what is found later than that is tried with each of them."""
    make(tmp_path / "good", JOBS["kmeans"])
    for how, (spoil, words) in SPOILT.items():
        with subtests.test(how=how):
            data = tmp_path / how
            shutil.copytree(tmp_path / "good", data)
            spoil(data)
            assert words in refusal(refused, "kmeans", data)


@pytest.mark.parametrize("name", READERS)
def test_overwritten_pages(refused: Refused, tmp_path: pathlib.Path, name: str) -> None:
    make(tmp_path / "data", JOBS[name])
    cut_data(tmp_path / "data")
    assert "could not be read" in refusal(refused, name, tmp_path / "data")


def test_one_corrupt_footer_of_a_hundred_is_named(refused: Refused, tmp_path: pathlib.Path) -> None:
    make(tmp_path / "data", JOBS["kmeans"], files=100)
    bad = part(tmp_path / "data", 57)
    bad.write_bytes(bad.read_bytes()[:-20] + bytes(20))
    sentence = refusal(refused, "kmeans", tmp_path / "data")
    assert f"{bad} cannot be read" in sentence
    assert "more of" not in sentence


def test_text_that_turns_up_late_in_a_csv(refused: Refused, tmp_path: pathlib.Path) -> None:
    """A column of numbers for longer than the types are looked for, then a word."""
    make(tmp_path / "data", JOBS["kmeans"], rows=12_000, files=1, form="csv")
    path = tmp_path / "data/part-00000.csv"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:-1], "oops," + lines[-1].partition(",")[2]]) + "\n")
    assert "part-00000.csv could not be read" in refusal(refused, "kmeans", tmp_path / "data")


def rewritten(folder: pathlib.Path, change: Callable[[pd.DataFrame], pd.DataFrame]) -> None:
    for path in folder.glob("*.parquet"):
        schema = pyarrow.parquet.read_schema(path)
        frame = change(pd.read_parquet(path))
        pyarrow.parquet.write_table(pa.Table.from_pandas(frame, schema=schema, preserve_index=False), path)


def without_values(frame: pd.DataFrame) -> pd.DataFrame:
    floats = [name for name in frame if frame[name].dtype.kind == "f"]
    return frame.assign(**dict.fromkeys(floats, np.nan))


def of_one_class(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.assign(y=frame["y"].dtype.type(1))


CHANGES: dict[str, Callable[[pd.DataFrame], pd.DataFrame]] = {"nan": without_values, "one class": of_one_class}


@pytest.mark.parametrize(("name", "what"), [(name, what) for name, listed in JOBS.items() for what in listed.refuses])
def test_files_in_order_that_hold_too_little(refused: Refused, tmp_path: pathlib.Path, name: str, what: str) -> None:
    if what == "few":
        make(tmp_path / "data", JOBS[name], rows=3, files=1)
    else:
        make(tmp_path / "data", JOBS[name])
        rewritten(tmp_path / "data", CHANGES[what])
    assert str(tmp_path / "data") in refusal(refused, name, tmp_path / "data")


@pytest.fixture
def small_files() -> Iterator[None]:
    """Have the system refuse to let a file grow beyond 2 KiB, as a full disk or a quota does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2048, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("name", ["kmeans", "forest"])  # in one workers write, in the other the script
def test_no_room_for_the_results(
    name: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest
) -> None:
    make(tmp_path / "data", JOBS[name])
    request.getfixturevalue("small_files")
    out = tmp_path / "out"
    options = [*JOBS[name].reads.split(), "--data", str(tmp_path / "data"), "--out", str(out)]
    assert importlib.import_module(name).main(options) == 2
    sentence = capsys.readouterr().err.splitlines()[-1]  # before it Dask's own log, which cannot grow either
    assert sentence.startswith(f"{name}: what is written does not go to disk: ")
    assert sentence.endswith(f"Make room in {out} and the workers' scratch, or give --out another folder.")
    left = [path.name for path in out.rglob("*") if "unfinished" in path.name]
    assert not left
    assert not (out / "result.json").exists()


EVIL = "\x1b[2J\x1b]0;owned\x07\x9b\u202e\nfake  row"


def test_names_of_columns_are_shown_and_not_obeyed(tmp_path: pathlib.Path, refused: Refused) -> None:
    """Whoever made a table chose its columns' names; messages quote them."""
    folder = tmp_path / "data"
    folder.mkdir()
    pd.DataFrame({EVIL: ["a", "b"], "x": [1.0, 2.0]}).to_parquet(folder / "a.parquet")
    said = refused(importlib.import_module("kmeans"), "--data", str(folder))
    assert "\\x1b[2J" in said
    assert said.strip().isprintable()


def test_a_table_s_own_words_about_itself(tmp_path: pathlib.Path) -> None:
    """Parquet carries JSON of pandas, which anybody can write."""
    path = tmp_path / "a.parquet"
    for metadata in ("[" * 100_000, '{"index_columns": 5}', "[]", '{"index_columns": [{"a": []}]}', "5", "\x00"):
        table = pa.table({"x": [1.0, 2.0]}).replace_schema_metadata({b"pandas": metadata.encode()})
        pyarrow.parquet.write_table(table, path)
        (footer,) = inputs.read_footers("parquet", [str(path)])
        assert footer.problem.startswith("cannot be read") or footer.types == {"x": pa.float64()}, metadata[:40]


def test_what_arrow_raises_is_one_sentence(tmp_path: pathlib.Path) -> None:
    source = inputs.Source("parquet", (str(tmp_path / "a.parquet"),), {}, 0, 0, 0, {})
    for error in (
        pa.ArrowTypeError,
        pa.ArrowInvalid,
        pa.ArrowNotImplementedError,
        pa.ArrowKeyError,
        RecursionError,
        pa.ArrowIndexError,
    ):
        with pytest.raises(RefusedError, match="could not be read"), tables.reading(source):
            raise error("a\nb")
