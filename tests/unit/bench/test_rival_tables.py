"""What `bench/rivals.py` makes of what it measured, and how it reads answers of any form."""

import math

import pytest

from rival_tables import Load, Row, Sample, figures, markdown
from rivals import candidates, numbers

IDLE = Load(callers=64, beside=False)
BESIDE = Load(callers=1, beside=True)


def samples(*rates: float) -> list[Sample]:
    return [Sample(rate=rate, p50=1000 / rate, p99=2000 / rate) for rate in rates]


def row(name: str, idle: list[Sample], *, datatype: str = "float32", ours: bool = False) -> Row:
    return Row(
        name=name, datatype=datatype, is_ours=ours, samples={IDLE: idle, BESIDE: samples(*[8] * 3)}
    )


ROWS = [
    row("ours", samples(120, 100, 110), datatype="bfloat16", ours=True),
    row("one", samples(60, 40, 50)),
    row("another", samples(40, 80, 50)),
]


def test_a_table_names_each_server_what_it_computes_in_and_the_spread_of_its_rounds() -> None:
    """A rate without its datatype compared bfloat16 with float32 unseen."""
    table = markdown("defaults", ROWS)
    assert "| server | computes in | 64 callers, idle | 1 caller, beside |" in table
    assert "| ours | bfloat16 | 110 (100 to 120) | 8 (8 to 8) |" in table
    assert "| one | float32 | 20 / 40 | 125 / 250 |" in table


def test_ours_is_compared_with_the_best_rival_of_each_round() -> None:
    """Over one rival's median ours looked better than over whichever was best in a round."""
    by_name = {one.name: one for one in figures("defaults", ROWS)}
    ratio = by_name["defaults, idle, 64 callers: ours over the best rival"]
    assert ratio.rounds == (2.0, 1.25, 2.2)
    assert (ratio.value, ratio.goal, ratio.holds) == (2.0, "at least 1.5", True)
    lone = by_name["defaults, beside a neighbour, 1 caller: ours over the best rival"]
    assert (lone.value, lone.goal, lone.holds) == (1.0, "at least 0.95", True)
    p99 = by_name["defaults, idle, 64 callers: one (float32), p99"]
    assert (p99.value, p99.unit, p99.goal) == (40.0, "ms", None)


def test_a_server_that_answered_nothing_has_no_latency_and_holds_no_goal() -> None:
    """No answers in a round must not count as a quick one."""
    dead = [Sample(rate=0, p50=math.nan, p99=math.nan)] * 3
    rows = [row("ours", dead, ours=True), *ROWS[1:]]
    (ratio,) = [
        one for one in figures("float32", rows) if one.name.startswith("float32, idle") and one.goal
    ]
    assert (ratio.value, ratio.holds) == (0.0, False)
    assert "| ours | float32 | nan / nan |" in markdown("float32", rows)


@pytest.mark.parametrize(
    "answer",
    [
        {"data": [{"embedding": [0.5, 1.5], "index": 0}], "usage": {"prompt_tokens": 3}},
        {"embedding": [0.5, 1.5]},
        {"message": "", "predictions": [[0.5, 1.5]]},
    ],
    ids=["OpenAI", "of one's own", "KServe"],
)
def test_the_embedding_is_read_from_any_form_of_answer(answer: object) -> None:
    """Servers that refuse with status 200 would count as quick; they have no embedding."""
    assert numbers(answer) == [0.5, 1.5]
    assert numbers({"message": "no such model", "predictions": None}) == []


def test_both_tables_have_ours_in_both_forms_and_every_rival_with_its_version() -> None:
    """A row that is lost with a table's server would go unseen."""
    shown = candidates(quick=False)
    for table in ("float32", "defaults"):
        names = [one.name for one in shown if table in one.tables]
        assert names[:2] == ["ours, plain Python", "ours, compiled"]
        rivals = ["FastAPI", "batched", "LitServe", "Infinity", "KServe's agent"]
        assert [name.rstrip("v.,0123456789").strip() for name in names[2:]][1:] == rivals[1:]
        assert names[2].startswith("FastAPI 0.")
    assert [one.name.split(" ")[0] for one in candidates(quick=True)] == ["ours,", "FastAPI"]
