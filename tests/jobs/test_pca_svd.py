"""jobs/workloads/pca_svd.py and its genotypes: real runs on small matrices, numbers checked against scikit-learn and NumPy."""

from __future__ import annotations

import pathlib
from collections import Counter
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pandas as pd
import pytest
import sklearn.decomposition
import zarr
from dask.utils import key_split
from distributed import Client, LocalCluster, get_task_stream

import make_data
import pca_svd
from gallery import datasets, genotypes, kinds, matrices, memory, models
from gallery.job import Job
from tests.jobs.job_tests import Refused, RunJob

ROWS, COLUMNS, SHAPE = 2_500, 60, ("--rows", "2500", "--columns", "60", "--k", "4")


def made(dtype: str, missing: float = 0.01, seed: int = 0) -> np.ndarray:
    """Return the made matrix as NumPy's, in one chunk, missing genotypes as means."""
    whole = matrices.made(ROWS, COLUMNS, seed=seed, dtype=dtype, missing=missing, packed=False, threads=1)
    rows = whole.stored.compute().astype("float64")
    if dtype == "uint8":
        rows[rows == genotypes.MISSING] = np.nan
        rows = np.where(np.isnan(rows), np.nanmean(rows, axis=0), rows)
    return np.asarray(rows)


def frame(path: pathlib.Path) -> pd.DataFrame:
    return pd.read_parquet(path)


def signed(components: np.ndarray) -> np.ndarray:
    return components * pca_svd.signs_of(components)[:, None]


def test_each_chunk_is_made_once_and_its_sums_are_taken_as_it_comes() -> None:
    with (
        LocalCluster(n_workers=1, processes=False, dashboard_address="127.0.0.1:0") as cluster,
        Client(cluster) as client,
    ):
        matrix = matrices.made(8_000, 4_000, seed=0, dtype="uint8", missing=0.01, packed=False, threads=8)
        with get_task_stream(client) as stream:
            loaded, sums = matrices.load(matrix)
        done = Counter(key_split(task["key"]) for task in stream.data)
        assert (done["tiles"], done["sum"]) == (8, 8)
        rows = loaded.stored.compute().astype("float64")
        rows[rows == genotypes.MISSING] = np.nan
        means, _, missing = matrices.statistics(loaded, sums)
        np.testing.assert_allclose(means, np.nanmean(rows, axis=0), rtol=1e-12)
        assert missing == np.isnan(rows).sum()


def test_chunks_are_half_as_large_where_the_matrix_will_spill(monkeypatch: pytest.MonkeyPatch) -> None:
    share, usable = 2 * 10**9, 100 * 10**9
    monkeypatch.setattr(pca_svd, "floats_at_once", lambda _: share)
    monkeypatch.setattr(memory, "capacity", lambda _: memory.Capacity(1, 1, usable, usable, usable))

    def make(rows: int, floats: int) -> matrices.Matrix:
        return matrices.made(
            rows, 1_000, seed=0, dtype="float64", missing=0, packed=False, threads=1, floats=floats, library="numpy"
        )

    def bytes_of_chunk(rows: int) -> int:
        matrix = pca_svd.laid_out(cast("Job", SimpleNamespace(client=None)), lambda floats: make(rows, floats))
        return int(max(matrix.stored.chunks[0])) * 1_000 * 8

    assert share * 0.9 < bytes_of_chunk(12_000_000) <= share, "96 GB fit"
    assert share * 0.4 < bytes_of_chunk(13_000_000) <= share // 2, "104 GB do not"


def test_pca_is_scikit_learns_and_so_is_the_exported_model(run_job: RunJob) -> None:
    result, out = run_job(pca_svd, "--what", "pca", "--dtype", "uint8", *SHAPE)
    rows = made("uint8")
    reference = sklearn.decomposition.PCA(4, svd_solver="full").fit(rows)
    exact = 1e-4  # genotypes are calculated with 32 bits
    np.testing.assert_allclose(result["explained_variance"], reference.explained_variance_, rtol=exact)
    np.testing.assert_allclose(result["explained_variance_ratio"], reference.explained_variance_ratio_, rtol=exact)
    np.testing.assert_allclose(result["singular_values"], reference.singular_values_, rtol=exact)
    components = frame(out / "components.parquet")[["pc1", "pc2", "pc3", "pc4"]].to_numpy().T
    np.testing.assert_allclose(components, signed(reference.components_), atol=1e3 * exact)
    scores = frame(out / "scores").to_numpy()
    model, manifest = models.load(out / "model")
    np.testing.assert_allclose(
        model.transform(pd.DataFrame(rows, columns=list(manifest["features"]))), scores, atol=0.01
    )
    assert (out / "pca_svd.png").exists()
    assert result["missing_elements"] > 0


def test_truncated_is_scikit_learns(run_job: RunJob) -> None:
    result, out = run_job(pca_svd, "--what", "truncated", "--dtype", "float64", *SHAPE)
    rows = made("float64")
    reference = sklearn.decomposition.TruncatedSVD(4, algorithm="arpack").fit(rows)
    np.testing.assert_allclose(result["explained_variance_ratio"], reference.explained_variance_ratio_, rtol=1e-9)
    np.testing.assert_allclose(result["singular_values"], reference.singular_values_, rtol=1e-9)
    model, manifest = models.load(out / "model")
    scores = model.transform(pd.DataFrame(rows, columns=list(manifest["features"])))
    np.testing.assert_allclose(scores, frame(out / "scores"), atol=1e-9)


@pytest.mark.parametrize(
    ("options", "dtype", "rel"),
    [
        (("--storage", "packed"), "uint8", 0.01),
        (("--storage", "zarr", "--iterator", "QR"), "uint8", 0.01),
        (("--power-iterations", "0", "--raw"), "float32", 0.05),
    ],
)
def test_compressed_is_near_numpys_svd(run_job: RunJob, options: tuple[str, ...], dtype: str, rel: float) -> None:
    result, out = run_job(pca_svd, "--dtype", dtype, *options, *SHAPE)
    rows = made(dtype)
    centred = rows if "--raw" in options else rows - rows.mean(axis=0)
    _, singular, components = np.linalg.svd(centred, full_matrices=False)
    np.testing.assert_allclose(result["singular_values"], singular[:4], rtol=rel)
    total = rows.var(axis=0, ddof=1).sum()
    assert result["total_variance"] == pytest.approx(total, rel=1e-6)
    expected = singular[:4] ** 2 / (ROWS - 1) / total
    np.testing.assert_allclose(result["explained_variance_ratio"], expected, rtol=2.5 * rel)
    first = frame(out / "components.parquet")["pc1"].to_numpy()
    np.testing.assert_allclose(first, signed(components[:1])[0], atol=0.05)
    assert np.corrcoef(frame(out / "scores")["pc1"], centred @ first)[0, 1] > 0.99
    assert result["stored_bytes"] == ROWS * COLUMNS * np.dtype(dtype).itemsize // (
        genotypes.PER_BYTE if result["packed"] else 1
    )
    assert result["svd_passes"] == (2 if "0" in options else 6)


def test_storage_and_chunks_do_not_change_the_numbers(
    run_job: RunJob, tmp_path: pathlib.Path, monkeypatch: Any, capsys: Any
) -> None:
    folder = tmp_path / "genotypes.zarr"
    assert make_data.main(["genotypes", "--rows", "2500", "--columns", "61", "--packed", "--out", str(folder)]) == 0
    assert "2,500 × 61 genotypes" in capsys.readouterr().out
    assert zarr.open_array(folder).shape == (2_500, 16)
    monkeypatch.setattr(matrices, "CHUNK", 30_000)
    one = run_job(pca_svd, "--rows", "2500", "--columns", "61", "--k", "3")[0]
    two = run_job(pca_svd, "--data", folder, "--k", "3")[0]
    assert one["chunks"] > two["chunks"]
    np.testing.assert_allclose(two["singular_values"], one["singular_values"], rtol=1e-5)
    assert (two["packed"], two["missing_elements"]) == (True, one["missing_elements"])
    (folder / "zarr.json").write_text("{}")
    assert make_data.main(["genotypes", "--out", str(folder)]) == 2


@pytest.mark.parametrize(
    ("rows", "width", "floats", "expected"),
    [
        (10_000_000, 20_000, 0, 4_096),
        (10_000_000, 20_000, 141 * 10**9 // 32, 54_272),
        (10_000_000, 5_000, 141 * 10**9 // 32, 54_272),
        (1_000_000, 20_000, 141 * 10**9 // 32, 30_720),
        (40_000, 20_000, 141 * 10**9 // 32, 4_096),
    ],
    ids=["CPUs", "large", "packed, four to a byte", "in between: eight for each of four GPUs", "small"],
)
def test_chunks_on_gpus_hold_as_many_floats_as_they_may_where_there_are_enough_for_all(
    rows: int, width: int, floats: int, expected: int
) -> None:
    assert matrices.rows_per_chunk((rows, width), np.dtype("uint8"), 20_000, 4, floats) == expected


@pytest.mark.parametrize("columns", [1, 4, 7, 12])
def test_packing_is_undone_by_unpacking(columns: int) -> None:
    counts = np.random.default_rng(columns).integers(0, 4, (5, columns), dtype="uint8")
    packed = genotypes.pack(counts)
    assert (packed.shape, packed.dtype) == ((5, genotypes.packed_width(columns)), np.uint8)
    np.testing.assert_array_equal(genotypes.unpack(packed, columns), counts)
    assert genotypes.pack(np.array([[1, 2, 0, 3]], dtype="uint8"))[0, 0] == 0b11_00_10_01


def test_a_table_and_refusals(run_job: RunJob, refused: Refused, tmp_path: pathlib.Path, monkeypatch: Any) -> None:
    datasets.write(tmp_path / "table", kinds.Blobs(features=4), rows=500)
    result, _ = run_job(pca_svd, "--data", tmp_path / "table", "--what", "pca", "--k", "4")
    assert result["explained_by_all"] == pytest.approx(1)
    assert "5 components are more than 500 rows × 4 columns give" in refused(
        pca_svd, "--data", tmp_path / "table", "--k", "5"
    )
    assert "Use --what compressed" in refused(pca_svd, "--what", "pca", "--rows", "50", "--columns", "60")
    array = zarr.create_array(tmp_path / "holes.zarr", shape=(50, 4), chunks=(50, 4), dtype="float64")
    array[:] = np.random.default_rng(0).normal(size=(50, 4))
    array[7, 2] = np.nan
    assert "Column 2 has a NaN" in refused(pca_svd, "--data", tmp_path / "holes.zarr", "--k", "2")
    zarr.create_array(tmp_path / "flat.zarr", shape=(50,), chunks=(50,), dtype="float64")
    assert "a matrix of numbers is needed" in refused(pca_svd, "--data", tmp_path / "flat.zarr")
    (tmp_path / "holes.zarr" / "zarr.json").write_text("{")
    assert "no Zarr array that can be read" in refused(pca_svd, "--data", tmp_path / "holes.zarr")
    monkeypatch.setattr(memory, "capacity", lambda _: memory.Capacity(1, 2, 1_000_000, 0))
    assert "Ask for --nodes" in refused(pca_svd, "--storage", "zarr")
