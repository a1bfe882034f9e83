"""``python -m hpcml`` is the ``hpcml`` command."""

import sys

from hpcml.cli import main

sys.exit(main())
