"""Connections to sidecars: kept between questions, bounded in number, and never mistaken."""

import asyncio
import json
import socket
import struct
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

from batchedmodel_autoscaler.polling.sidecars import POLL_TIMEOUT_SECONDS, Sidecars, most_kept
from batchedmodel_autoscaler.settings import AutoscalerSettings
from batchedmodel_autoscaler.state.pace import MOST_POLLS_PER_SECOND
from batchedmodel_contract.processes.listening import MOST_DESCRIPTORS
from batchedmodel_contract.processes.sidecar_api import (
    ADMIN_PORT,
    IDLE_SECONDS,
    MODEL_HEADER,
    POD_HEADER,
)
from batchedmodel_contract.schema.reading import declarations
from batchedmodel_contract.schema.rules import Real
from batchedmodel_kube.admin_client import KEPT_SECONDS, NoAnswer, OtherPod, Whom
from support.autoscaler_world import busy

WHOM = Whom(model="minilm", pod="uid-1")

LONGEST_PAUSE = next(
    declared.rule.maximum
    for _, declared in declarations(AutoscalerSettings)
    if declared.name == "pollSeconds" and isinstance(declared.rule, Real)
)
"""That can be set."""


class Pods:
    """All that ever have an address, one after the other."""

    def __init__(self) -> None:
        self.instance = "first"
        self.names: Mapping[str, str] = {}
        """What is said of oneself; a sidecar of an earlier version says nothing."""
        self.hangs = False
        self.known: list[asyncio.Transport] = []
        """Connections that the present one has accepted, in the order in which they came."""
        self.open: set[asyncio.Transport] = set()
        self.fewer = asyncio.Event()

    def replaced(self) -> None:
        """Its network goes without a farewell, and another has the address."""
        self.instance = "second"
        self.known.clear()

    async def until_open(self, count: int) -> None:
        """Return once so many connections are left."""
        async with asyncio.timeout(10.0):
            while len(self.open) > count:
                self.fewer.clear()
                await self.fewer.wait()


class _Answering(asyncio.Protocol):
    def __init__(self, pods: Pods) -> None:
        self._pods = pods

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._pods.known.append(transport)
        self._pods.open.add(transport)

    def connection_lost(self, error: Exception | None) -> None:
        self._pods.open.discard(self._transport)
        self._pods.fewer.set()

    def data_received(self, data: bytes) -> None:
        if self._transport not in self._pods.known:
            # As a kernel does with a connection that it does not know.
            linger = struct.pack("ii", 1, 0)
            found = self._transport.get_extra_info("socket")
            found.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            self._transport.abort()
        elif not self._pods.hangs:
            self._transport.write(answer(self._pods.instance, self._pods.names))


def answer(instance: str, names: Mapping[str, str]) -> bytes:
    body = json.dumps(busy(1.0, instance=instance).to_mapping()).encode()
    head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    head += "".join(f"\r\n{name}: {value}" for name, value in names.items())
    return head.encode() + b"\r\n\r\n" + body


@asynccontextmanager
async def pods_at(*addresses: str) -> AsyncIterator[Pods]:
    """At loopback addresses of this file's own."""
    loop, pods = asyncio.get_running_loop(), Pods()
    server = await loop.create_server(lambda: _Answering(pods), addresses, ADMIN_PORT)
    try:
        yield pods
    finally:
        server.close()
        for transport in pods.open:
            transport.abort()
        await server.wait_closed()


@asynccontextmanager
async def asking(most_kept: int = 100, **more: Any) -> AsyncIterator[Sidecars]:
    sidecars = Sidecars(most_kept, **more)
    try:
        yield sidecars
    finally:
        sidecars.close()


async def test_questions_to_a_pod_go_over_one_connection() -> None:
    async with pods_at("127.0.67.1") as pods, asking() as sidecars:
        for _ in range(5):
            await sidecars.stats("127.0.67.1", WHOM)
        assert len(pods.known) == 1


async def test_what_another_pod_says_at_the_address_is_dropped() -> None:
    async with pods_at("127.0.67.7") as pods, asking() as sidecars:
        pods.names = {MODEL_HEADER: "minilm", POD_HEADER: "uid-1"}
        assert (await sidecars.stats("127.0.67.7", WHOM)).instance == "first"
        for names in (
            {MODEL_HEADER: "other", POD_HEADER: "uid-2"},
            {MODEL_HEADER: "minilm", POD_HEADER: "uid-2"},
            {MODEL_HEADER: "other"},
        ):
            pods.names = names
            with pytest.raises(OtherPod, match="127.0.67.7 is pod .*, and not uid-1 of minilm"):
                await sidecars.stats("127.0.67.7", WHOM)


async def test_a_pod_that_got_the_address_of_another_is_heard_at_once_and_for_itself() -> None:
    async with pods_at("127.0.67.2") as pods, asking() as sidecars:
        assert (await sidecars.stats("127.0.67.2", WHOM)).instance == "first"
        pods.replaced()
        assert (await sidecars.stats("127.0.67.2", WHOM)).instance == "second"
        assert len(pods.known) == 1


@pytest.mark.slow
async def test_a_late_answer_is_not_taken_for_that_to_the_next_question() -> None:
    async with pods_at("127.0.67.3") as pods, asking() as sidecars:
        await sidecars.stats("127.0.67.3", WHOM)
        [first] = pods.known
        pods.hangs = True
        with pytest.raises(NoAnswer):
            await sidecars.stats("127.0.67.3", WHOM)
        pods.hangs = False
        first.write(answer("late", {}))
        assert (await sidecars.stats("127.0.67.3", WHOM)).instance == "first"
        assert len(pods.known) == 2
        await pods.until_open(1)


async def test_a_connection_that_the_pod_ends_is_given_back_without_another_question() -> None:
    async with pods_at("127.0.67.5") as pods, asking() as sidecars:
        await sidecars.stats("127.0.67.5", WHOM)
        pods.known[0].write_eof()
        # Ends when the other side has closed its end, too.
        await pods.until_open(0)
        await sidecars.stats("127.0.67.5", WHOM)
        assert len(pods.known) == 2


async def test_the_connection_to_a_pod_that_is_asked_no_more_is_closed_after_a_while() -> None:
    async with pods_at("127.0.67.6") as pods, asking(kept_seconds=0.05) as sidecars:
        await sidecars.stats("127.0.67.6", WHOM)
        await pods.until_open(0)


async def test_no_more_connections_are_kept_than_may_be_and_all_pods_are_heard() -> None:
    addresses = [f"127.0.67.{number}" for number in range(10, 15)]
    async with pods_at(*addresses) as pods, asking(most_kept=2) as sidecars:
        for _ in range(3):
            for address in addresses:
                await sidecars.stats(address, WHOM)
            await pods.until_open(2)
        assert len(pods.known) == 2 + 3 * 3


def test_there_are_descriptors_left_for_everything_else() -> None:
    assert most_kept(1024) == 512
    assert most_kept(256) == 0
    assert most_kept(MOST_DESCRIPTORS) == 10_000


def test_a_connection_waits_longer_than_a_pause_and_its_sidecar_longer_still() -> None:
    assert LONGEST_PAUSE is not None
    assert 2 * LONGEST_PAUSE < KEPT_SECONDS
    assert 20_000 / MOST_POLLS_PER_SECOND < KEPT_SECONDS
    assert KEPT_SECONDS + 10 * POLL_TIMEOUT_SECONDS < IDLE_SECONDS
