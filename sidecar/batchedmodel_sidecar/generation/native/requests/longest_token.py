"""How much text a token can stand for at most, so that a text too long is known untokenised. Pure.

Only for tokenizers of a known form, in which no part of a text is left out and none becomes much
shorter before it is cut into tokens. Most language models' are such.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

import orjson

_NFC_SHRINKS: Final = 4
"""Unicode's shortest form takes 2 bytes where another took 7."""
_BYTES: Final = 256
_KEEPS_ALL: Final = frozenset({"ByteLevel", "Digits", "Metaspace"})
_LENGTHENS: Final = frozenset({"Prepend"})


def bytes_of_longest_token(tokenizer_json: bytes, alphabet: Iterable[str]) -> int | None:
    """Bytes of UTF-8 in a text that become one token at most; None where that is not known.

    `alphabet`: the characters that stand for bytes in tokens of byte-level tokenizers.
    """
    try:
        return _longest(orjson.loads(tokenizer_json), frozenset(alphabet))
    except (AttributeError, KeyError, TypeError, ValueError):
        return None  # a form that is not known


def _longest(said: Mapping[str, Any], alphabet: frozenset[str]) -> int | None:
    model, added = said["model"], said.get("added_tokens") or []
    if model["type"] != "BPE" or any(one["lstrip"] or one["rstrip"] for one in added):
        return None
    if model.get("continuing_subword_prefix") or model.get("end_of_word_suffix"):
        return None
    vocabulary: Mapping[str, int] = model["vocab"]
    cuts = _parts_of(said.get("pre_tokenizer"), "pretokenizers")
    if not all(map(_keeps_all, cuts)):
        return None
    if any(cut["type"] == "ByteLevel" for cut in cuts):
        known, longest = alphabet <= vocabulary.keys(), max(map(len, vocabulary))
    else:
        single = {f"<0x{byte:02X}>" for byte in range(_BYTES)}
        known = bool(model.get("byte_fallback")) and single <= vocabulary.keys()
        longest = max(len(token.encode()) for token in vocabulary)
    shrinks = 1
    for step in _parts_of(said.get("normalizer"), "normalizers"):
        if step["type"] == "NFC":
            shrinks *= _NFC_SHRINKS
        elif not _does_not_shorten(step):
            return None
    if not known:
        return None
    return shrinks * max([longest, *(len(one["content"].encode()) for one in added)])


def _parts_of(step: Mapping[str, Any] | None, name: str) -> list[Mapping[str, Any]]:
    """The steps that it consists of, one behind the other."""
    if step is None:
        return []
    if step["type"] != "Sequence":
        return [step]
    return [part for one in step[name] for part in _parts_of(one, name)]


def _keeps_all(cut: Mapping[str, Any]) -> bool:
    if cut["type"] == "Split":
        return bool(cut["behavior"] != "Removed")
    return cut["type"] in _KEEPS_ALL


def _does_not_shorten(step: Mapping[str, Any]) -> bool:
    if step["type"] == "Replace":
        # Only of a text is known how long it is, not of what an expression finds.
        return len(step["content"].encode()) >= len(step["pattern"]["String"].encode())
    return step["type"] in _LENGTHENS
