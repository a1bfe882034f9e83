"""The errors of a task that leave its worker without a GPU, and the end of the worker.

CUDA answers each later call of the process with the same error.
"""

from __future__ import annotations

import asyncio
import os
import re
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

from distributed.protocol import pickle
from distributed.worker_state_machine import ExecuteFailureEvent, RescheduleEvent

from hpcml.kinds.dask.node.messages import NO_GPU

END_WITHOUT_GPU = 10.0  # seconds for the close of a worker that lost its GPU; a library may wait for the GPU

# By number, as CUDA's runtime names it and as its driver does.
_NAMES = {
    700: ("cudaErrorIllegalAddress", "CUDA_ERROR_ILLEGAL_ADDRESS"),
    702: ("cudaErrorLaunchTimeout", "CUDA_ERROR_LAUNCH_TIMEOUT"),
    710: ("cudaErrorAssert", "CUDA_ERROR_ASSERT"),
    714: ("cudaErrorHardwareStackError", "CUDA_ERROR_HARDWARE_STACK_ERROR"),
    715: ("cudaErrorIllegalInstruction", "CUDA_ERROR_ILLEGAL_INSTRUCTION"),
    716: ("cudaErrorMisalignedAddress", "CUDA_ERROR_MISALIGNED_ADDRESS"),
    717: ("cudaErrorInvalidAddressSpace", "CUDA_ERROR_INVALID_ADDRESS_SPACE"),
    718: ("cudaErrorInvalidPc", "CUDA_ERROR_INVALID_PC"),
    719: ("cudaErrorLaunchFailure", "CUDA_ERROR_LAUNCH_FAILED"),
}
# What has CUDA's number as an attribute: the top package of the class, its name, the attribute.
_NUMBERED = {
    ("cupy", "CUDARuntimeError"): "status",
    ("cupy", "CUDADriverError"): "status",
    ("cupy_backends", "CUDARuntimeError"): "status",
    ("cupy_backends", "CUDADriverError"): "status",
    ("numba", "CudaAPIError"): "code",
    ("torch", "AcceleratorError"): "error_code",
}
# PyTorch before 2.8 has CUDA's own words only.
_WORDS = {
    "an illegal memory access was encountered": 700,
    "the launch timed out and was terminated": 702,
    "device-side assert triggered": 710,
    "hardware stack error": 714,
    "an illegal instruction was encountered": 715,
    "misaligned address": 716,
    "operation not supported on global/shared address space": 717,
    "invalid program counter": 718,
    "unspecified launch failure": 719,
}
_NUMBER_BY_TEXT = {**{f"CUDA error: {words}": number for words, number in _WORDS.items()},
                   **{name: number for number, names in _NAMES.items() for name in names}}  # fmt: skip
_TEXT = re.compile("|".join(rf"(?<!\w){re.escape(text)}(?!\w)" for text in _NUMBER_BY_TEXT))
_LONGEST_CHAIN = 10  # errors that were raised from one another
_MAPS = Path("/proc/self/maps")


class EndsWithoutGpu:
    """A base of Dask's worker: it ends after a CUDA error of a task, because it can use no GPU any more.

    The error reaches the script. What other tasks raise here from then on is no answer: Dask runs them again elsewhere.
    """

    restart_on_cuda_error = False  # whether it does so
    without_gpu = ""  # the CUDA error
    close: Callable[..., Coroutine[Any, Any, Any]]
    _ending: asyncio.Task[Any] | None = None

    async def execute(self, key: Any, **options: Any) -> Any:
        """Execute a task as Dask does, unless this process has lost its GPU."""
        if self.without_gpu:
            return _elsewhere(key)
        event = await super().execute(key, **options)  # type: ignore[misc]
        if not self.restart_on_cuda_error or not isinstance(event, ExecuteFailureEvent):
            return event
        if self.without_gpu:
            return _elsewhere(key)
        if name := of_pickled(getattr(event.exception, "data", b"")):
            self.without_gpu = name
            execution = asyncio.current_task()
            assert execution is not None
            execution.add_done_callback(lambda _: self._end())  # after Dask's own callback: the error is told first
        return event

    def ends_without_gpu(self) -> None:
        """Tell others why this process ends, if there is somebody to tell."""

    def _end(self) -> None:
        """End this process, at the latest after a deadline; Dask repeats its work."""
        self.ends_without_gpu()
        late = threading.Timer(END_WITHOUT_GPU, os._exit, (0,))
        late.daemon = True
        late.start()
        self._ending = asyncio.ensure_future(self.close(reason=NO_GPU, executor_wait=False, nanny=False))


def _elsewhere(key: Any) -> RescheduleEvent:
    return RescheduleEvent(key=key, stimulus_id=f"{NO_GPU}-{time.time()}")


def of_pickled(data: bytes) -> str:
    """Return the name of the CUDA error in a task's pickled error after which no GPU can be used, else nothing."""
    try:
        error = pickle.loads(data)
    except Exception:  # noqa: BLE001 - a class of the user's may raise anything; the script gets the error as it is
        return ""
    return name_of(error)


def name_of(error: BaseException) -> str:
    """Return the name of the CUDA error, in an error or its causes, after which no GPU can be used, else nothing."""
    for cause in _chain(error):
        if (number := _number(cause)) in _NAMES:
            return _NAMES[number][0]
    return ""


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    for _ in range(_LONGEST_CHAIN):
        if not isinstance(error, BaseException):
            return
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def _number(error: BaseException) -> int:
    """Return CUDA's number of an error, 0 if it is none: as its library tells it, else by CUDA's name in its text.

    A text counts only in a process that has loaded CUDA's driver: others may write of such errors.
    """
    for kind in type(error).__mro__:
        attribute = _NUMBERED.get((kind.__module__.partition(".")[0], kind.__name__))
        if attribute and (number := _whole(getattr(error, attribute, None))):
            return number
    found = _TEXT.search(str(error))
    return _NUMBER_BY_TEXT[found[0]] if found and _has_driver() else 0


def _whole(value: Any) -> int:
    try:
        return int(value)
    except (TypeError, ValueError):  # another release of the library: its text tells the error
        return 0


def _has_driver() -> bool:
    try:
        return "/libcuda.so" in _MAPS.read_text()
    except OSError:
        return True
