"""Padding and cutting: every item gets back exactly its own."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchedmodel_model_server.api.handler import Array, Batch, Spec
from batchedmodel_model_server.batching.declaration import Declaration, Sharing, declaration_of
from batchedmodel_model_server.batching.examples import examples
from batchedmodel_model_server.batching.items import (
    Answered,
    Collated,
    Output,
    collate,
    examine,
    parts,
    split,
)
from support.model_server_handlers import Giving, arrays_of, batch_of


def declared(inputs: dict[str, Spec], outputs: dict[str, Spec]) -> Declaration:
    return declaration_of(Giving({}, outputs, inputs))


FORMS: dict[str, Spec] = {
    "L": Spec("INT64", ("L",), pad=-1, max=9),
    "L x 2": Spec("FP32", ("L", 2), pad=5, max=9),
    "2 x L": Spec("INT32", (2, "L"), pad=7, max=9),
    "H x W": Spec("UINT8", ("H", "W"), max=9),
    "fixed": Spec("FP64", (2, 3)),
    "scalar": Spec("INT16", ()),
}


@st.composite
def batches(draw: st.DrawFn) -> tuple[str, list[Array], frozenset[int]]:
    """A form, items of it, and which of them are too large to be valid."""
    form: str = draw(st.sampled_from(sorted(FORMS)))
    spec = FORMS[form]
    items, bad = [], set()
    for index in range(draw(st.integers(1, 6))):
        longest = st.integers(1, 9)
        shape = [size if isinstance(size, int) else draw(longest) for size in spec.shape]
        if spec.letters and index and draw(st.booleans()):
            shape[spec.shape.index(spec.letters[0])] = 10
            bad.add(index)
        count = int(np.prod(shape, dtype=int))
        items.append((np.arange(count) + 10 * index).reshape(shape).astype(spec.dtype))
    return form, items, frozenset(bad)


@given(batches(), st.sampled_from(Sharing))
def test_what_is_collated_and_split_again_is_what_came_in(
    batch: tuple[str, list[Array], frozenset[int]], sharing: Sharing
) -> None:
    form, items, bad = batch
    if sharing is Sharing.PACKED and FORMS[form].letters != FORMS[form].shape[:1]:
        sharing = Sharing.PADDED
    declaration = replace(declared({"x": FORMS[form]}, {"y": FORMS[form]}), sharing=sharing)
    examined = examine(declaration, batch_of(x=items))
    assert set(examined.faults) == bad
    collated = collate(declaration, examined)

    def echo(part: Collated) -> Answered:
        if part.packed is not None and "x" in part.packed:
            output = Output(array=part.packed["x"], packed=True)
        else:
            output = Output(array=part.arrays["x"])
        return Answered({"y": output}, part.sizes, part.items)

    # As a forward pass would give it: what may not share one, part by part.
    passed = [echo(part) for part in parts(declaration, collated)]
    (output,), faults = split(declaration, passed, examined.count)
    assert not faults
    for index, (item, answer) in enumerate(zip(items, arrays_of(output), strict=True)):
        assert answer.size == 0 if index in bad else np.array_equal(item, answer)


def test_numbers_without_dimensions_are_collated_without_those_that_are_not_valid() -> None:
    """They could not be written into their rows: good items failed with a bad one."""
    spec = Spec("INT64", (), vocab=10)
    declaration = declared({"x": spec}, {"y": spec})
    examined = examine(declaration, batch_of(x=[np.int64(value) for value in (3, 10, 5)]))
    collated = collate(declaration, examined)
    assert collated.items == (0, 2)
    assert collated.arrays["x"].tolist() == [3, 5]
    assert collate(declaration, examined.only([2])).arrays["x"].tolist() == [5]


@pytest.mark.parametrize("form", ["L", "L x 2", "2 x L"])
def test_shorter_items_are_filled_up_with_the_pad_value(form: str) -> None:
    spec = FORMS[form]
    declaration = declared({"x": spec}, {"y": Spec("FP32", ())})
    items = [
        np.zeros([length if isinstance(size, str) else size for size in spec.shape], spec.dtype)
        for length in (1, 3)
    ]
    collated = collate(declaration, examine(declaration, batch_of(x=items)))
    padded = np.moveaxis(collated.arrays["x"], spec.shape.index("L") + 1, 1)
    assert (padded[0, 0] == 0).all()
    assert (padded[0, 1:] == spec.pad).all()
    assert (padded[1] == 0).all()


def test_a_batch_array_may_be_written_to() -> None:
    declaration = declared({"x": FORMS["fixed"]}, {"y": Spec("FP32", ())})
    collated = collate(declaration, examine(declaration, batch_of(x=[np.ones((2, 3))])))
    assert collated.arrays["x"].flags.writeable


def test_a_row_that_is_not_finite_fails_alone() -> None:
    declaration = declared({"x": FORMS["L"]}, {"v": Spec("FP32", (2,)), "s": Spec("FP32", ())})
    outputs = {
        "v": Output(array=np.array([[1, 2], [np.inf, 0], [3, 4]], "f4")),
        "s": Output(array=np.array([1, 2, 3], "f4")),
    }
    (vectors, scalars), faults = split(declaration, [Answered(outputs, {}, [0, 2, 3])], 4)
    assert faults == {2: "v: the model's answer is not a finite number"}
    assert [a.tolist() for a in arrays_of(vectors)] == [[1, 2], [], [], [3, 4]]
    # Without dimensions there is no empty tensor: a failed item carries a zero.
    assert [a.tolist() for a in arrays_of(scalars)] == [1, 0, 0, 3]


def test_what_is_not_finite_in_the_padding_harms_nobody() -> None:
    declaration = declared({"x": FORMS["L"]}, {"y": Spec("FP32", ("L",))})
    sizes = {"L": np.array([1, 2])}
    outputs = {"y": Output(array=np.array([[1, np.nan], [2, 3]], "f4"))}
    (output,), faults = split(declaration, [Answered(outputs, sizes, [0, 1])], 2)
    assert not faults
    assert [a.tolist() for a in arrays_of(output)] == [[1], [2, 3]]


def test_an_output_with_a_letter_of_its_own_is_cut_by_its_own_sizes() -> None:
    declaration = declared({"x": FORMS["L"]}, {"y": Spec("INT64", ("T", 2))})
    outputs = {"y": Output(array=np.arange(12).reshape(2, 3, 2), sizes=np.array([0, 2]))}
    (output,), _ = split(declaration, [Answered(outputs, {}, [0, 1])], 2)
    assert [a.tolist() for a in arrays_of(output)] == [[], [[6, 7], [8, 9]]]


def test_a_batch_without_answers_still_has_every_output() -> None:
    declaration = declared({"x": FORMS["L"]}, {"v": Spec("FP32", (2,)), "s": Spec("FP32", ())})
    (vectors, scalars), _ = split(declaration, [], 3)
    assert vectors.shapes == ((0,),) * 3
    assert scalars.shapes == ((),) * 3
    assert len(scalars.items()) == 3


def test_examples_keep_within_each_inputs_bound() -> None:
    declaration = declared(
        {"a": Spec("INT64", ("L",), max=4), "b": Spec("FP32", ("L", 2), max=9)},
        {"y": Spec("FP32", ())},
    )
    collated = examples(declaration, rows=3, length=8)
    assert collated.arrays["a"].shape == (3, 4)
    assert collated.arrays["b"].shape == (3, 4, 2)
    assert collated.sizes["L"].tolist() == [4, 4, 4]


def test_the_length_of_an_item_is_its_first_lettered_size() -> None:
    sizes = {"H": np.array([2, 3]), "W": np.array([5, 6])}
    batch = Batch(arrays={}, sizes=sizes, rows=2, device="host", handed_over=0.0)
    assert batch.lengths.tolist() == [2, 3]
    fixed = Batch(arrays={}, sizes={}, rows=2, device="host", handed_over=0.0)
    assert fixed.lengths.tolist() == [1, 1]


def test_a_name_that_a_batch_lacks_is_told_beside_those_it_has() -> None:
    """It was `KeyError: 'contxt'`, and a start that fails shows no more than this."""
    x = np.zeros((1, 2))
    sizes = {"L": np.array([2])}
    batch = Batch(arrays={"ids": x}, sizes=sizes, rows=1, device="cpu", handed_over=0.0)
    with pytest.raises(KeyError, match="contxt is not an input; known: ids"):
        batch.array("contxt")
    with pytest.raises(KeyError, match="T is not a letter; known: L"):
        batch.mask("T")
    with pytest.raises(KeyError, match="scale is not a parameter; known: none"):
        batch.params.array("scale")
    packed = Batch(arrays={}, packed={"ids": x}, sizes=sizes, rows=1, device="cpu", handed_over=0.0)
    with pytest.raises(KeyError, match="contxt is not an input; known: ids"):
        packed["contxt"]


def test_each_length_is_a_part_of_its_own_when_items_may_not_share() -> None:
    declaration = replace(
        declared({"x": FORMS["L x 2"]}, {"y": Spec("FP32", ())}), sharing=Sharing.APART
    )
    items = [np.full((size, 2), size, "f4") for size in (3, 1, 3, 2, 1)]
    collated = collate(declaration, examine(declaration, batch_of(x=items)))
    found = parts(declaration, collated)
    assert [part.items for part in found] == [(1, 4), (3,), (0, 2)]
    assert [part.arrays["x"].shape for part in found] == [(2, 1, 2), (1, 2, 2), (2, 3, 2)]


@pytest.mark.slow
def test_a_packed_row_has_neighbours_of_equal_length_and_positions_that_restart() -> None:
    torch = pytest.importorskip("torch")
    declaration = replace(
        declared({"x": FORMS["L"], "image": Spec("UINT8", (2, 2))}, {"y": Spec("FP32", ())}),
        sharing=Sharing.PACKED,
    )
    request = batch_of(
        x=[np.arange(size) for size in (2, 1, 2)],
        image=[np.full((2, 2), n, "u1") for n in (7, 8, 9)],
    )
    collated = collate(declaration, examine(declaration, request))
    assert collated.items == (1, 0, 2)
    batch = Batch(
        arrays=collated.arrays,
        sizes=collated.sizes,
        rows=collated.rows,
        device="cpu",
        handed_over=0.0,
        packed=collated.packed,
    )
    row = batch.packed()
    assert row is not None
    assert row.array("x").tolist() == [0, 0, 1, 0, 1]
    assert row["x"].shape == (1, 5)
    assert row.positions.tolist() == [[0, 0, 1, 0, 1]]
    assert row.ends.tolist() == [1, 3, 5]
    assert (row.longest, row.total) == (2, 5)
    # What has one size for all items is no part of the row.
    assert batch["image"][:, 0, 0].tolist() == [8, 7, 9]
    assert torch.is_tensor(batch["image"])
    assert "x" in batch
    with pytest.raises(TypeError, match=r"not padded: x is in batch.packed\(\)"):
        batch["x"]
