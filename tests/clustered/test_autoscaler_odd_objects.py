"""An autoscaler goes on for all others beside objects that cannot be read."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from batchedmodel_autoscaler.telemetry import MODELS
from cluster import ControlPlane
from support.autoscaler_cluster import PretendSidecar, autoscaler, probed, watched_model
from support.autoscaler_world import busy
from support.odd_objects import create, deep, unbounded, wide
from support.plane import sidecar_address, until
from support.process_memory import peak_bytes

TEAM = "odd-team"


@pytest.fixture
def plane(control_plane: ControlPlane) -> Iterator[ControlPlane]:
    sidecar = PretendSidecar(sidecar_address(control_plane, 7), busy(0.4))
    with watched_model(control_plane, TEAM, sidecar), unbounded(control_plane, TEAM):
        yield control_plane
    sidecar.close()


def test_models_that_cannot_be_parsed_end_no_autoscaler(
    plane: ControlPlane, tmp_path: Path
) -> None:
    create(plane, deep(TEAM, "deep-before"))
    for number in range(12):
        create(plane, wide(TEAM, f"wide-{number}"))
    with autoscaler(plane, tmp_path) as process:
        assert f"{MODELS} 14.0" in probed(plane, "/metrics"), "what is asked of them can be read"
        create(plane, deep(TEAM, "deep-after"))
        until("the new one is seen", lambda: f"{MODELS} 15.0" in probed(plane, "/metrics"))
        assert process.poll() is None
        assert peak_bytes(process.pid) < 250 * 2**20
