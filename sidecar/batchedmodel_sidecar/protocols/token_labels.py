"""The labels of a text's tokens, in the form of transformers' own token classification.

Used by the classification adapter for models that score tokens and not texts. Of each token the
likeliest label is told, with the token's place in the text; what the tokenizer added, and tokens
that are nothing of interest, are left out as transformers leaves them out. Pure.
"""

from collections.abc import Sequence
from typing import Any, Final

from batchedmodel_contract.description import Classification
from batchedmodel_contract.mistakes import InvalidInput
from batchedmodel_sidecar.protocols.scores import probabilities
from batchedmodel_sidecar.tokens import Mark, Text

_OUTSIDE: Final = "O"
"""By convention the label of tokens that are part of nothing."""


def one_by_one(texts: Sequence[Text]) -> None:
    """Raise `InvalidInput` for a pair: its tokens' places could be in either text."""
    for text in texts:
        if not isinstance(text, str):
            rule = "is a pair of texts, whose tokens this model does not classify; send [[a], [b]]"
            raise InvalidInput("inputs", rule, list(text))


def labelled(
    scores: list[float], marks: Sequence[Mark], classes: Classification, *, raw: bool
) -> list[dict[str, Any]]:
    """An entry for each token of interest; `scores` are those of all tokens, one after another."""
    entries, width = [], len(classes.labels)
    for mark in marks:
        own = scores[mark.place * width : (mark.place + 1) * width]
        own = own if raw else probabilities(own, classes.activation)
        best = own.index(max(own))
        if classes.labels[best] != _OUTSIDE:
            entries.append(
                {
                    "entity": classes.labels[best],
                    "score": own[best],
                    "index": mark.place,
                    "word": mark.word,
                    "start": mark.start,
                    "end": mark.end,
                }
            )
    return entries
