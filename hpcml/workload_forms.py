"""The forms of what a run starts beside the processes of its kind: a script, a program, JupyterLab, a check."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from hpcml import earlier_names


class Form(StrEnum):
    """What a run starts; plan.json and request.json have the value."""

    SCRIPT = "script"  # a Python file
    MODULE = "module"  # a Python module, as for python -m: its folder and its dotted name
    NOTEBOOK = "notebook"  # a notebook that is executed
    PROGRAM = "program"  # any other program
    BATCH = "batch"  # a shell script with its own #SBATCH lines
    JUPYTER = "jupyter"  # JupyterLab
    INTERCONNECT = "interconnect"  # the check of the interconnect
    DOCTOR = "doctor"  # the check of the nodes
    HOLD = "hold"  # a kept allocation, in which other runs start
    MAP = "map"  # no run: one job for each point, by submitit
    ELASTIC = "elastic"  # no run: workers as jobs, by dask-jobqueue

    @classmethod
    def _missing_(cls, value: object) -> Form | None:
        name = earlier_names.current(value) if isinstance(value, str) else value
        return next((form for form in cls if form.value == name), None)

    @property
    def traits(self) -> Traits:
        """What depends on the form."""
        return _TRAITS[self]

    @property
    def service(self) -> str:
        """The program of hpcml's that runs instead of a script; empty with a script."""
        return "" if self.traits.is_script else self.value


class Traits(NamedTuple):
    """What depends on the form."""

    title: str = "the script"  # its name in a sentence
    is_script: bool = True  # the user submitted it: it is checked, copied and can be a sweep's
    has_code: bool = True  # code of the user's runs in it and in its tasks
    is_main: bool = False  # tasks find its functions in __main__
    packages: tuple[str, ...] = ()  # modules that the run's Python must have for it
    web_service: str = ""  # the one that it offers; it is ready once services/NAME.json says where that is
    near_limit: str = "a script that uses hpcml.run can save and stop now"  # what happens shortly before the time limit
    kind: str = ""  # the only kind of run that it can have; empty: each
    socket_room: int = 70  # bytes that the name of the folder for its unix sockets may have; a kernel's are long


_TRAITS = {
    Form.SCRIPT: Traits(is_main=True),
    Form.MODULE: Traits(is_main=True),
    Form.NOTEBOOK: Traits(packages=("nbclient", "nbformat", "ipykernel"), socket_room=38),
    Form.PROGRAM: Traits(),
    Form.BATCH: Traits("the batch script", near_limit="Slurm ends the job then", kind="batch"),
    Form.JUPYTER: Traits(
        "JupyterLab", is_script=False, packages=("jupyterlab",), web_service="jupyter", socket_room=38
    ),
    Form.INTERCONNECT: Traits("the interconnect check", is_script=False, has_code=False),
    Form.DOCTOR: Traits("the node check", is_script=False, has_code=False),
    Form.HOLD: Traits(
        "the hold", is_script=False, has_code=False, near_limit="no further run starts in the hold", kind="hold"
    ),
    Form.MAP: Traits(is_script=False, has_code=False),
    Form.ELASTIC: Traits(is_script=False, has_code=False),
}
