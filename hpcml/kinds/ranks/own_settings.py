"""The decisions of the plan that only this kind's code asks for: in plan.json under ``inside.of_kind``."""

# No `from __future__ import annotations`: hpcml/typed_json.py reads the types of fields, from texts slowly.
from typing import NamedTuple


class Own(NamedTuple):
    """What ranks need beside the settings of every kind."""

    mpi: str = ""  # the kind of PMI by which srun connects ranks: pmix or pmi2; empty: it does not
