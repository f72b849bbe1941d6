"""What a sidecar tells the autoscaler, as a document."""

from dataclasses import replace

import pytest

from batchedmodel_autoscaler.polling.stats_document import stats_from_mapping
from batchedmodel_contract.invalid_input import InvalidInput
from support.autoscaler_world import CALM


@pytest.mark.parametrize("share", [None, 0.25, 1.0])
def test_stats_come_back_as_they_were_told(share: float | None) -> None:
    told = replace(CALM, sustainable_share=share)
    assert stats_from_mapping(told.to_mapping()) == told


def test_a_sidecar_of_an_earlier_version_tells_no_share() -> None:
    document = CALM.to_mapping()
    del document["sustainable_share"]
    assert stats_from_mapping(document).sustainable_share is None


def test_a_sidecar_of_an_earlier_version_has_one_batch_at_a_time() -> None:
    told = replace(CALM, max_concurrent_batches=3)
    assert stats_from_mapping(told.to_mapping()) == told
    document = told.to_mapping()
    del document["max_concurrent_batches"]
    assert stats_from_mapping(document).max_concurrent_batches == 1


@pytest.mark.parametrize("share", [0, -0.5, 1.5, "0.5", float("nan")])
def test_a_share_that_is_none_is_refused(share: object) -> None:
    document = CALM.to_mapping() | {"sustainable_share": share}
    with pytest.raises(InvalidInput, match="sustainable_share"):
        stats_from_mapping(document)


LATER = ("waited_row_seconds", "released_rows", "rows_per_second", "shortest_latency_seconds")


def test_amounts_come_back_as_they_were_told() -> None:
    amounts = {name: number for number, name in enumerate(LATER)}
    told = replace(CALM, **amounts)  # type: ignore[arg-type]
    assert stats_from_mapping(told.to_mapping()) == told


@pytest.mark.parametrize("name", LATER)
def test_an_amount_may_be_missing_and_may_not_be_nonsense(name: str) -> None:
    document = CALM.to_mapping()
    assert getattr(stats_from_mapping(document | {name: None}), name) is None
    del document[name]
    assert getattr(stats_from_mapping(document), name) is None
    for wrong in (-1, "1", float("inf"), float("nan")):
        with pytest.raises(InvalidInput, match=name):
            stats_from_mapping(document | {name: wrong})
