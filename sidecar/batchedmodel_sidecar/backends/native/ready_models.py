"""Makes the model that the sidecar serves of what our model server says of it."""

from typing import Final

from batchedmodel_contract.link.model_frames import ServedModel
from batchedmodel_sidecar.model import MakeTexts, ReadyModel
from batchedmodel_sidecar.tokenizer import Tokens, text_threads

_THREADS: Final = 2
_DEPTH: Final = 2  # one batch that runs and one handed over just in time


class ReadyModels:
    """Keeps what is large and has not changed from one model to the next.

    Most versions have the tokenizer of the one before, and to read a large one stops the loop for a
    second, in which others are served.
    """

    def __init__(self, name: str, make_texts: MakeTexts) -> None:
        self._name = name
        self._make_texts = make_texts
        self._threads = text_threads(_THREADS)
        self._tokens: Tokens | None = None
        """Of the last model with text."""
        self._generates: ReadyModel | None = None
        """The last model that generates."""

    def close(self) -> None:
        """Let go of the threads."""
        self._threads.close()

    def of(self, served: ServedModel) -> ReadyModel:
        """The model; raises `InvalidInput` for a tokenizer that cannot be read."""
        described, tokenizer, last = served.generation, bytes(served.tokenizer), self._generates
        texts = None if last is None else last.texts
        if described is None:
            texts = None
        elif texts is None or not texts.is_of(described, tokenizer):
            texts = self._make_texts(self._name, described, tokenizer)
        model = ReadyModel(
            description=served.description,
            profile=served.profile,
            tokens=self._tokens_of(served),
            texts=texts,
            depth=_DEPTH,
            rows_pad=not served.description.equal_lengths,
        )
        if texts is not None:
            self._generates = model
        return model

    def _tokens_of(self, served: ServedModel) -> Tokens | None:
        text, tokenizer = served.description.text, bytes(served.tokenizer)
        if text is None:
            return None
        if self._tokens is None or not self._tokens.are_of(tokenizer, text):
            self._tokens = Tokens(tokenizer, text, self._threads)
        return self._tokens
