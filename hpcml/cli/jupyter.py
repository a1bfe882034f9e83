"""``hpcml jupyter``: a run whose script is JupyterLab, on the first node and with the run's own cluster."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from hpcml import features_by_point
from hpcml.cli import common, submit
from hpcml.errors import NotFoundError
from hpcml.sites import settings_layers
from hpcml.workload_forms import Form

if TYPE_CHECKING:
    from argparse import Namespace

    from hpcml.options.parser import Parser


def add_options(parser: Parser) -> None:
    """Add a submission's options and the session's own."""
    submit.add_options(parser, "jupyter")
    parser.epilog = (
        "To open the session on your laptop, type hpcml --host HOST tunnel --service jupyter RUN. "
        "To end the session, type hpcml cancel RUN."
    )
    group = parser.add_argument_group("the session")
    common.add_idle(group, "session", "never end it", default="1h")
    group.add_argument(
        "--notebook-dir",
        metavar="FOLDER",
        default="",
        help="folder that JupyterLab opens (default: the current folder)",
    )


def run(options: Namespace) -> int:
    """Submit the run, and wait for its end or not, as ``hpcml submit`` does."""
    idle = common.parse_idle(options.idle)
    spec = submit.service_spec(options, Form.JUPYTER)
    spec = spec.changed(idle=idle, cwd=notebook_folder(spec.code.cwd, options.notebook_dir))
    if getattr(options, "in") is not None:
        return int(features_by_point.only("run in a kept allocation")(options, spec))
    return submit.start(options, spec)


def notebook_folder(here: Path, chosen: str) -> Path:
    """Return the folder that JupyterLab opens: the chosen one, else the current; NotFoundError if it is no folder."""
    folder = here / settings_layers.user_path(chosen)
    if not folder.is_dir():
        problem = "is not a folder" if folder.exists() else "does not exist"
        place, hint = f"--notebook-dir: {folder}", "Create the folder with mkdir."
        raise NotFoundError(f"The folder for notebooks {problem}", place=place, hint=hint)
    return folder
