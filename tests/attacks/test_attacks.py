"""An honest crowd is answered right whatever one caller does, and nothing of it stays behind.

Attacks of a theme run together, several at a time, on the standing chain of their kind of server.
"""

from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

import pytest
import pytest_asyncio

from support.attacks.aim import Attack, Kind
from support.attacks.catalogue import ATTACKS, bouts
from support.attacks.harness import BUDGET_BYTES, IDLE_CORES, Report, Ring, ring

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(1800),  # the first who needs what is compiled compiles it
]

_NIGHTLY: Final = pytest.mark.nightly
_ABOVE_BUDGET_BYTES: Final = 64 * 2**20
_UPSTREAM: Final = (Kind.V2, Kind.V1, Kind.OPENAI)


def _bouts(*kinds: Kind) -> list[object]:
    """Attacks that run together, by what is behind the sidecar."""
    return [
        pytest.param(kind, bout, id=f"{kind}-{bout[0].name}-and-others".replace(" ", "-"))
        for kind in kinds
        for bout in bouts(kind)
    ]


class _Rings:
    """Standing chains, one of each kind."""

    def __init__(self, stack: AsyncExitStack, folder: Callable[[], Path]) -> None:
        self._stack = stack
        self._folder = folder
        self._standing: dict[Kind, Ring] = {}

    async def of(self, kind: Kind) -> Ring:
        if kind not in self._standing:
            started = ring(self._folder(), kind)
            self._standing[kind] = await self._stack.enter_async_context(started)
        return self._standing[kind]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def rings(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[_Rings]:
    """None stands before it is asked for."""
    async with AsyncExitStack() as stack:
        yield _Rings(stack, lambda: tmp_path_factory.mktemp("ring"))


def _judge(report: Report, kind: Kind, attacks: Iterable[Attack]) -> None:
    assert set(report.crowd) == {"right"}
    assert report.before
    assert report.during
    assert report.after
    for attack in attacks:
        attacker = report.attackers[attack.name]
        assert attacker["visits"] > 0, attack.name
        unexpected = {int(status) for status in attacker["told"]} - attack.may_be_told(kind)
        assert not unexpected, f"{attack.name}: {attacker['told']}"
    assert report.memory_bytes <= BUDGET_BYTES + _ABOVE_BUDGET_BYTES
    assert report.idle_cores is not None
    assert report.idle_cores < IDLE_CORES


@pytest.mark.parametrize(("kind", "attacks"), _bouts(Kind.OURS))
async def test_nobody_is_hurt_in_front_of_our_server(
    rings: _Rings, kind: Kind, attacks: list[Attack]
) -> None:
    _judge(await (await rings.of(kind)).bout(attacks), kind, attacks)


@_NIGHTLY
@pytest.mark.parametrize(("kind", "attacks"), _bouts(*_UPSTREAM))
async def test_nobody_is_hurt_in_front_of_a_server_of_ones_own(
    rings: _Rings, kind: Kind, attacks: list[Attack]
) -> None:
    _judge(await (await rings.of(kind)).bout(attacks), kind, attacks)


async def test_there_are_attacks_enough_in_front_of_every_kind_of_server() -> None:
    for kind in Kind:
        assert sum(kind in attack.kinds for attack in ATTACKS.values()) >= 60
