"""Helm for the tests of the chart."""

import pytest

from cluster.binaries import binaries
from cluster.errors import Unavailable
from cluster.settings import Settings
from support.chart import Helm


@pytest.fixture(scope="session")
def helm(cluster_settings: Settings) -> Helm:
    try:
        return Helm(binaries(cluster_settings, ["helm"])["helm"])
    except Unavailable as reason:
        pytest.skip(str(reason))
