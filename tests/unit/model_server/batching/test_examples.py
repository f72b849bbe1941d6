"""Made-up items are such as the declaration allows."""

from batchedmodel_model_server.api.handler import Spec
from batchedmodel_model_server.batching.declaration import declaration_of
from batchedmodel_model_server.batching.examples import examples, unlike_examples
from support.model_server_handlers import Giving

DECLARATION = declaration_of(
    Giving(
        {},
        {"y": Spec("FP32", ())},
        {
            "x": Spec("FP32", ("L", "M"), max=50, min=20),
            "z": Spec("INT64", ("L",), max=22, vocab=3),
        },
    )
)


def test_items_are_no_shorter_and_no_longer_than_declared() -> None:
    for length, sizes in ((16, (20, 20)), (21 * 21, (21, 21)), (22 * 50, (22, 50))):
        batch = examples(DECLARATION, 2, length)
        assert [tuple(pair) for pair in zip(batch.sizes["L"], batch.sizes["M"], strict=True)] == [
            sizes,
            sizes,
        ]


def test_items_that_are_to_differ_do_so_as_far_as_declared() -> None:
    examined = unlike_examples(DECLARATION, (11, 3, 160))
    assert examined.columns["x"].shapes == ((22, 30), (20, 22), (22, 50))
    assert not examined.faults
