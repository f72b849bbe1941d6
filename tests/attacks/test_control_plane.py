"""Healthy models live on whatever users, pods and objects of other namespaces do.

etcd, API server and Kubernetes' controllers are real; operator and autoscaler are processes with
the rights that the chart gives them. Attacks of a theme run together. Nothing else runs beside
them, since they measure how soon edits are applied.
"""

from collections.abc import AsyncIterator
from typing import Final

import pytest
import pytest_asyncio

from cluster import ControlPlane
from support.plane_attacks.aim import Theme
from support.plane_attacks.catalogue import ATTACKS, THEMES
from support.plane_attacks.fuzz import fuzz
from support.plane_attacks.harness import Report, Siege, besieged, p99

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.alone]

_NIGHTLY: Final = pytest.mark.nightly
_DAY_SECONDS: Final = 8.0
_NIGHT_SECONDS: Final = 20.0
_DAY_SHARE: Final = 0.2
_REQUESTS: Final = 20
"""Of the API server, one behind the other, in which a healthy model's edit is applied.

As long as they take on a busy machine an edit may take, too: no operator is faster than that.
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def siege(
    control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Siege]:
    async with besieged(control_plane, tmp_path_factory.mktemp("siege")) as standing:
        yield standing


def _judge(siege: Siege, report: Report, *, times: int = 1) -> None:
    """`times`: what a busy machine is allowed, where attacks are many."""
    print(report.lines())  # noqa: T201
    healthy, slow = report.healthy, times * _REQUESTS * p99(report.healthy.api)
    assert healthy.applied
    assert p99(healthy.applied) <= max(2.0, slow)
    assert p99(healthy.reported) <= max(3.0, 2 * slow)
    assert p99(healthy.mended) <= max(5.0, 4 * slow)
    # One in each bout, as long as there is one.
    assert healthy.scaled or siege.healthy.scaled_all
    assert not healthy.scaled or p99(healthy.scaled) <= max(15.0, 2 * slow)
    assert not healthy.wrong
    assert report.metric_age <= 10.0
    assert report.deaf == 0
    for process in (report.operator, report.autoscaler):
        assert process.restarts == 0
        assert process.answers > 0
        assert process.silent == 0
        assert process.peak_bytes <= 250e6
    for name, told in report.told.items():
        assert told[200] + told[201] > 1, f"{name}: {told}"


@pytest.mark.parametrize("theme", [pytest.param(one, id=one.name) for one in THEMES])
async def test_nobody_is_hurt_beside(siege: Siege, theme: Theme) -> None:
    _judge(siege, await siege.bout(theme.attacks, _DAY_SECONDS, share=_DAY_SHARE))


async def test_random_objects_hurt_nobody(siege: Siege) -> None:
    _judge(siege, await siege.bout([fuzz(100, seed=1)], None))


@_NIGHTLY
@pytest.mark.timeout(1800)
async def test_many_random_objects_hurt_nobody(siege: Siege) -> None:
    _judge(siege, await siege.bout([fuzz(2_000, seed=2)], None), times=3)


@_NIGHTLY
@pytest.mark.timeout(600)
@pytest.mark.parametrize("theme", [pytest.param(one, id=one.name) for one in THEMES])
async def test_nobody_is_hurt_beside_all_their_might(siege: Siege, theme: Theme) -> None:
    _judge(siege, await siege.bout(theme.attacks, _NIGHT_SECONDS), times=3)


async def test_every_row_that_is_the_control_planes_has_an_attack() -> None:
    assert {row for attack in ATTACKS.values() for row in attack.rows} >= {1, 2, 3, 4, 5, 7, 8}
