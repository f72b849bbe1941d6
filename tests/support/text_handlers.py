"""Handlers that read texts without torch: their answers follow from the words by simple rules."""

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing

from batchedmodel_contract.inference.description import Activation, Classification, TextInput
from batchedmodel_model_server.api.handler import Batch, Spec
from support.model_server_handlers import OnHost

WORDS: Final = ("[UNK]", "[CLS]", "[SEP]", "good", "bad", "odd", "cat", "dog")
MAX_TOKENS: Final = 16
CLS, SEP, GOOD, BAD, ODD = (WORDS.index(word) for word in ("[CLS]", "[SEP]", "good", "bad", "odd"))


def tokenizer_json() -> bytes:
    """A tokenizer of whole words that frames texts and pairs as BERT's does."""
    words = {word: index for index, word in enumerate(WORDS)}
    tokenizer = Tokenizer(WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", CLS), ("[SEP]", SEP)],
    )
    return tokenizer.to_str().encode()


class _OfTexts(OnHost):
    inputs: Mapping[str, Spec] = {"ids": Spec("INT64", ("L",), pad=-1, max=MAX_TOKENS)}
    text = TextInput(name="text", tokens="ids", max_tokens=MAX_TOKENS)
    tokenizer = tokenizer_json()


class Embedder(_OfTexts):
    """Counts how often each of the last four words comes."""

    outputs: Mapping[str, Spec] = {"vector": Spec("FP32", (4,))}
    embedding = "vector"
    shortest_embedding = 2

    def forward(self, batch: Batch) -> Mapping[str, Any]:
        """Count."""
        ids = batch.array("ids")
        counts = [(ids == word).sum(1) for word in (GOOD, BAD, ODD, ODD + 1)]
        return {"vector": np.stack(counts, 1).astype("f4")}


class Classifier(_OfTexts):
    """A raw score for each of three words: how often it comes."""

    outputs: Mapping[str, Spec] = {"scores": Spec("FP32", (3,))}
    classification = Classification(
        output="scores", labels=("good", "bad", "odd"), activation=Activation.SOFTMAX
    )

    def forward(self, batch: Batch) -> Mapping[str, Any]:
        """Count."""
        ids = batch.array("ids")
        counts = [(ids == word).sum(1) for word in (GOOD, BAD, ODD)]
        return {"scores": np.stack(counts, 1).astype("f4")}


class Tagger(_OfTexts):
    """A raw score for each token and label: 1 for the one that it is."""

    outputs: Mapping[str, Spec] = {"scores": Spec("FP32", ("L", 3))}
    classification = Classifier.classification

    def forward(self, batch: Batch) -> Mapping[str, Any]:
        """Compare."""
        ids = batch.array("ids")
        return {"scores": np.stack([ids == word for word in (GOOD, BAD, ODD)], 2).astype("f4")}


class Ranker(_OfTexts):
    """Counts the words of the second text that are words of the first."""

    inputs: Mapping[str, Spec] = {
        "ids": Spec("INT64", ("L",), pad=-1, max=MAX_TOKENS),
        "segments": Spec("INT64", ("L",), pad=-1, max=MAX_TOKENS),
    }
    outputs: Mapping[str, Spec] = {"score": Spec("FP32", ())}
    text = TextInput(name="text", tokens="ids", max_tokens=MAX_TOKENS, segments="segments")
    ranking = "score"

    def forward(self, batch: Batch) -> Mapping[str, Any]:
        """Count."""
        scores = []
        for ids, segments in zip(batch.array("ids"), batch.array("segments"), strict=True):
            query = set(ids[(segments == 0) & (ids > SEP)].tolist())
            scores.append(sum(word in query for word in ids[segments == 1].tolist()))
        return {"score": np.array(scores, "f4")}
