"""``python -m hpcml.kinds ROLE``: start a role of the run on this node, from the table of kinds."""

from __future__ import annotations

import sys

from hpcml.kinds import KINDS
from hpcml.node import role

if __name__ == "__main__":
    sys.exit(role.main(sys.argv[1:], KINDS))
