"""The variables that the user's settings of Dask have for workers, in runs, where there is no Nanny."""

from __future__ import annotations

import dask.config
import pytest

from hpcml.kinds.dask.node import worker_environment


def test_variables_of_the_user_s_settings_are_set_as_a_nanny_does() -> None:
    settings = {
        "distributed.nanny.environ": {"MY_FLAG": "hello", "TYPED": "no", "GONE": None, "SLURM_JOB_ID": 7, "MKL_NUM_THREADS": None},
        "distributed.nanny.pre-spawn-environ": {"OMP_NUM_THREADS": 3, "OPENBLAS_NUM_THREADS": 3},
    }  # fmt: skip
    found = {
        "TYPED": "yes", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "2", "MKL_NUM_THREADS": "1", "GONE": "here",
        worker_environment.PRESET: " OMP_NUM_THREADS MKL_NUM_THREADS",
    }  # fmt: skip
    with dask.config.set(settings):
        worker_environment.set_variables(found)
    assert found == {
        "TYPED": "yes", "OMP_NUM_THREADS": "3", "OPENBLAS_NUM_THREADS": "2", "MY_FLAG": "hello", "GONE": "here",
    }  # fmt: skip


def test_settings_without_variables_change_nothing() -> None:
    found = {"OMP_NUM_THREADS": "1", worker_environment.PRESET: " OMP_NUM_THREADS"}
    with dask.config.set({"distributed.nanny.environ": None, "distributed.nanny.pre-spawn-environ": {}}):
        worker_environment.set_variables(found)
    assert found == {"OMP_NUM_THREADS": "1"}


def test_settings_that_are_no_table_of_names_end_no_worker(capsys: pytest.CaptureFixture[str]) -> None:
    found: dict[str, str] = {}
    with dask.config.set({"distributed.nanny.environ": ["A=1"], "distributed.nanny.pre-spawn-environ": {7: 1}}):
        worker_environment.set_variables(found)
    assert found == {"7": "1"}
    assert "distributed.nanny.environ in Dask's" in capsys.readouterr().err
