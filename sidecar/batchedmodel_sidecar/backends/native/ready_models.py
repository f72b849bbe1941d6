"""Makes the model that the sidecar serves of what our model server says of it."""

from typing import Final

from batchedmodel_contract.link.model_frames import ServedModel
from batchedmodel_sidecar.model import ReadyModel
from batchedmodel_sidecar.tokenizer import Tokens, text_threads

_THREADS: Final = 2
_DEPTH: Final = 2  # one batch that runs and one handed over just in time


class ReadyModels:
    """Keeps a tokenizer that has not changed from one model to the next.

    Most versions have the tokenizer of the one before, and to read a large one stops the loop for a
    second, in which others are served.
    """

    def __init__(self) -> None:
        self._threads = text_threads(_THREADS)
        self._tokens: Tokens | None = None
        """Of the last model with text."""

    def close(self) -> None:
        """Let go of the threads."""
        self._threads.close()

    def of(self, served: ServedModel) -> ReadyModel:
        """The model; raises `InvalidInput` for a tokenizer that cannot be read."""
        return ReadyModel(
            description=served.description,
            profile=served.profile,
            tokens=self._tokens_of(served),
            generation=served.generation,
            tokenizer_json=b"" if served.generation is None else bytes(served.tokenizer),
            depth=_DEPTH,
            rows_pad=not served.description.equal_lengths,
        )

    def _tokens_of(self, served: ServedModel) -> Tokens | None:
        text, tokenizer = served.description.text, bytes(served.tokenizer)
        if text is None:
            return None
        if self._tokens is None or not self._tokens.are_of(tokenizer, text):
            self._tokens = Tokens(tokenizer, text, self._threads)
        return self._tokens
