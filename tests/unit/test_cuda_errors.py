"""Which errors of tasks leave a worker without a GPU: by CUDA's number, or by its name in a library's text."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

from hpcml.kinds.dask.node import cuda_errors

ILLEGAL = "an illegal memory access was encountered"


def library_error(module: str, name: str, text: str = "", **attributes: Any) -> Exception:
    """Return an error like one of a library that needs a GPU to be imported."""
    error: Exception = type(name, (RuntimeError,), {"__module__": module})(text)
    for attribute, value in attributes.items():
        setattr(error, attribute, value)
    return error


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the file that tells which libraries the process has loaded: CUDA's driver."""
    maps = tmp_path / "maps"
    maps.write_text("7f00-7f01 r-xp 00000000 fe:00 1 /usr/lib/x86_64-linux-gnu/libcuda.so.580.159.04\n")
    monkeypatch.setattr(cuda_errors, "_MAPS", maps)
    return maps


@pytest.mark.parametrize(
    ("error", "name"),
    [
        (library_error("cupy_backends.cuda.api.runtime", "CUDARuntimeError", status=700), "cudaErrorIllegalAddress"),
        (library_error("cupy_backends.cuda.api.driver", "CUDADriverError", status=719), "cudaErrorLaunchFailure"),
        (library_error("numba.cuda.cudadrv.driver", "CudaAPIError", code=716), "cudaErrorMisalignedAddress"),
        (library_error("torch", "AcceleratorError", error_code=710), "cudaErrorAssert"),
        # An allocation that failed, or a wrong argument: the process can go on.
        (library_error("cupy_backends.cuda.api.runtime", "CUDARuntimeError", status=2), ""),
        (library_error("numba.cuda.cudadrv.driver", "CudaAPIError", code=1), ""),
        # The number of somebody else's error means something else.
        (library_error("my_solver", "SolverError", status=700, code=700, error_code=700), ""),
        (library_error("cupyish", "CUDARuntimeError", status=700), ""),
        (library_error("cupy_backends.cuda.libs.cublas", "CUBLASError", status=700), ""),
        (library_error("torch", "AcceleratorError", error_code="?"), ""),
        (ValueError("bad"), ""),
    ],
)
def test_a_library_s_own_number_tells_the_error(error: Exception, name: str) -> None:
    assert cuda_errors.name_of(error) == name


TEXTS = {
    f"CUDA error: {ILLEGAL}\nCUDA kernel errors might be asynchronously reported": "cudaErrorIllegalAddress",  # PyTorch
    "CUDA error: device-side assert triggered": "cudaErrorAssert",
    "CUDA error: unspecified launch failure": "cudaErrorLaunchFailure",
    f"CUDA error at: /rmm/device_buffer.hpp:480: cudaErrorIllegalAddress {ILLEGAL}": "cudaErrorIllegalAddress",  # RMM
    f"CUDA error encountered at: /cudf/utilities.cpp:53: 700 cudaErrorIllegalAddress {ILLEGAL}": "cudaErrorIllegalAddress",
    "[716] Call to cuMemcpyDtoH results in CUDA_ERROR_MISALIGNED_ADDRESS": "cudaErrorMisalignedAddress",  # Numba
    "INTERNAL: CUDA_ERROR_LAUNCH_FAILED: unspecified launch failure": "cudaErrorLaunchFailure",  # JAX
    "CUDA error: out of memory": "",
    "cudaErrorMemoryAllocation: out of memory": "",
    "cudaErrorAssertion": "",
    f"a user's sentence: {ILLEGAL}": "",
}


@pytest.mark.parametrize(("text", "name"), TEXTS.items())
def test_cuda_s_name_in_a_text_tells_the_error_where_the_driver_is_loaded(text: str, name: str, driver: Path) -> None:
    assert cuda_errors.name_of(RuntimeError(text)) == name
    driver.write_text("7f00-7f01 r-xp 00000000 fe:00 1 /usr/lib/libc.so.6\n")
    assert cuda_errors.name_of(RuntimeError(text)) == ""


@pytest.mark.usefixtures("driver")
def test_the_error_behind_a_task_s_own_error_counts() -> None:
    cause = RuntimeError(f"CUDA error: {ILLEGAL}")
    error = ValueError("the step failed")
    error.__cause__ = cause
    assert cuda_errors.name_of(error) == "cudaErrorIllegalAddress"
    handled = ValueError("the step failed")
    handled.__context__ = cause
    assert cuda_errors.name_of(handled) == "cudaErrorIllegalAddress"
    handled.__suppress_context__ = True
    assert cuda_errors.name_of(handled) == ""
    cause.__cause__ = error  # a ring ends nevertheless
    error.__cause__ = handled
    assert cuda_errors.name_of(error) == ""


@pytest.mark.usefixtures("driver")
def test_a_task_s_pickled_error_is_read() -> None:
    assert cuda_errors.of_pickled(pickle.dumps(RuntimeError(f"CUDA error: {ILLEGAL}"))) == "cudaErrorIllegalAddress"
    assert cuda_errors.of_pickled(pickle.dumps(RuntimeError("other"))) == ""
    assert cuda_errors.of_pickled(b"no pickle") == ""
