"""Draws `minilm_rates.svg`: MiniLM of ours beside other servers of it, by `bench/rivals.py`.

`minilm_rates.json` holds what it printed last, and of its figures those of an idle machine that are
drawn, to three digits. A test compares them with `docs/performance.md`.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from svg import FAINT, line, picture, rectangle, text

_FILE: Final = Path(__file__).with_suffix(".json")
_NAME: Final = re.compile(
    r"(float32|defaults), idle, (\d+) callers?: (.+) \((float32|bfloat16)\), answers"
)
_PANELS: Final = ((64, 300.0, "64 callers at once"), (1, 640.0, "a lone caller"))
"""Callers, where their bars begin, and what is written above."""
_NOTES: Final = (
    "By default ours computes in bfloat16 where the processor has it, and the others in float32.",
    "KServe's agent waits five seconds for a batch of 32; LitServe got batches of 32 and 10 ms.",
)
_WIDE: Final = 230.0
_TOP, _STEP, _THICK = 84.0, 34.0, 20.0
_OURS, _OTHERS = "#90c2e7", "#e4e7eb"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """Answers a second of one server."""

    server: str
    datatype: str
    callers: int
    value: float


def about() -> str:
    """When, where and with what it was measured."""
    return str(_document()["about"])


def bars() -> list[Bar]:
    """In the order in which they are drawn: ours by default, ours in float32, the others."""
    found: dict[tuple[str, str, int], Bar] = {}
    for figure in _document()["figures"]:
        matched = _NAME.fullmatch(figure["name"])
        if matched is None:
            raise ValueError(f"no figure of an idle machine: {figure['name']}")
        _, callers, server, datatype = matched.groups()
        bar = Bar(server=server, datatype=datatype, callers=int(callers), value=figure["value"])
        found[server, datatype, bar.callers] = bar
    return sorted(found.values(), key=lambda bar: (not _is_ours(bar), bar.datatype))


def content() -> str:
    """What the file should hold."""
    title = "Embeddings a second of MiniLM on two cores: ours and five other servers"
    return picture(960, 392, title, _parts())


def _document() -> dict[str, Any]:
    document: dict[str, Any] = json.loads(_FILE.read_text("utf-8"))
    return document


def _parts() -> Iterator[str]:
    yield text(14, 26, "Embeddings a second of MiniLM, on two idle cores", bold=True)
    rows = list(dict.fromkeys((bar.server, bar.datatype) for bar in bars()))
    for number, (server, datatype) in enumerate(rows):
        y = _TOP + _STEP * number + 14
        yield text(286, y, f"{_label(server)}, {datatype}", anchor="end", bold=server[:4] == "ours")
    for callers, left, title in _PANELS:
        shown = [bar for bar in bars() if bar.callers == callers]
        most = max(bar.value for bar in shown)
        yield text(left, _TOP - 18, title, fill=FAINT)
        yield line(left, _TOP - 8, left, _TOP + _STEP * len(rows) - 6, FAINT)
        for bar in shown:
            y = _TOP + _STEP * rows.index((bar.server, bar.datatype))
            wide = _WIDE * bar.value / most
            yield rectangle(left, y, wide, _THICK, fill=_OURS if _is_ours(bar) else _OTHERS)
            is_best = bar.value == most
            yield text(left + wide + 8, y + 14, _number(bar.value), bold=is_best)
    y = _TOP + _STEP * len(rows) + 22
    for number, words in enumerate((*_NOTES, about())):
        yield text(14, y + 20 * number, words, fill=FAINT)


def _is_ours(bar: Bar) -> bool:
    return bar.server.startswith("ours")


def _label(server: str) -> str:
    """As short as the room is: without the version of a library within."""
    return "BatchedModel" if server.startswith("ours") else server.split(",")[0]


def _number(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


if __name__ == "__main__":
    Path(__file__).with_suffix(".svg").write_text(content(), "utf-8")
