"""How long answers become: learnt from those that ended, by key and by what callers allow.

Old ones are forgotten exponentially. Nothing is learnt of what never ended well, so nobody fills
the memory with names of models that do not exist.
"""

import math
from collections.abc import Hashable
from typing import Final, Generic, NamedTuple, TypeVar

_PRIOR: Final = 256
"""Tokens that are expected of an answer of which nothing is known, unless fewer are allowed."""
_PRIOR_WEIGHT: Final = 4.0
_KEEP: Final = 1.0 - 1.0 / 200
_KEYS: Final = 64
_MOST_DEVIATIONS: Final = 2.0
"""Nearly all answers are longer than the mean by at most so many standard deviations."""
Value = TypeVar("Value")


class ByKind(Generic[Value]):
    """Something of each kind of answers: those of a key whose callers allow about as many tokens.

    It is kept of so many keys at most: the one of which nothing was put for longest goes.
    """

    def __init__(self, keys: int = _KEYS) -> None:
        self._most: Final = keys
        self._by_key: Final[dict[Hashable, dict[int, Value]]] = {}

    def __len__(self) -> int:
        """How many keys are known."""
        return len(self._by_key)

    def get(self, key: Hashable, max_tokens: int | None) -> Value | None:
        """Nothing is put by that."""
        of_key = self._by_key.get(key)
        return None if of_key is None else of_key.get(_allowed_class(max_tokens))

    def put(self, key: Hashable, max_tokens: int | None, value: Value) -> None:
        """In place of what was there."""
        of_key = self._by_key.pop(key, None)
        if of_key is None:
            of_key = {}
            if len(self._by_key) >= self._most:
                del self._by_key[next(iter(self._by_key))]
        of_key[_allowed_class(max_tokens)] = value
        self._by_key[key] = of_key

    def discard(self, key: Hashable, max_tokens: int | None) -> None:
        """Where nothing is there that changes nothing."""
        of_key = self._by_key.get(key)
        if of_key is not None:
            of_key.pop(_allowed_class(max_tokens), None)


class LearntLength(NamedTuple):
    """How long answers of one kind became, without any guess."""

    answers: float
    """That ended, by how much they count."""
    mean: float
    most: float
    """Nearly all are at most so long."""


class _Lengths:
    """Lengths of one key and one class of what is allowed."""

    __slots__ = ("_squares", "_sum", "_weight")

    def __init__(self) -> None:
        self._sum = self._squares = self._weight = 0.0

    def observe(self, tokens: float) -> None:
        self._sum = self._sum * _KEEP + tokens
        self._squares = self._squares * _KEEP + tokens * tokens
        self._weight = self._weight * _KEEP + 1.0

    def learnt(self) -> LearntLength:
        mean = self._sum / self._weight
        deviation = math.sqrt(max(0.0, self._squares / self._weight - mean * mean))
        return LearntLength(self._weight, mean, mean + _MOST_DEVIATIONS * deviation)

    def mean(self, prior: float) -> float:
        # What was expected before is forgotten as well, but counts as a few until many were seen.
        kept = _PRIOR_WEIGHT * max(0.0, 1.0 - self._weight * (1.0 - _KEEP))
        return (kept * prior + self._sum) / (kept + self._weight)


class OutputLengths:
    """Tokens of an answer, by the key that was asked and the tokens that were allowed."""

    def __init__(self) -> None:
        self._by_kind: Final = ByKind[_Lengths]()

    def __len__(self) -> int:
        """How many keys are known."""
        return len(self._by_kind)

    def observe(self, key: Hashable, max_tokens: int | None, tokens: float) -> None:
        """An answer of so many tokens ended."""
        lengths = self._by_kind.get(key, max_tokens) or _Lengths()
        lengths.observe(max(0.0, tokens))
        self._by_kind.put(key, max_tokens, lengths)

    def mean(self, key: Hashable, max_tokens: int | None) -> float:
        """Expected tokens of an answer."""
        prior = _prior(max_tokens)
        lengths = self._by_kind.get(key, max_tokens)
        return prior if lengths is None else _bounded(lengths.mean(prior), max_tokens)

    def learnt(self, key: Hashable, max_tokens: int | None) -> LearntLength | None:
        """What ended answers show; None where there were none."""
        lengths = self._by_kind.get(key, max_tokens)
        if lengths is None:
            return None
        answers, mean, most = lengths.learnt()
        return LearntLength(answers, _bounded(mean, max_tokens), _bounded(most, max_tokens))

    def forget(self, key: Hashable, max_tokens: int | None) -> None:
        """What was learnt of this kind was wrong."""
        self._by_kind.discard(key, max_tokens)


def _allowed_class(max_tokens: int | None) -> int:
    return -1 if max_tokens is None else min(24, max(0, max_tokens).bit_length())


def _prior(max_tokens: int | None) -> float:
    return float(_PRIOR if max_tokens is None else min(max(0, max_tokens), _PRIOR))


def _bounded(tokens: float, max_tokens: int | None) -> float:
    return tokens if max_tokens is None else min(tokens, float(max(0, max_tokens)))
