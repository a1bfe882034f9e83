"""What a job of ``hpcml.map`` calls: the function with one point, its value or its error in a form that travels."""

from __future__ import annotations

import signal
import traceback
from collections.abc import Callable
from typing import Any

from hpcml.repairs import file_names


class Call:
    """A function as submitit calls it.

    submitit's own handling of signals is put aside for it: a time limit is no reason to begin again, a preempted point
    is not put back into the queue without limit, and a job that is cancelled ends at once.
    """

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self.function = function

    def __call__(self, point: object) -> tuple[bytes, bytes, str]:
        """Return the value, or the error with its traceback; each pickled here, since submitit loses what cannot be."""
        import cloudpickle

        file_names.keep()
        for number in (signal.SIGTERM, signal.SIGCONT):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGUSR2, _time_limit)
        try:
            return cloudpickle.dumps(self.function(point)), b"", ""
        except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever the user's function raises
            own = error.__traceback__.tb_next if error.__traceback__ else None  # without this frame
            return b"", _portable(error), "".join(traceback.format_exception(error.with_traceback(own)))


def _time_limit(*_: object) -> None:
    raise TimeoutError("the time limit of the point is reached")


def _portable(error: BaseException) -> bytes:
    """Return an error pickled, nothing if it cannot be raised elsewhere."""
    import cloudpickle

    if isinstance(error, SystemExit):
        return b""  # it would end the program that waits
    try:
        data: bytes = cloudpickle.dumps(error)
        cloudpickle.loads(data)
    except Exception:  # noqa: BLE001 - an error of the user's may fail in any way there; its traceback tells all
        return b""
    return data
