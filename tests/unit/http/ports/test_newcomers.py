"""A crowd of one address neither takes the loop's time nor keeps others out."""

import asyncio
import socket

import pytest
from aiohttp import web

from batchedmodel_http.ports.listener import Listener, Newcomers


def test_an_address_connects_some_times_at_once_and_then_at_a_rate() -> None:
    newcomers = Newcomers(at_once=10, a_second=5.0)
    assert [newcomers.let_in("a", 100.0) for _ in range(11)] == [True] * 10 + [False]
    assert newcomers.let_in("b", 100.0)
    assert [newcomers.let_in("a", 100.2) for _ in range(2)] == [True, False]
    let_in = sum(newcomers.let_in("a", 100.2 + number / 1_000) for number in range(1, 10_001))
    assert let_in == 50
    assert [newcomers.let_in("a", 200.0) for _ in range(11)] == [True] * 10 + [False]


def test_no_number_of_addresses_is_remembered_for_ever() -> None:
    newcomers = Newcomers(at_once=10, a_second=5.0)
    for number in range(100_000):
        assert newcomers.let_in(f"10.{number}", number * 0.01)
    assert len(vars(newcomers)["_paid_until"]) < 2_000


async def test_of_a_crowd_most_are_sent_away_and_another_address_is_let_in_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A full connection each took so long that the kernel dropped most of all that came."""
    entered: list[str] = []

    def enter(accepted: socket.socket, address: str) -> None:
        entered.append(address)
        accepted.close()

    listener = Listener(web.Application(), "127.0.0.1", 0)
    monkeypatch.setattr(listener, "_enter", enter)
    await listener.use(None)
    crowd = []
    for _ in range(600):
        one = socket.socket()
        one.bind(("127.0.66.1", 0))
        one.connect(("127.0.0.1", listener.port))
        crowd.append(one)
    other = socket.create_connection(("127.0.0.1", listener.port), source_address=("127.0.66.9", 0))
    turns = 0
    while "127.0.66.9" not in entered:
        await asyncio.sleep(0)
        turns += 1
    assert entered.count("127.0.66.1") < 140
    # Those that are let in have a turn each, and the others some of them.
    assert turns < 160
    await listener.close()
    for one in (*crowd, other):
        one.close()
