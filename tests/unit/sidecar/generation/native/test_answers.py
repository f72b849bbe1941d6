"""Tokens become text as they come: whole characters, up to a stop string."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from batchedmodel_sidecar.generation.native.answers import StopString, TextDecoder
from support.byte_tokenizer import END, fallback_tokenizer_json, tokenizer_json

_TOKENIZER = Tokenizer.from_buffer(tokenizer_json())


def _decoded(data: bytes, stops: tuple[str, ...] = ()) -> tuple[list[str], TextDecoder]:
    decoder = TextDecoder(_TOKENIZER, [], [StopString(stop) for stop in stops])
    pieces = []
    for byte in data:
        pieces.append(decoder.add(byte))
        if decoder.stopped:
            return pieces, decoder
    return [*pieces, decoder.end()], decoder


@given(st.text(max_size=60))
def test_pieces_make_up_the_text(text: str) -> None:
    assert "".join(_decoded(text.encode())[0]) == text


@given(st.binary(max_size=60))
def test_bytes_that_are_no_text_are_told_once_as_what_cannot_be_read(data: bytes) -> None:
    told = "".join(_decoded(data)[0])
    assert len(told) <= len(data)
    assert told.replace("\ufffd", "").encode() == b"".join(
        piece.encode() for piece in data.decode(errors="replace").split("\ufffd")
    )


@given(st.text("ab", max_size=30), st.lists(st.text("ab", min_size=1, max_size=4), min_size=1))
def test_a_text_ends_in_front_of_the_first_stop_string(text: str, stops: list[str]) -> None:
    pieces, decoder = _decoded(text.encode(), tuple(stops))
    # The stop string whose last character comes first ends it, and of these the longest.
    ends = [
        (at + len(stop), at)
        for stop in stops
        for at in range(len(text))
        if text.startswith(stop, at)
    ]
    expected = text if not ends else text[: min(ends)[1]]
    assert "".join(pieces) == expected
    assert decoder.stopped == bool(ends)


def test_what_may_become_a_stop_string_is_held_back() -> None:
    decoder = TextDecoder(_TOKENIZER, [], [StopString("\n\nQ:")])
    told = [decoder.add(byte) for byte in b"yes\n\nno"]
    assert told == ["y", "e", "s", "", "", "\n\nn", "o"]


def test_special_tokens_are_no_text() -> None:
    decoder = TextDecoder(_TOKENIZER, [], ())
    assert [decoder.add(END), decoder.add(ord("x")), decoder.end()] == ["", "x", ""]


_FALLBACK = Tokenizer.from_buffer(fallback_tokenizer_json())


@given(st.lists(st.integers(3, _FALLBACK.get_vocab_size() - 1), max_size=40))
def test_single_bytes_among_words_make_no_error_and_lose_no_word(tokens: list[int]) -> None:
    decoder = TextDecoder(_FALLBACK, [], ())
    told = "".join([decoder.add(token) for token in tokens]) + decoder.end()
    words = [_FALLBACK.decode([token]) for token in tokens if token >= 259]
    at = 0
    for word in words:
        at = told.index(word, at) + len(word)


def test_characters_of_several_bytes_are_told_whole() -> None:
    decoder = TextDecoder(_FALLBACK, [], ())
    tokens = [byte + 3 for byte in "ä€".encode()]
    assert [decoder.add(token) for token in tokens] == ["", "ä", "", "", "€"]


def test_a_long_row_of_what_is_no_text_is_told_once() -> None:
    told = "".join(_decoded(b"\x80" * 200 + b"ab")[0])
    assert told == "\N{REPLACEMENT CHARACTER}" * 200 + "ab"


_WORDS = {"hello": 259 + 1, "x": 259 + 3}


def _behind(tokenizer: Tokenizer, prompt: list[int], answer: list[int]) -> str:
    decoder = TextDecoder(tokenizer, prompt, ())
    return "".join([decoder.add(token) for token in answer]) + decoder.end()


def _of_bytes(data: bytes) -> list[int]:
    """Tokens of the tokenizer whose words may be bytes."""
    return [byte + 3 for byte in data]


@given(st.text(max_size=12), st.text(max_size=12))
@example("hello \ufffd", "ab")
@example("\ufffd" * 9, "\ufffd\ufffda")
@example("hello \ufffd", "")
def test_an_answer_holds_no_piece_of_its_prompt(prompt: str, answer: str) -> None:
    """The decoder told `ello \\ufffd` of a prompt that ends so, in front of the answer."""
    assert _behind(_TOKENIZER, list(prompt.encode()), list(answer.encode())) == answer


@pytest.mark.parametrize(
    ("prompt", "answer", "told"),
    [
        (b"hello \xe2\x82", b"\xacab", "\ufffdab"),
        (b"hello \xe2", b"\x82\xacab", "\ufffd\ufffdab"),
        (b"hello \xe2\x82", b"ab", "ab"),
        (b"\x82\xac\xe2\x82", b"\xac", "\ufffd"),
    ],
)
def test_of_a_character_that_the_prompt_began_the_answer_tells_its_own_bytes(
    prompt: bytes, answer: bytes, told: str
) -> None:
    assert _behind(_TOKENIZER, list(prompt), list(answer)) == told


@pytest.mark.parametrize(
    ("prompt", "answer", "told"),
    [
        # The last eight tokens begin within a character, and the bytes in a row are read together.
        ("\u4e2d\u6587\u597d".encode(), "\u00e4x".encode(), "\u00e4x"),
        ("x\ufffd".encode(), b"x", "x"),
        ("x\ufffd".encode(), "\u00e4".encode(), "\u00e4"),
    ],
)
def test_bytes_in_a_row_begin_no_answer_of_their_own(
    prompt: bytes, answer: bytes, told: str
) -> None:
    assert _behind(_FALLBACK, _of_bytes(prompt), _of_bytes(answer)) == told
    assert _behind(_FALLBACK, [_WORDS["hello"], *_of_bytes(prompt)], _of_bytes(answer)) == told


@given(st.lists(st.integers(3, _FALLBACK.get_vocab_size() - 1), max_size=20), st.integers(0, 19))
def test_a_prompt_of_any_tokens_leaves_a_word_behind_it_as_it_is(
    prompt: list[int], bytes_at_end: int
) -> None:
    tokens = [*prompt, *_of_bytes(bytes(range(0x80, 0x80 + bytes_at_end)))]
    assert _behind(_FALLBACK, tokens, [_WORDS["hello"], _WORDS["x"]]).removeprefix(" ") == "hellox"
