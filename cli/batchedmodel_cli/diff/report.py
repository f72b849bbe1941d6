"""Shows a difference: lines for people, a document for machines. Pure.

The keys of the document are promised in docs/diff.md.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any, Final

from batchedmodel_cli import formatting
from batchedmodel_cli.diff.effects import Difference, Edited, Effect, Followed
from batchedmodel_cli.diff.forecast import Forecast, Side
from batchedmodel_cli.diff.sentences import replacement, sentence

VERSION: Final = 1
"""Of the document; grows when a key changes its meaning or goes."""

_ABSENT: Final = "absent"
_NOTHING: Final = "-"
_LONGEST: Final = 40


def table(name: str, difference: Difference, forecast: Forecast | None) -> Iterator[str]:
    """One line for each field, then what each effect comes to."""
    if not difference.edited:
        yield f"{name}: nothing is different"
        return
    yield f"{name}: {_counted(len(difference.edited))}"
    yield ""
    old, new = difference.before.in_force, difference.after.in_force
    rows = [_row(one, old, new) for one in difference.edited]
    yield from formatting.aligned([*rows, *map(_following, difference.followed)], indent=2)
    yield ""
    for effect in difference.effects:
        yield f"{effect}: {sentence(effect, difference.before, difference.after)}"
    if forecast is not None:
        yield ""
        yield from _predicted(forecast)


def document(name: str, difference: Difference, forecast: Forecast | None) -> dict[str, Any]:
    """Everything, as JSON has it. Rates in requests a second, times in seconds, shares 0 to 1."""
    before, after = difference.before, difference.after
    return {
        "version": VERSION,
        "model": name,
        "changes": [
            {
                "field": one.edit.path,
                "old": one.edit.old,
                "new": one.edit.new,
                "effects": [effect.value for effect in one.effects],
            }
            for one in difference.edited
        ],
        "followed": [asdict(one) for one in difference.followed],
        "effects": {effect.value: sentence(effect, before, after) for effect in difference.effects},
        "pods": {"old": before.pods, "new": after.pods},
        "replacement": asdict(replacement(before, after))
        if Effect.ROLLS_PODS in difference.effects
        else None,
        "forecast": None if forecast is None else _foretold(forecast),
    }


def _row(one: Edited, old: Mapping[str, object], new: Mapping[str, object]) -> tuple[str, ...]:
    edit = one.edit
    change = f"{_shown(edit.old, old.get(edit.path))} -> {_shown(edit.new, new.get(edit.path))}"
    return edit.path, change, ", ".join(one.effects)


def _following(one: Followed) -> tuple[str, ...]:
    return one.path, f"{_shown(one.old)} -> {_shown(one.new)}", "(follows)"


def _shown(value: object, in_force: object = None) -> str:
    if value is None:
        return _ABSENT if in_force is None else f"{_ABSENT} ({_shown(in_force)})"
    text = value if isinstance(value, str) and value else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def _counted(fields: int) -> str:
    return "1 field changes" if fields == 1 else f"{fields} fields change"


def _predicted(forecast: Forecast) -> Iterator[str]:
    traffic, sides = forecast.traffic, (forecast.before, forecast.after)
    yield f"simulated, {formatting.rate(traffic.rate)}/s ({traffic.described}):"
    columns = [_column(side) for side in sides]
    rows = [("", "now", "then"), *zip(_FIGURES, *columns, strict=True)]
    yield from formatting.aligned(rows, indent=2)
    for when, side in zip(("now", "then"), sides, strict=True):
        if side.outlook is None:
            yield f"note: {when}: {side.reason}"
    for note in dict.fromkeys(note for side in sides for note in side.notes):
        yield f"note: {note}"


_FIGURES: Final = ("pods", "p50 latency", "p99 latency", "in time", "sustained at most")


def _column(side: Side) -> tuple[str, ...]:
    if side.outlook is None:
        return (str(side.pods), *[_NOTHING] * (len(_FIGURES) - 1))
    offered = side.outlook.offered
    latency = offered.latency
    return (
        str(side.pods),
        _NOTHING if latency is None else formatting.time(latency.p50),
        _NOTHING if latency is None else formatting.time(latency.p99),
        formatting.percent(offered.in_time_share),
        f"{formatting.rate(side.outlook.highest_rate)}/s",
    )


def _foretold(forecast: Forecast) -> dict[str, Any]:
    return {
        "rate": forecast.traffic.rate,
        "arrivals": forecast.traffic.described,
        "old": _side(forecast.before),
        "new": _side(forecast.after),
    }


def _side(side: Side) -> dict[str, Any]:
    found = side.outlook
    return {
        "device": side.device,
        "pods": side.pods,
        "offered": None if found is None else asdict(found.offered),
        "throughput_per_replica": None if found is None else found.throughput,
        "highest_rate": None if found is None else found.highest_rate,
        "reason": side.reason,
        "notes": list(side.notes),
    }
