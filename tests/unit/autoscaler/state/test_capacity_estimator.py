"""What pods teach, and what of it is worth being written down."""

from dataclasses import replace
from typing import Any

import pytest

from batchedmodel_autoscaler.state.capacity_estimator import ReadyPod, is_news, learnt
from batchedmodel_kube.capacity import Capacity

POD = ReadyPod(
    revision="a",
    created="2026-11-20T10:00:00Z",
    startup_seconds=60.0,
    watched=True,
    rows_per_second=400.0,
    shortest_latency_seconds=0.030,
)
KNOWN = Capacity(
    revision="a", rows_per_second=400.0, startup_seconds=60.0, shortest_latency_seconds=0.030
)


def test_of_several_pods_the_median_holds() -> None:
    pods = [replace(POD, rows_per_second=rate) for rate in (380.0, 410.0, 100.0)]
    found = learnt(pods, None)
    assert found == replace(KNOWN, rows_per_second=380.0)


def test_the_youngest_pod_says_which_revision_it_is_about() -> None:
    newer = replace(
        POD, revision="b", created="2026-11-20T11:00:00Z", rows_per_second=200.0, watched=False
    )
    found = learnt([POD, POD, newer], KNOWN)
    assert found == replace(KNOWN, revision="b", rows_per_second=200.0)


def test_where_no_pod_is_ready_what_is_known_stays() -> None:
    assert learnt([], KNOWN) == KNOWN
    assert learnt([], None) is None


def test_what_pods_do_not_tell_is_remembered_for_their_revision_only() -> None:
    mute = replace(POD, rows_per_second=None, shortest_latency_seconds=None)
    assert learnt([mute], KNOWN) == KNOWN
    other = Capacity(revision="b", startup_seconds=60.0)
    assert learnt([replace(mute, revision="b")], KNOWN) == other


def test_a_start_that_nobody_watched_is_believed_only_where_none_is_known() -> None:
    found = replace(POD, watched=False, startup_seconds=500.0)
    assert learnt([found], KNOWN) == KNOWN
    assert learnt([found], None) == replace(KNOWN, startup_seconds=500.0)
    assert learnt([replace(found, startup_seconds=9999.0)], None) == replace(
        KNOWN, startup_seconds=600.0
    )
    long = replace(POD, startup_seconds=1800.0)
    assert learnt([found, long], KNOWN) == replace(KNOWN, startup_seconds=1800.0)


@pytest.mark.parametrize(
    ("change", "news"),
    [
        ({"rows_per_second": 439.0}, False),
        ({"rows_per_second": 441.0}, True),
        ({"rows_per_second": 359.0}, True),
        ({"rows_per_second": None}, False),
        ({"startup_seconds": 74.0}, False),
        ({"startup_seconds": 76.0}, True),
        ({"startup_seconds": 44.0}, True),
        ({"shortest_latency_seconds": 0.032}, False),
        ({"shortest_latency_seconds": 0.034}, True),
        ({"revision": "b"}, True),
        ({"revision": ""}, False),
    ],
    ids=str,
)
def test_only_what_differs_by_more_than_measurements_do_is_news(
    change: dict[str, Any], news: bool
) -> None:
    assert is_news(replace(KNOWN, **change), KNOWN) is news


def test_the_first_number_is_news_and_a_bare_revision_is_none() -> None:
    assert is_news(KNOWN, None)
    assert is_news(KNOWN, replace(KNOWN, rows_per_second=None))
    assert not is_news(Capacity(revision="a"), None)
