"""What is read of JSON and written again is the same value, however it is spelled."""

import json
import tracemalloc
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_contract.manifest.upstream import ServerProtocol
from batchedmodel_sidecar.backends.upstream.catalogue import Upstream
from batchedmodel_sidecar.backends.upstream.protocol import ParsedRequest
from batchedmodel_sidecar.backends.upstream.protocols import json_values
from batchedmodel_sidecar.backends.upstream.protocols.v2_rows import is_block
from batchedmodel_sidecar.errors import Rejected
from support.steps import steps

letters = st.text('ab[]{},:"\\é ', max_size=6) | st.sampled_from(["\ud800", "\udc00\ud800"])
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | letters,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(letters, inner, max_size=4),
    max_leaves=12,
)
spaces = st.sampled_from([(",", ":"), (", ", ": "), ("\n,\t", " : ")])


@pytest.mark.slow
@example([2**63, 2**64, -(2**63) - 1, 10**18], (",", ":"), True)
@example({"a": [2**64]}, ("\n,\t", " :\n"), True)
@given(values, spaces, st.booleans())
def test_a_value_is_written_as_it_was_read(
    value: Any, separators: tuple[str, str], plain: bool
) -> None:
    text = json.dumps({"a": value}, separators=separators, ensure_ascii=plain)
    document, write = json_values.read(text.encode(errors="replace"))
    again = json.loads(write(document["a"]))
    assert repr(again) == repr(json.loads(text.encode(errors="replace"))["a"])


def test_integers_beyond_64_bits_keep_their_digits() -> None:
    document, write = json_values.read(b'{"a": [18446744073709551616, -9223372036854775809]}')
    assert write(document["a"]) == b"[18446744073709551616,-9223372036854775809]"


def test_numbers_that_json_lacks_are_taken_as_they_are() -> None:
    document, write = json_values.read(b'{"a": [NaN, -Infinity, 1.0], "b": 1e999}')
    written = dict(json_values.texts(document, write))
    assert written == {"a": "[NaN,-Infinity,1.0]", "b": "Infinity"}


@pytest.mark.parametrize(
    "body",
    [b'{"a": [1, 2]', b'{"a": [1,, 2]}', b'{"a": [[1], 2]]}', b'{"a": "b}', b"", b'{"a"}', b"\xff"],
)
def test_a_body_that_is_no_json_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidInput, match=r"is not (JSON|UTF-8)"):
        json_values.read(body)


def test_what_is_no_object_is_refused() -> None:
    with pytest.raises(InvalidInput, match="is not a JSON object"):
        json_values.read(b"[]")


def test_a_field_of_a_request_that_is_named_twice_is_refused() -> None:
    with pytest.raises(InvalidInput, match="names a field twice"):
        json_values.read(b'{"a": [1], "a": [2]}', of_request=True)


@pytest.mark.parametrize("depth", [950, 1000, 1020, 100_000])
def test_nesting_that_others_cannot_read_is_refused(depth: int) -> None:
    body = b'{"a": ' + b"[" * depth + b"]" * depth + b"}"
    try:
        document, write = json_values.read(body)
        assert write(document["a"]) == b"[" * depth + b"]" * depth
    except InvalidInput as error:
        assert "nested too deeply" in str(error)  # noqa: PT017


def test_inputs_of_several_kinds_are_counted_before_one_is_made() -> None:
    """A number in front makes a list of texts no list of token ids."""
    openai = Upstream(ServerProtocol.OPENAI, "m").protocol
    body = b'{"input": [1' + b',""' * 100_000 + b"]}"

    def refused() -> None:
        with pytest.raises(Rejected):
            openai.parse(body, None, 1000)

    assert steps(refused) < 20_000


def test_a_long_list_of_token_ids_is_one_input_and_is_not_taken_apart() -> None:
    openai = Upstream(ServerProtocol.OPENAI, "m").protocol
    found: list[ParsedRequest | None] = []

    def parse(last: bytes) -> None:
        body = b'{"input": [1' + b",1" * 100_000 + last + b"]}"
        found.append(openai.parse(body, None, 10))

    assert steps(lambda: parse(b"")) < 20_000
    parse(b", -1")
    ids, others = found
    assert ids is not None
    assert len(ids.rows) == 1
    assert others is None  # for the server to say


def test_sizes_of_one_cost_no_memory_beyond_the_body() -> None:
    data = [[0]]
    tracemalloc.start()
    assert not is_block(data, (1, 300_000, *[1] * 62))
    assert not is_block(data, (1, 10**18))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 10_000
