import asyncio
import io
import os
from collections.abc import Callable
from dataclasses import replace
from itertools import cycle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchedmodel_cli.run.console import Console
from batchedmodel_cli.run.processes import lines_of
from batchedmodel_cli.run.stages import Stage

NAMES = ("batcher", "model")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def never() -> None:
    pytest.fail("the stream was not lost")


def test_every_line_carries_its_process_name() -> None:
    stream = io.StringIO()
    console = Console(stream, NAMES, {}, never)
    console.show("batcher", "one")
    console.show("model", "two")
    console.tell("three")
    assert stream.getvalue() == "batcher | one\nmodel   | two\nrun     | three\n"


def test_names_are_coloured_on_a_terminal_only() -> None:
    stream = Terminal()
    Console(stream, NAMES, {}, never).show("model", "two")
    assert stream.getvalue() == "\x1b[35mmodel   | \x1b[0mtwo\n"


def test_no_color_is_heeded() -> None:
    stream = Terminal()
    Console(stream, NAMES, {"NO_COLOR": "1"}, never).show("model", "two")
    assert stream.getvalue() == "model   | two\n"


def test_a_reader_that_left_is_reported_once_and_then_written_into_nothing() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    lost: list[bool] = []
    with open(writing, "w", encoding="utf-8") as stream:
        console = Console(stream, NAMES, {}, lambda: lost.append(True))
        console.tell("nobody hears this")
        console.tell("nor this")
    assert lost == [True]


def stage_for(*stages: Stage) -> Callable[[], Stage | None]:
    """One after the other, and then none."""
    left = list(stages)
    return lambda: left.pop(0) if left else None


LOADING = Stage(name="loading the model", since=5.0)


@pytest.mark.looptime
async def test_a_start_that_nobody_watches_says_every_ten_seconds_what_it_is_at() -> None:
    """Of a download of minutes, and of a load, nothing was said."""
    stream, clock = io.StringIO(), asyncio.get_running_loop().time
    began = clock()
    console = Console(stream, NAMES, {}, never)
    await console.follow(stage_for(replace(LOADING, since=began), LOADING), lambda: began + 20)
    assert stream.getvalue().splitlines()[0] == "run     | loading the model, for 20 s"
    assert len(stream.getvalue().splitlines()) == 2
    assert clock() - began == pytest.approx(30.0)


@pytest.mark.looptime
async def test_a_terminal_that_cannot_go_back_gets_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """With `TERM=dumb`, as in Emacs, nothing was said of a load of minutes."""
    monkeypatch.setenv("TERM", "dumb")
    stream = Terminal()
    console = Console(stream, NAMES, {"NO_COLOR": "1"}, never)
    await console.follow(stage_for(LOADING), lambda: 20.0)
    assert stream.getvalue() == "run     | loading the model, for 15 s\n"


@pytest.mark.looptime
async def test_on_a_terminal_what_a_start_is_at_stands_below_the_lines_and_goes() -> None:
    stream, shown = Terminal(), list[str]()
    console = Console(stream, NAMES, {"NO_COLOR": "1"}, never)

    def stage() -> Stage | None:
        shown.append(stream.getvalue())
        if len(shown) == 2:
            console.show("model", "[a line] of 100 %")
        return LOADING if len(shown) < 4 else None

    await console.follow(stage, lambda: 8.0)
    assert "loading the model, for 3 s" in stream.getvalue()
    assert "model   | [a line] of 100 %\n" in stream.getvalue()
    console.show("model", "afterwards")
    assert stream.getvalue().endswith("model   | afterwards\n")


async def test_a_terminal_that_is_closed_while_a_start_is_shown_ends_the_run() -> None:
    class Closed(Terminal):
        def write(self, text: str) -> int:
            raise OSError

        def fileno(self) -> int:
            return nowhere

    lost: list[bool] = []
    nowhere = os.open(os.devnull, os.O_WRONLY)
    console = Console(Closed(), NAMES, {}, lambda: lost.append(True))
    await console.follow(lambda: LOADING, lambda: 8.0)
    os.close(nowhere)
    assert lost == [True]


LONGEST_BYTES = 1_000


async def lines(*parts: bytes) -> list[str]:
    """What is shown of a process that writes these parts."""
    reader = asyncio.StreamReader(LONGEST_BYTES)

    async def write() -> None:
        for part in parts:
            reader.feed_data(part)
            await asyncio.sleep(0)
        reader.feed_eof()

    _, read = await asyncio.gather(write(), _read(reader))
    return read


async def _read(reader: asyncio.StreamReader) -> list[str]:
    return [line async for line in lines_of(reader)]


async def test_the_last_line_needs_no_end() -> None:
    assert await lines(b"one\n\ntwo") == ["one", "", "two"]


async def test_of_a_progress_bar_only_its_last_state_is_shown() -> None:
    assert await lines(b"10 %\r50 %\r100 %\r\n") == ["100 %"]


async def test_bytes_that_are_no_text_are_replaced() -> None:
    assert await lines(b"a\xffb\n") == ["a\ufffdb"]


async def test_a_line_without_end_is_cut_instead_of_kept() -> None:
    shown = await lines(*[b"x" * 100] * 40)
    assert "".join(shown) == "x" * 4_000
    assert max(map(len, shown)) <= LONGEST_BYTES + 100


@given(
    written=st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\r\n"), max_size=8)),
    sizes=st.lists(st.integers(min_value=1, max_value=5), min_size=1),
)
def test_the_lines_do_not_depend_on_how_the_bytes_arrive(
    written: list[str], sizes: list[int]
) -> None:
    stream = io.BytesIO("".join(f"{line}\n" for line in written).encode())
    turns = cycle(sizes)
    parts = list(iter(lambda: stream.read(next(turns)), b""))
    assert asyncio.run(lines(*parts)) == written


async def test_a_line_that_was_cut_leaves_no_empty_one_behind() -> None:
    assert await lines(b"x" * 2_500 + b"\nshort\n") == ["x" * 2_500, "short"]
    shown = await lines(*[b"x" * 500] * 5, b"\n\nshort\n")
    assert ("".join(shown), shown[-2:]) == ("x" * 2_500 + "short", ["", "short"])
