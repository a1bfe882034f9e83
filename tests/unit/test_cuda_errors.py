"""Which errors of tasks leave a worker without a GPU: by CUDA's number, or by its name in a library's text."""

from __future__ import annotations

import asyncio
import os
import pickle
import threading
from pathlib import Path
from typing import Any

import pytest
from distributed import Worker
from distributed.worker_state_machine import ExecuteFailureEvent, ExecuteSuccessEvent, RescheduleEvent

from hpcml.kinds.dask.node import cuda_errors, dask_worker
from hpcml.kinds.dask.node.messages import NO_GPU, TOPIC
from hpcml.node.process_helpers import EndNote

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


def failure(key: str, error: Exception) -> ExecuteFailureEvent:
    return ExecuteFailureEvent.from_exception(error, key=key, run_id=1, stimulus_id=key)


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch, driver: Path) -> Any:
    """Return a worker that runs no tasks: ``ends`` is what they end with, and ``told`` what it does of itself."""
    assert driver
    made: Any = object.__new__(dask_worker.PrivateWorker)
    made.node, made.restart_on_cuda_error, made.note, made.told, made.ends = "n1", True, EndNote(), [], {}

    async def close(**options: Any) -> None:
        made.told.append(options["reason"])

    async def execute(_: Any, key: str, **__: Any) -> Any:
        end = made.ends[key]
        return await end if isinstance(end, asyncio.Future) else end

    made.close, made.log_event = close, lambda *told: made.told.append(told)
    monkeypatch.setattr(Worker, "execute", execute)

    def timer(seconds: float, function: Any, arguments: Any) -> threading.Thread:
        made.deadline = (seconds, function, arguments)
        return threading.Thread()

    monkeypatch.setattr(threading, "Timer", timer)
    return made


def test_the_error_is_told_before_the_worker_ends_and_what_others_say_then_is_no_answer(worker: Any) -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        late, good = loop.create_future(), loop.create_future()
        done = ExecuteSuccessEvent.dummy("good", 1, run_id=1, stimulus_id="good")
        worker.ends = {"bad": failure("bad", RuntimeError(f"CUDA error: {ILLEGAL}")), "late": late, "good": good}
        beside = [asyncio.create_task(worker.execute(key, stimulus_id=key)) for key in ("late", "good")]
        await asyncio.sleep(0)
        first = asyncio.create_task(worker.execute("bad", stimulus_id="bad"))
        first.add_done_callback(lambda _: worker.told.append("error told"))  # as Dask does when it begins
        assert await first is worker.ends["bad"]
        late.set_result(failure("late", RuntimeError(f"CUDA error: {ILLEGAL}")))
        good.set_result(done)
        again = await worker.execute("next", stimulus_id="next")  # which would be no key of ``ends``
        assert isinstance(again, RescheduleEvent)
        assert again.key == "next"
        events = [await task for task in beside]
        assert isinstance(events[0], RescheduleEvent)
        assert events[1] is done
        await worker._ending

    asyncio.run(run())
    told = {"event": NO_GPU, "node": "n1", "error": "cudaErrorIllegalAddress"}
    assert worker.told == ["error told", (TOPIC, told), NO_GPU]
    assert worker.note.take() == EndNote.NO_GPU
    assert worker.deadline == (cuda_errors.END_WITHOUT_GPU, os._exit, (0,))


@pytest.mark.parametrize(("restarts", "text"), [(False, f"CUDA error: {ILLEGAL}"), (True, "CUDA error: out of memory")])
def test_a_worker_goes_on_after_other_errors_and_where_the_key_says_so(worker: Any, restarts: bool, text: str) -> None:
    worker.restart_on_cuda_error, worker.ends = restarts, {"bad": failure("bad", RuntimeError(text))}

    async def run() -> None:
        for _ in range(2):
            assert await asyncio.create_task(worker.execute("bad", stimulus_id="bad")) is worker.ends["bad"]

    asyncio.run(run())
    assert (worker.told, worker.note.take()) == ([], b"\0")
