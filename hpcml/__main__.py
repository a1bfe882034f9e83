"""``python -m hpcml`` is the ``hpcml`` command."""

import sys

from hpcml.cli.main import main

sys.exit(main())
