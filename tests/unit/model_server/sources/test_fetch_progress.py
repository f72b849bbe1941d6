"""What a download says about itself, and how long a hub is waited for."""

import pytest

from batchedmodel_model_server.sources.folder import Progress, shown_bytes
from batchedmodel_model_server.sources.hub import Patience, is_offline


def test_progress_is_told_every_few_seconds() -> None:
    progress = Progress(total=1000, present=0, now=0.0)
    told = [second for second in range(1, 21) if progress.add(10, float(second))]
    assert told == [5, 10, 15, 20]


def test_what_was_there_before_is_done_but_has_no_speed() -> None:
    progress = Progress(total=4_000_000_000, present=1_000_000_000, now=10.0)
    assert progress.line(10.0) == "1.0 GB of 4.0 GB (25 %)"
    progress.add(1_000_000_000, 20.0)
    assert progress.line(20.0) == "2.0 GB of 4.0 GB (50 %), 100.0 MB/s"


def test_what_is_fetched_twice_makes_no_more_than_all() -> None:
    progress = Progress(total=100, present=0, now=0.0)
    progress.add(150, 1.0)
    assert progress.line(1.0).startswith("100 bytes of 100 bytes (100 %)")


def test_nothing_to_fetch_is_all_of_it() -> None:
    assert Progress(total=0, present=0, now=0.0).line(1.0) == "0 bytes of 0 bytes (100 %)"


@pytest.mark.parametrize(
    ("count", "shown"),
    [(0, "0 bytes"), (999, "999 bytes"), (1000, "1.0 kB"), (90_868_373, "90.9 MB")],
)
def test_bytes_are_shown_for_people(count: int, shown: str) -> None:
    assert shown_bytes(count) == shown


def test_pauses_grow_up_to_a_bound_and_end() -> None:
    patience = Patience(tries=9, first_pause_seconds=1.0, longest_pause_seconds=60.0)
    pauses = [patience.pause_seconds(failures) for failures in range(1, 10)]
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60, None]


@pytest.mark.parametrize(
    ("environ", "offline"),
    [
        ({}, False),
        ({"HF_HUB_OFFLINE": "0"}, False),
        ({"HF_HUB_OFFLINE": "1"}, True),
        ({"HF_HUB_OFFLINE": "true"}, True),
        ({"TRANSFORMERS_OFFLINE": "yes"}, True),
    ],
)
def test_offline_is_what_the_hubs_own_libraries_call_so(
    environ: dict[str, str], offline: bool
) -> None:
    assert is_offline(environ) is offline
