"""Turns text into token ids while the request waits for its turn anyway.

Exact lengths are what the scheduler needs, and 32 texts of 128 tokens take 11 to 13 ms that a GPU
should not wait for. The tokenizer releases the interpreter lock, so long inputs go to a thread; a
short one is done sooner than a thread could be woken.
"""

from __future__ import annotations  # array.array takes no type argument at run time

import asyncio
from array import array
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from tokenizers import Tokenizer

from batchedmodel_contract.description import TextInput
from batchedmodel_contract.mistakes import InvalidInput
from batchedmodel_contract.outcomes import Rejection
from batchedmodel_sidecar.errors import Rejected

_INLINE_CHARACTERS: Final = 600  # about 0.2 ms of tokenising
_MOST_CHARACTERS: Final = 32_000_000  # at work at once: some seconds of two threads


class Tokens:
    """A model's tokenizer, cut to the length that its server takes."""

    def __init__(self, tokenizer_json: bytes, text: TextInput, threads: ThreadPoolExecutor) -> None:
        """The threads outlive the model, whose server may restart while a text is at work.

        Raises `InvalidInput` when the file is not a tokenizer.
        """
        try:
            self._tokenizer = Tokenizer.from_buffer(tokenizer_json)
        except ValueError as error:
            raise InvalidInput("tokenizer", f"cannot be read: {error}") from error
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(text.max_tokens)
        self._threads = threads
        self._characters = 0

    async def encode(self, texts: Sequence[str]) -> list[array[int]]:
        """Token ids of each text, special tokens included, as INT64 arrays; raises `Rejected`."""
        characters = sum(map(len, texts))
        if characters <= _INLINE_CHARACTERS:
            return self._encode(texts)
        if self._characters + characters > _MOST_CHARACTERS:
            message = f"{self._characters} characters are being tokenised; no more fit"
            raise Rejected(Rejection.QUEUE_FULL, message, retry_after=1.0)
        self._characters += characters
        work = asyncio.get_running_loop().run_in_executor(self._threads, self._encode, texts)
        # The work goes on when its caller leaves, so it counts until it is done.
        work.add_done_callback(lambda _: self._done(characters))
        return await work

    def _done(self, characters: int) -> None:
        self._characters -= characters

    def _encode(self, texts: Sequence[str]) -> list[array[int]]:
        encodings = self._tokenizer.encode_batch_fast(list(texts))
        return [array("q", encoding.ids) for encoding in encodings]
