"""Whether the nodes' clocks agree: each role tells its time when it starts, and the driver knows when that may be.

A role began after the batch script and before its word was seen, both by the driver's clock; what it tells as its time
must lie between. No file's time is asked, because some file systems take it from the client.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping

NOTED = 10.0  # seconds of difference from which on it is told


class Clocks:
    """The other nodes' clocks against this one's.

    Parameters
    ----------
    node
        This node, where the driver and the batch script run.
    behind, ahead
        The seconds that a node may be behind or ahead of this one and still accept the run's certificate.
    """

    def __init__(self, node: str, behind: float, ahead: float) -> None:
        self.node, self.behind, self.ahead = node, behind, ahead
        self.began = float(os.environ.get("HPCML_BEGAN") or time.time() - NOTED)
        self.differences: dict[str, float] = {}

    def take(self, node: str, told: float) -> None:
        """Take in the time that a role on a node told when it started, as soon as it is seen."""
        if node == self.node:
            return
        least = max(0.0, told - time.time()) or min(0.0, told - self.began)
        if abs(least) > abs(self.differences.get(node, 0.0)) or node not in self.differences:
            self.differences[node] = least

    @property
    def fatal(self) -> str:
        """Why no connection would come about, empty if they will."""
        beyond = {node: least for node, least in self.differences.items() if least < -self.behind or least > self.ahead}
        return self._sentence(beyond)

    @property
    def note(self) -> str:
        """Which clocks differ, empty if none does by much."""
        return self._sentence({node: least for node, least in self.differences.items() if abs(least) > NOTED})

    def _sentence(self, found: Mapping[str, float]) -> str:
        if not found:
            return ""
        if len(found) == len(self.differences) > 1 and len({least > 0 for least in found.values()}) == 1:
            nearest = min(found.values(), key=abs)  # all others agree that it is this one
            return f"clocks differ: that of {self.node} is {_by(-nearest)} all other nodes'"
        named = [f"that of {node} is {_by(least)} {self.node}'s" for node, least in list(found.items())[:4]]
        more = f", and {len(found) - 4} more" if len(found) > 4 else ""
        return f"clocks differ: {', '.join(named)}{more}"


def _by(seconds: float) -> str:
    return f"{abs(seconds):.0f} s or more {'ahead of' if seconds > 0 else 'behind'}"
