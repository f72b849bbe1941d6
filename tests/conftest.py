"""What every test run needs before its first test."""

import asyncio
import os

import pytest
from hypothesis import HealthCheck, settings

# Threads of torch that wait must not spin: tests run beside each other, and who spins holds up
# those that are waited for. Read when torch is loaded, here and in processes that tests start.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# A busy machine is no fault of an example that takes long on it.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")

pytest_plugins = ["cluster.fixtures", "suite.plugin"]
"""One control plane and one cluster for the whole session, made when a test first asks; records."""


def pytest_configure() -> None:
    """Leave no event loop to be made by accident.

    looptime asks for the current loop in synchronous tests too; one that is made by that question
    is closed by nobody and fails a later test with a ResourceWarning.
    """
    asyncio.set_event_loop(None)


def pytest_addoption(parser: pytest.Parser) -> None:
    """`make soak` lets the storm of the chaos test rage for longer."""
    parser.addoption("--chaos-seconds", type=float, default=12.0, help="seconds of chaos")
