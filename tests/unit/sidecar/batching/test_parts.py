"""Small parts of the sidecar, one by one."""

import asyncio
import json
import math
import os
import time
import weakref
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_contract.manifest.batching import FILE_NAME, BatchSettings
from batchedmodel_contract.manifest.tenants import NOBODY, Share
from batchedmodel_sidecar.batching.batcher import Expiries, TimerFd
from batchedmodel_sidecar.body.byte_budget import ByteBudget
from batchedmodel_sidecar.settings import SettingsFolder


class Call:
    """Whatever has a deadline."""


class TestExpiries:
    def test_due_entries_come_in_order_of_their_time(self) -> None:
        expiries: Expiries[Call] = Expiries()
        a, b, c = Call(), Call(), Call()
        for at, entry in [(3.0, c), (1.0, a), (2.0, b)]:
            expiries.add(at, entry)
        assert expiries.next() == 1.0
        assert expiries.due(2.0) == [a, b]
        assert expiries.next() == 3.0

    def test_nothing_to_look_for_means_never(self) -> None:
        assert Expiries[Call]().next() == math.inf

    def test_discarded_entries_are_passed_over(self) -> None:
        stays = Call()
        expiries: Expiries[Call] = Expiries()
        gone = expiries.add(1.0, Call())
        expiries.add(2.0, stays)
        expiries.discard(gone)
        assert expiries.due(1.5) == []
        assert expiries.next() == 2.0
        assert expiries.due(2.0) == [stays]

    def test_a_discarded_entry_is_kept_by_nobody(self) -> None:
        expiries: Expiries[Call] = Expiries()
        entry = Call()
        seen = weakref.ref(entry)
        expiries.discard(expiries.add(1e9, entry))
        del entry
        assert seen() is None

    def test_memory_is_bounded_by_the_live_entries_even_behind_one_that_stays(self) -> None:
        expiries: Expiries[Call] = Expiries()
        expiries.add(0.5, Call())
        for number in range(1, 10_000):
            expiries.discard(expiries.add(float(number), Call()))
        assert len(expiries._heap) < 200


class TestByteBudget:
    def test_a_share_grows_with_what_arrives_and_is_given_back_whatever_happens(self) -> None:
        budget = ByteBudget(100)
        with pytest.raises(ZeroDivisionError), budget.hold(NOBODY) as held:
            held.grow(80 // 0)
        with budget.hold(NOBODY) as held:
            assert held.grow(60)
            assert held.grow(20)
            assert not held.grow(21)
            assert budget.held == 80
        assert budget.held == 0
        assert budget.refusal(NOBODY, 100) is None

    def test_bodies_of_one_tenant_leave_room_for_those_of_another(self) -> None:
        budget, flood = ByteBudget(800), Share("flood")
        with ExitStack() as theirs:
            while theirs.enter_context(budget.hold(flood)).grow(100):
                pass
            assert budget.held == 700
            with budget.hold(Share("other")) as mine:
                assert mine.grow(60)
                assert mine.grow(40), "the rest of its first body"

    def test_what_a_body_lends_leaves_the_spare_room_to_others(self) -> None:
        budget = ByteBudget(800)
        with budget.hold(Share("large")) as mine, budget.hold(Share("other")) as others:
            assert mine.grow(100)
            assert mine.lend(601) is None
            assert mine.refused == "too_large", "not even if nobody had anything"
            lent = mine.lend(600)
            assert lent is not None
            assert others.grow(60)
            mine.release()
            assert budget.held == 660, "until the end of its job"
            lent.release()
            assert mine.grow(100)
            assert mine.lend(560) is None
            assert mine.refused == "queue_full"
            must = mine.lend(900, must=True)
            assert must is not None
            assert not others.grow(1)
            must.release()
        assert budget.held == 0


class TestTimer:
    async def test_it_calls_once_and_not_before_its_time(self) -> None:
        called: asyncio.Queue[float] = asyncio.Queue()
        timer = TimerFd(asyncio.get_running_loop(), lambda: called.put_nowait(time.monotonic()))
        due = time.monotonic() + 0.02
        timer.arm(due)
        assert await asyncio.wait_for(called.get(), 2.0) >= due
        timer.close()
        assert called.empty()

    async def test_a_time_that_has_passed_calls_as_soon_as_possible(self) -> None:
        called = asyncio.Event()
        timer = TimerFd(asyncio.get_running_loop(), called.set)
        timer.arm(0.0)
        await asyncio.wait_for(called.wait(), 2.0)
        timer.close()

    async def test_never_disarms(self) -> None:
        called = asyncio.Event()
        later = asyncio.Event()
        timer = TimerFd(asyncio.get_running_loop(), called.set)
        other = TimerFd(asyncio.get_running_loop(), later.set)
        timer.arm(time.monotonic() + 0.01)
        timer.arm(math.inf)
        other.arm(time.monotonic() + 0.03)
        await asyncio.wait_for(later.wait(), 2.0)
        assert not called.is_set()
        timer.close()
        other.close()

    async def test_it_tells_by_how_much_it_was_late(self) -> None:
        loop, called = asyncio.get_running_loop(), asyncio.Event()
        late: list[float] = []
        timer = TimerFd(loop, called.set, late.append)
        timer.arm(time.monotonic() - 100)
        time.sleep(0.02)  # what holds the loop up  # noqa: ASYNC251
        await called.wait()
        assert 0.02 <= late[0] < 100, "from when it was armed, if its time had passed already"
        timer.close()

    async def test_closing_gives_the_descriptor_back(self) -> None:
        before = len(os.listdir("/proc/self/fd"))
        timer = TimerFd(asyncio.get_running_loop(), lambda: None)
        timer.close()
        timer.close()
        assert len(os.listdir("/proc/self/fd")) == before


class TestSettingsFolder:
    """Real files and a real inotify: the events are the point."""

    async def test_a_swapped_symbolic_link_is_seen(self, tmp_path: Path) -> None:
        first, second = BatchSettings(), replace(BatchSettings(), max_batch_size=7)
        _mount(tmp_path, "one", first)
        folder = SettingsFolder(str(tmp_path))
        assert folder.read() == first
        changes = folder.changes(first)
        seen = asyncio.ensure_future(anext(changes))
        await asyncio.sleep(0)
        _mount(tmp_path, "two", second)
        assert await asyncio.wait_for(seen, 2.0) == second
        await changes.aclose()

    async def test_a_file_written_in_place_is_seen(self, tmp_path: Path) -> None:
        first, second = BatchSettings(), replace(BatchSettings(), max_batch_size=7)
        (tmp_path / FILE_NAME).write_text(first.to_json())
        changes = SettingsFolder(str(tmp_path)).changes(first)
        seen = asyncio.ensure_future(anext(changes))
        await asyncio.sleep(0)
        (tmp_path / FILE_NAME).write_text(second.to_json())
        assert await asyncio.wait_for(seen, 2.0) == second
        await changes.aclose()

    async def test_a_change_before_the_watch_began_is_seen(self, tmp_path: Path) -> None:
        second = replace(BatchSettings(), max_batch_size=7)
        (tmp_path / FILE_NAME).write_text(second.to_json())
        changes = SettingsFolder(str(tmp_path)).changes(BatchSettings())
        assert await asyncio.wait_for(anext(changes), 2.0) == second
        await changes.aclose()

    async def test_a_version_that_cannot_be_used_is_counted_and_passed_over(
        self, tmp_path: Path
    ) -> None:
        first, good = BatchSettings(), replace(BatchSettings(), max_batch_size=7)
        (tmp_path / FILE_NAME).write_text(first.to_json())
        folder = SettingsFolder(str(tmp_path))
        changes = folder.changes(first)
        seen = asyncio.ensure_future(anext(changes))
        await asyncio.sleep(0)
        broken = json.loads(good.to_json()) | {"max_batch_size": 0}
        _replace(tmp_path, json.dumps(broken))
        _replace(tmp_path, "not JSON")
        _replace(tmp_path, good.to_json())
        assert await asyncio.wait_for(seen, 2.0) == good
        await changes.aclose()

    def test_a_missing_file_is_a_clear_error(self, tmp_path: Path) -> None:
        with pytest.raises(InvalidInput, match="batching.json: cannot be read"):
            SettingsFolder(str(tmp_path)).read()

    def test_what_is_no_file_is_not_waited_for(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / FILE_NAME)
        with pytest.raises(InvalidInput, match="batching.json: is no file"):
            SettingsFolder(str(tmp_path)).read()

    def test_a_file_of_any_size_is_not_taken_in(self, tmp_path: Path) -> None:
        with (tmp_path / FILE_NAME).open("wb") as file:
            file.truncate(1 << 40)
        with pytest.raises(InvalidInput, match=r"batching.json: is longer than \d+ bytes"):
            SettingsFolder(str(tmp_path)).read()


def _mount(folder: Path, version: str, settings: BatchSettings) -> None:
    """Write a version the way a kubelet does."""
    (folder / f"..{version}").mkdir()
    (folder / f"..{version}" / FILE_NAME).write_text(settings.to_json())
    (folder / "..data_tmp").symlink_to(f"..{version}")
    (folder / "..data_tmp").rename(folder / "..data")
    if not (folder / FILE_NAME).is_symlink():
        (folder / FILE_NAME).symlink_to(f"..data/{FILE_NAME}")


def _replace(folder: Path, text: str) -> None:
    (folder / "new").write_text(text)
    (folder / "new").rename(folder / FILE_NAME)
