"""The clusters as pytest fixtures: one of each for the whole session, made when first asked for.

To be named in `tests/conftest.py` as a pytest plugin, because a fixture that is imported into
several conftest files would start a cluster for each.
"""

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import TypeVar

import pytest

from cluster.controlplane import Options
from cluster.errors import Unavailable
from cluster.kubernetes import (
    Cluster,
    ControlPlane,
    attached_cluster,
    existing_cluster,
    running_cluster,
    running_control_plane,
)
from cluster.settings import Settings
from cluster.signals import termination_as_interrupt
from cluster.slots import Slot
from cluster.waiting import waited

_Started = TypeVar("_Started")
_FIXTURES = frozenset({"cluster", "control_plane"})


@pytest.fixture(scope="session")
def cluster_settings() -> Settings:
    return Settings.from_environment(os.environ)


@pytest.fixture(scope="session")
def control_plane(cluster_settings: Settings) -> Iterator[ControlPlane]:
    """A control plane without a node, shared by the session's tests."""
    options = Options(audit=True, audit_reads=True)
    starting = running_control_plane(cluster_settings, options=options)
    with _started_or_skipped(starting) as control_plane:
        yield control_plane


@pytest.fixture(scope="session")
def cluster(cluster_settings: Settings) -> Iterator[Cluster]:
    """A cluster that runs pods, shared by the session's tests: ours, or the one that was given."""
    if cluster_settings.kubeconfig is not None:
        yield existing_cluster(cluster_settings, cluster_settings.kubeconfig)
        return
    if cluster_settings.slot is not None:
        attached = attached_cluster(cluster_settings, Slot(cluster_settings.slot))
        assert attached is not None, f"nobody runs a cluster in slot {cluster_settings.slot}"
        yield attached
        return
    with _started_or_skipped(running_cluster(cluster_settings)) as cluster:
        yield cluster


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # The first test of a session waits for the cluster, on a new machine even for its programs to
    # be built: that may take longer than any test.
    for item in items:
        waits = isinstance(item, pytest.Function) and _FIXTURES & set(item.fixturenames)
        if waits and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(300, func_only=True))


@contextmanager
def _started_or_skipped(starting: AbstractContextManager[_Started]) -> Iterator[_Started]:
    with ExitStack() as stack:
        stack.enter_context(termination_as_interrupt())
        try:
            with waited.counted():
                started = stack.enter_context(starting)
        except Unavailable as reason:
            pytest.skip(str(reason))
        yield started
