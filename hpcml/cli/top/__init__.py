"""``hpcml top``: the state of a run, live or once; each module is a way to show it, or a part of one."""

from hpcml.cli.top.live import add_options, run

__all__ = ["add_options", "run"]
