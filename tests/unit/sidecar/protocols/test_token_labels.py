"""What is told of a text's tokens, however little is computed for it."""

from array import array
from itertools import chain
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchedmodel_contract.inference.description import Activation, Classification
from batchedmodel_sidecar.protocols.scores import labelled, probabilities
from batchedmodel_sidecar.tokenizer import Marks

LABELS: Final = ("O", "PER", "LOC")
SCORES: Final = st.lists(
    st.lists(st.floats(-30, 30, width=32), min_size=3, max_size=3, unique=True), max_size=6
)


def marks_of(count: int) -> Marks:
    """So many tokens, each a letter, behind one that the tokenizer adds."""
    places = array("q", range(1, count + 1))
    starts, ends = array("q", range(count)), places
    return Marks(places=places, words=tuple("abcdef"[:count]), starts=starts, ends=ends)


@pytest.mark.slow
@given(SCORES, st.sampled_from(Activation), st.booleans())
def test_each_token_of_interest_has_its_likeliest_label(
    scores: list[list[float]], activation: Activation, raw: bool
) -> None:
    classes = Classification(output="y", labels=LABELS, activation=activation)
    flat = [0.0, 9.0, 0.0, *chain(*scores)]
    entries = labelled(flat, marks_of(len(scores)), classes, raw=raw)
    told = [own if raw else probabilities(own, activation) for own in scores]
    best = [own.index(max(own)) for own in scores]
    expected = [(index, own[at]) for index, (own, at) in enumerate(zip(told, best, strict=True))]
    kept = [(index, score) for index, score in expected if best[index] != 0]
    assert [entry["score"] for entry in entries] == pytest.approx([score for _, score in kept])
    for entry, (index, _) in zip(entries, kept, strict=True):
        assert entry == {
            "entity": LABELS[best[index]],
            "score": entry["score"],
            "index": index + 1,
            "word": "abcdef"[index],
            "start": index,
            "end": index + 1,
        }


@pytest.mark.interpreted
def test_nothing_is_computed_for_tokens_that_are_part_of_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[float] = []

    def watched(highest: float, *_: object) -> float:
        asked.append(highest)
        return 1.0

    monkeypatch.setattr("batchedmodel_sidecar.protocols.scores.probability", watched)
    classes = Classification(output="y", labels=LABELS, activation=Activation.SOFTMAX)
    scores = [0.0, 9.0, 0.0, *(5.0, 1.0, 1.0), *(1.0, 7.0, 1.0), *(6.0, 1.0, 1.0)]
    assert len(labelled(scores, marks_of(3), classes, raw=False)) == 1
    assert asked == [7.0]
