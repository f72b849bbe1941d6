"""Turns text into token ids while the request waits for its turn anyway.

The scheduler needs exact lengths, and 32 texts of 128 tokens take 11 to 13 ms for which a GPU
should not wait. The tokenizer releases the interpreter's lock, so long texts go to a thread. Short
ones are done sooner than a thread wakes.
"""

from __future__ import annotations  # array.array takes no type argument at run time

import logging
from array import array
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from functools import partial
from typing import Final, NamedTuple

from tokenizers import Encoding, Tokenizer

from batchedmodel_contract.inference.description import TextInput
from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_contract.manifest.tenants import NOBODY, Share
from batchedmodel_contract.outcomes import Rejection
from batchedmodel_sidecar.body.fair_threads import FairThreads
from batchedmodel_sidecar.errors import RETRY_SOON, Rejected

logger: Final = logging.getLogger(__name__)

INLINE_CHARACTERS: Final = 600  # about 0.2 ms of tokenising
_MOST_CHARACTERS: Final = 32_000_000  # at work at once: some seconds of two threads
_MOST_OF_A_CALL: Final = 4_000_000
"""Bytes of UTF-8 that one call may have. A core takes two to four seconds for them, whatever the
language, and nobody else's large body is read meanwhile."""
_SAID_CHARACTERS: Final = 200


Text = str | tuple[str, str]
"""A text, or a pair of texts that the model reads as one."""


class Marks(NamedTuple):
    """The tokens of a text, in order, without those that the tokenizer adds.

    They are columns, which are pickled in a fraction of the time that records take.
    """

    places: array[int]
    """The index of each among all tokens."""
    words: tuple[str, ...]
    """As the vocabulary has them."""
    starts: array[int]
    """Where in the text each begins, in characters."""
    ends: array[int]


class Tokenised(NamedTuple):
    """What a text became: INT64 arrays of one length."""

    ids: array[int]
    segments: array[int] | None
    """None when nobody asked for them."""
    marks: Marks | None = None
    """Of the tokens that are the text's own; None when nobody asked for them."""


def text_threads(at_once: int) -> FairThreads:
    """Threads for long texts, with room for as many characters as may be at work."""
    executor = ThreadPoolExecutor(at_once, thread_name_prefix="tokenise")
    return FairThreads(executor, at_once=at_once, room=_MOST_CHARACTERS)


class Tokens:
    """A model's tokenizer, cut to the length that its server takes."""

    def __init__(self, tokenizer_json: bytes, text: TextInput, threads: FairThreads) -> None:
        """The threads outlive the model: its server may restart while a text is tokenised.

        Raises `InvalidInput` when the file is not a tokenizer, or not one that cuts to the length.
        """
        try:
            self._tokenizer = Tokenizer.from_buffer(tokenizer_json)
            self._tokenizer.no_padding()
            self._tokenizer.enable_truncation(text.max_tokens)
        except BaseException as error:
            # A panic of the library, which is written in Rust, is no `Exception`.
            words = f"{type(error).__name__}: {error}"[:_SAID_CHARACTERS]
            raise InvalidInput("tokenizer", f"cannot be read: {words}") from error
        self.tokenizer_json: Final = tokenizer_json
        """The file, from which the helper makes the same tokenizer."""
        self._text: Final = text
        self._with_segments = text.segments is not None
        self._max_tokens = text.max_tokens
        self._threads = threads
        self.share = NOBODY

    def are_of(self, tokenizer_json: bytes, text: TextInput) -> bool:
        """Whether another made of these would be the same."""
        return (self.tokenizer_json, self._text) == (tokenizer_json, text)

    def asked_by(self, share: Share) -> Tokens:
        """The same tokenizer, whose long texts take this tenant's turns and room."""
        theirs = copy(self)
        theirs.share = share
        return theirs

    async def encode(
        self, texts: Sequence[Text], *, whole: bool = False, marked: bool = False
    ) -> list[Tokenised]:
        """Token ids of each text, special tokens included, and where they come from if `marked`.

        Raises `Rejected`, also where the tokenizer fails, and `InvalidInput` for a text that is too
        long if it must stay `whole`.
        """
        characters = sum(map(_characters, texts))
        if characters <= INLINE_CHARACTERS:
            return self._encode(texts, whole, marked)
        if (size := sum(map(_bytes, texts))) > _MOST_OF_A_CALL:
            message = f"the texts have {size} bytes in UTF-8; {_MOST_OF_A_CALL} are taken"
            raise Rejected(Rejection.TOO_LARGE, message)
        refusal = self._threads.refusal(self.share, characters)
        if refusal is not None:
            message = f"{self._threads.room.in_use} characters are being tokenised; no more fit"
            raise Rejected(refusal, message, retry_after=RETRY_SOON)
        work = partial(self._encode, texts, whole, marked)
        return await self._threads.do(self.share, characters, work)

    def _encode(self, texts: Sequence[Text], whole: bool, marked: bool) -> list[Tokenised]:
        # The fast form does not say where in the text a token is.
        encode = self._tokenizer.encode_batch if marked else self._tokenizer.encode_batch_fast
        try:
            encodings = encode(list(texts))
        except BaseException as error:
            # What it says may quote the text.
            kind = type(error).__name__
            logger.error("the model's tokenizer failed: %s", kind)
            message = f"the model's tokenizer failed on the text: {kind}"
            raise Rejected(Rejection.INVALID, message, status=500) from error
        if whole:
            for index, encoding in enumerate(encodings):
                if encoding.overflowing:
                    rule = f"is longer than the {self._max_tokens} tokens that the model takes"
                    raise InvalidInput(f"text {index}", rule)
        return [
            Tokenised(
                array("q", encoding.ids),
                array("q", encoding.type_ids) if self._with_segments else None,
                _marks(encoding) if marked else None,
            )
            for encoding in encodings
        ]


def _marks(encoding: Encoding) -> Marks:
    words, offsets = encoding.tokens, encoding.offsets
    places = array("q", [i for i, added in enumerate(encoding.special_tokens_mask) if not added])
    return Marks(
        places=places,
        words=tuple([words[place] for place in places]),
        starts=array("q", [offsets[place][0] for place in places]),
        ends=array("q", [offsets[place][1] for place in places]),
    )


def _bytes(text: Text) -> int:
    parts = (text,) if isinstance(text, str) else text
    return sum([len(part.encode(errors="surrogatepass")) for part in parts])


def _characters(text: Text) -> int:
    return len(text) if isinstance(text, str) else len(text[0]) + len(text[1])
