"""How long answers become: learnt from those that ended, by key and by what callers allow.

Old ones are forgotten exponentially. Nothing is learnt of what never ended well, so nobody fills
the memory with names of models that do not exist.
"""

import math
from collections.abc import Hashable
from typing import Final

_PRIOR: Final = 256
"""Tokens that are expected of an answer of which nothing is known, unless fewer are allowed."""
_PRIOR_WEIGHT: Final = 4.0
_KEEP: Final = 1.0 - 1.0 / 200
_STEPS: Final = 4
"""Classes of lengths for each doubling."""
_CLASSES: Final = 24 * _STEPS
_KEYS: Final = 64
_LARGE: Final = 1e9


class _Lengths:
    """Lengths of one key and one class of what is allowed."""

    __slots__ = ("_counts", "_prior", "_sum", "_total", "_weight")

    def __init__(self) -> None:
        self._counts = [0.0] * _CLASSES
        self._total = 0.0
        self._sum = 0.0
        self._prior = _PRIOR_WEIGHT
        """Of what was expected before: it is forgotten as well."""
        self._weight = 1.0
        """Of the next one: it grows, instead of all earlier ones becoming less."""

    def observe(self, tokens: int) -> None:
        self._counts[_class_of(tokens)] += self._weight
        self._total += self._weight
        self._sum += self._weight * tokens
        self._weight /= _KEEP
        if self._weight > _LARGE:
            self._counts = [count / self._weight for count in self._counts]
            self._total /= self._weight
            self._sum /= self._weight
            self._prior /= self._weight
            self._weight = 1.0

    def mean(self, prior: float) -> float:
        return (self._prior * prior + self._sum) / (self._prior + self._total)

    def quantile(self, part: float) -> float:
        """Interpolated within a class, so right to some percent; there must be one."""
        wanted, below = part * self._total, 0.0
        for number, count in enumerate(self._counts):
            if count and below + count >= wanted:
                inside = (wanted - below) / count
                return max(1.0, float(2.0 ** ((number + inside) / _STEPS)))
            below += count
        return self._sum / self._total


class OutputLengths:
    """Tokens of an answer, by the key that was asked and the tokens that were allowed."""

    def __init__(self, keys: int = _KEYS) -> None:
        self._most = keys
        self._by_key: Final[dict[Hashable, dict[int, _Lengths]]] = {}
        """The one that taught something last is last."""

    def __len__(self) -> int:
        """How many keys are known."""
        return len(self._by_key)

    def observe(self, key: Hashable, max_tokens: int | None, tokens: float) -> None:
        """An answer of so many tokens ended."""
        of_key = self._by_key.pop(key, None)
        if of_key is None:
            of_key = {}
            if len(self._by_key) >= self._most:
                del self._by_key[next(iter(self._by_key))]
        self._by_key[key] = of_key
        allowed = _allowed_class(max_tokens)
        lengths = of_key.get(allowed)
        if lengths is None:
            lengths = of_key[allowed] = _Lengths()
        lengths.observe(max(0, round(tokens)))

    def mean(self, key: Hashable, max_tokens: int | None) -> float:
        """Expected tokens of an answer."""
        prior = _prior(max_tokens)
        lengths = self._find(key, max_tokens)
        return prior if lengths is None else _bounded(lengths.mean(prior), max_tokens)

    def quantile(self, key: Hashable, max_tokens: int | None, part: float) -> float:
        """So many tokens are enough for this part of the answers."""
        lengths = self._find(key, max_tokens)
        if lengths is None:
            return _prior(max_tokens)
        return _bounded(lengths.quantile(part), max_tokens)

    def _find(self, key: Hashable, max_tokens: int | None) -> _Lengths | None:
        of_key = self._by_key.get(key)
        return None if of_key is None else of_key.get(_allowed_class(max_tokens))


def _class_of(tokens: int) -> int:
    return min(_CLASSES - 1, int(_STEPS * math.log2(max(1, tokens))))


def _allowed_class(max_tokens: int | None) -> int:
    return -1 if max_tokens is None else min(24, max(0, max_tokens).bit_length())


def _prior(max_tokens: int | None) -> float:
    return float(_PRIOR if max_tokens is None else min(max(0, max_tokens), _PRIOR))


def _bounded(tokens: float, max_tokens: int | None) -> float:
    return tokens if max_tokens is None else min(tokens, float(max(0, max_tokens)))
