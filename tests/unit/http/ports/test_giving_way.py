"""Who gives way to a newcomer: the address that holds most, and there whoever was idle longest."""

from dataclasses import dataclass
from typing import Any, cast

import pytest

from batchedmodel_http.ports.listener import Bounds, Connection, gives_way

BOUNDS = Bounds(connections=6, of_address=3)


@dataclass(slots=True, kw_only=True)
class Open:
    address: str
    used_at: float = 0.0
    known: bool = False
    busy: bool = False


def opened(**known: Any) -> Connection:
    return cast(Connection, Open(**known))


def held(addresses: str, *, known: str = "") -> list[Connection]:
    return [
        opened(address=address, used_at=float(number), known=address in known)
        for number, address in enumerate(addresses)
    ]


@pytest.mark.parametrize(
    ("newcomer", "addresses", "known", "goes"),
    [
        ("a", "", "", None),
        ("a", "aabbb", "", None),
        # Its own address has all that one may have.
        ("a", "baaa", "", ("a", 1)),
        # All places are taken: whoever holds most pays, and who was idle longest.
        ("k", "baaacc", "", ("a", 1)),
        ("k", "abcdef", "", ("a", 0)),
        ("b", "bacaca", "", ("a", 1)),
        # Whom we know stays for as long as others hold as many.
        ("k", "aaabbb", "a", ("b", 3)),
        ("a", "aaa", "a", ("a", 0)),
    ],
)
def test_who_gives_way(
    newcomer: str, addresses: str, known: str, goes: tuple[str, float] | None
) -> None:
    going = gives_way(newcomer, held(addresses, known=known), BOUNDS)
    assert (going and (going.address, going.used_at)) == goes


def test_who_was_used_last_stays() -> None:
    one, other = opened(address="a", used_at=9.0), opened(address="a", used_at=5.0)
    bounds = Bounds(connections=2, of_address=2)
    assert gives_way("a", [one, other], bounds) is other


def test_what_is_being_answered_stays_for_as_long_as_something_is_idle() -> None:
    answered, idle = opened(address="a", used_at=1.0, busy=True), opened(address="a", used_at=5.0)
    bounds = Bounds(connections=2, of_address=2)
    assert gives_way("a", [answered, idle], bounds) is idle
