"""Execute a notebook in the place of a script, in a kernel of the run, and keep it, executed, in the run's ``out``.

``python -m hpcml.kinds.dask.node.jupyter.execute NOTEBOOK`` ends with 0, with 1 if a cell fails, and with 80
if the run's environment cannot execute notebooks.
"""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

from hpcml import safe_files
from hpcml.errors import START_FAILED
from hpcml.kinds.dask.node.jupyter import config
from hpcml.node.context import Context, load
from hpcml.node.events_and_end import leave_note
from hpcml.paths import SCRIPT

LACKS = "the notebook could not be executed: the run's environment lacks packages for notebooks"
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_MODULE = re.compile(r"No module named '([^']+)'")


def main() -> int:
    """Execute the notebook of the command line and return the exit status."""
    context = load()
    try:
        import nbclient  # noqa: F401 - so that what is missing is told in one place
        import nbformat
        from ipykernel import kernelapp  # noqa: F401
    except ImportError as error:
        leave_note(context, SCRIPT, f"{LACKS} ({error})")
        print("hpcml: Install hpcml[jupyter] in this environment.", file=sys.stderr)
        return START_FAILED
    notebook = nbformat.read(sys.argv[1], as_version=4)  # type: ignore[no-untyped-call]
    return _execute(context, notebook, context.sockets)


def _execute(context: Context, notebook: Any, folder: Path) -> int:
    """Run the cells one after another; the notebook is kept after each, also after the one that fails."""
    import nbformat
    from jupyter_client.manager import AsyncKernelManager
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError, DeadKernelError

    places = config.make_places(folder)
    config.write_kernel(places.data)
    os.environ["JUPYTER_PATH"] = os.pathsep.join(filter(None, [str(places.data), os.environ.get("JUPYTER_PATH", "")]))
    os.environ["HPCML_NOTEBOOK_FOLDER"] = str(Path(context.settings.code.script).resolve().parent)
    kept = context.run.out / Path(context.settings.code.script).name

    def keep(*_: Any, **__: Any) -> None:
        text = nbformat.writes(notebook)  # type: ignore[no-untyped-call]
        safe_files.write(kept, text, 0o666 & ~context.settings.code.umask)

    class Client(NotebookClient):
        """Passes on what cells print, as they print it."""

        def output(self, outs: Any, message: Any, display_id: str | None, cell_index: int) -> Any:
            content = message["content"]
            if message["msg_type"] == "stream":
                stream = sys.stderr if content["name"] == "stderr" else sys.stdout
                print(content["text"], end="", file=stream, flush=True)
            return super().output(outs, message, display_id, cell_index)

    manager = AsyncKernelManager(
        kernel_name="python3", transport="ipc", connection_file=str(places.runtime / "kernel.json")
    )
    client = Client(notebook, km=manager, timeout=None, on_cell_executed=keep)
    client.owns_km = True  # it ends the kernel
    try:
        client.execute(cwd=context.settings.code.cwd)
    except CellExecutionError as error:
        number = _failed(notebook)
        print(_COLOURS.sub("", error.traceback), file=sys.stderr)
        print(f"hpcml: cell {number} failed. The results so far are in {kept}", file=sys.stderr)
        _write_down(context, error, number)
        return 1
    except DeadKernelError:
        print(f"hpcml: the notebook's kernel has ended. The results so far are in {kept}", file=sys.stderr)
        return 1
    finally:
        keep()
    print(f"hpcml: the executed notebook is in {kept}", file=sys.stderr)
    return 0


def _failed(notebook: Any) -> int:
    """Return the number of the cell with an error, from 1."""
    cells = enumerate(notebook.cells, 1)
    return next(
        (index for index, cell in cells if any(output.output_type == "error" for output in cell.get("outputs", ()))), 0
    )


def _write_down(context: Context, error: Any, number: int) -> None:
    """Write the cell's error for the hint at the run's end, as the launcher does for a script's."""
    name = _MODULE.search(error.evalue)
    one = {"type": error.ename, "message": error.evalue[:2000], "name": name[1] if name else None}
    record = {"file": context.settings.code.script, "line": None, "cell": number, "chain": [one]}
    try:
        safe_files.write(context.attempt.script_error, json.dumps(record))
    except OSError as problem:  # the log says what happened
        print(f"hpcml: {context.attempt.script_error} cannot be written: {problem.strerror}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
