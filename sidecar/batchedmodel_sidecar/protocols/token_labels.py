"""The labels of a text's tokens, in the form of transformers' own token classification.

Used by the classification adapter for models that score tokens and not texts. Of each token the
likeliest label is told, with the token's place in the text; what the tokenizer added, and tokens
that are nothing of interest, are left out as transformers leaves them out. Pure.
"""

from collections.abc import Sequence
from typing import Any, Final

from batchedmodel_contract.inference.description import Classification
from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_sidecar.codec.tokenizer import Marks, Text
from batchedmodel_sidecar.protocols.scores import probability

_OUTSIDE: Final = "O"
"""By convention the label of tokens that are part of nothing."""

TOKEN: Final = 64
"""Bytes of tensors that take as long to become JSON as an entry does beside its own scores."""


def one_by_one(texts: Sequence[Text]) -> None:
    """Raise `InvalidInput` for a pair: its tokens' places could be in either text."""
    for text in texts:
        if not isinstance(text, str):
            rule = "is a pair of texts, whose tokens this model does not classify; send [[a], [b]]"
            raise InvalidInput("inputs", rule, list(text))


def labelled(
    scores: list[float], marks: Marks, classes: Classification, *, raw: bool
) -> list[dict[str, Any]]:
    """An entry for each token of interest; `scores` are those of all tokens, one after another."""
    entries, labels, width = [], classes.labels, len(classes.labels)
    for place, word, start, end in zip(*marks, strict=True):
        own = scores[place * width : (place + 1) * width]
        highest = max(own)
        label = labels[own.index(highest)]
        # Before its probability is looked for: most tokens are part of nothing.
        if label != _OUTSIDE:
            score = highest if raw else probability(highest, own, classes.activation)
            entries.append(
                {
                    "entity": label,
                    "score": score,
                    "index": place,
                    "word": word,
                    "start": start,
                    "end": end,
                }
            )
    return entries
