"""What the tiers share: the `--bless` option, the installed command and the world that it runs in."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from remote_world import Laptop
from world import World

# Also where PYTHONDONTWRITEBYTECODE is set, or each process would compile all tests again; it counts in the tests.
WRITES_NO_BYTECODE, sys.dont_write_bytecode = sys.dont_write_bytecode, False
# No property fails because the machine is busy.
settings.register_profile("without clocks", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("without clocks")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--bless", action="store_true", help="rewrite the golden scripts instead of comparing with them")


def pytest_collection_finish() -> None:
    sys.dont_write_bytecode = WRITES_NO_BYTECODE


@pytest.fixture(scope="session")
def hpcml_command() -> Path:
    """Return the installed command, which the command line's tests start as a user does."""
    return Path(sys.executable).with_name("hpcml")


@pytest.fixture
def world(tmp_path: Path, hpcml_command: Path) -> World:
    """Return a user's surroundings, in which the command line's tests run the command."""
    return World(tmp_path, hpcml_command)


@pytest.fixture
def laptop(world: World) -> Iterator[Laptop]:
    """Return a world whose `ssh` leads to a login node."""
    with tempfile.TemporaryDirectory() as control:  # the folder of a test is too long a path for a socket
        yield Laptop(world, control)
