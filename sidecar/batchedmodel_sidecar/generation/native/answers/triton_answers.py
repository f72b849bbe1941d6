"""Answers of Triton's generate extension. Pure."""

from typing import Any

import orjson

from batchedmodel_sidecar.generation.native.answers.answer_form import KeptText, Piece, TextUsage


class GenerateForm:
    """`POST /v2/models/{model}/generate` and `/generate_stream`."""

    def __init__(self, known: dict[str, Any]) -> None:
        """`known`: model_name, model_version, and the id where there is one."""
        self._known = known
        self._kept = KeptText()

    def begin(self, choice: int) -> bytes:
        """Nothing."""
        return b""

    def piece(self, piece: Piece) -> bytes:
        """An event with the new text; without text there is none."""
        if not piece.text:
            return b""
        return b"data: %b\n\n" % self._document(piece.text)

    def end(self, usage: TextUsage) -> bytes:
        """Nothing: the stream ends with its connection's answer."""
        return b""

    def keep(self, piece: Piece) -> int:
        """Its one text."""
        return self._kept.add(piece, {})

    def whole(self, usage: TextUsage) -> bytes:
        """The document."""
        return self._document(self._kept.text)

    def _document(self, text: str) -> bytes:
        return orjson.dumps({**self._known, "text_output": text})
