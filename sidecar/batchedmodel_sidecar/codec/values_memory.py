"""How much memory the values of a JSON text take while they are made into Python's.

A byte of text may become forty of objects. So they are counted before any is made. Pure.
"""

from typing import Final

import numpy as np

from batchedmodel_contract.inference.tensors import Buffer

TIMES_BINARY: Final = 38
"""What numbers take as JSON text, with its copies, over their binary form at worst."""
_BYTES_OF_NUMBER: Final = 100
"""What a number takes as a value and as text, with its copies."""
_TIMES_TEXT: Final = 5
"""What text takes that is cut and written anew."""
_BYTES_OF: Final = {
    ord(","): 64,  # an entry of a list, and a number
    ord("["): 100,  # a list of a few entries
    ord("{"): 240,  # an object of a few fields
    ord('"'): 30,  # half of a text, without its characters
    ord(":"): 60,  # a field more; an object is there twice while it grows
}
"""What a value takes that this character begins or ends, here and in the parser's own record."""
_SHORT_SAVES: Final = 36
"""Whole numbers of one or two digits are objects that are there already."""
_STEP: Final = 1 << 20
_TWO_BYTES: Final = 0xC4  # begins a character that takes two bytes of a text in memory
_FOUR_BYTES: Final = 0xF0


def memory_of_values(text: Buffer, *, as_text: bool = False) -> int:
    """At most so many bytes. What only looks like JSON within a string of it counts as well.

    `as_text`: it is cut into texts besides, as for a server of one's own.
    """
    codes = np.frombuffer(text, np.uint8)
    total, widest = 0, 1
    for start in range(0, len(codes), _STEP):
        step = codes[start : start + _STEP]
        total += sum(size * int(np.count_nonzero(step == code)) for code, size in _BYTES_OF.items())
        total -= _SHORT_SAVES * _short(step)
        if widest < 4:
            widest = max(widest, _width(codes[start : start + _STEP + 1]))
    # The parser's copy, and the strings; or the whole text, its parts and theirs.
    return total + len(codes) * (3 + 5 * widest if as_text else 1 + widest)


def _short(codes: "np.typing.NDArray[np.uint8]") -> int:
    """How many values of one or two characters stand between two commas."""
    comma = codes == ord(",")
    return int(np.count_nonzero(comma[3:] & (comma[1:-2] | comma[:-3])))


def _width(codes: "np.typing.NDArray[np.uint8]") -> int:
    """Bytes that each character of a string takes where it has one of these."""
    top = int(codes.max())
    escaped = bool(np.any((codes[:-1] == ord("\\")) & (codes[1:] == ord("u"))))
    if top >= _FOUR_BYTES or escaped:
        return 4
    return 2 if top >= _TWO_BYTES else 1


def times_as_text(size: int, *, values: bool) -> int:
    """What numbers of so many bytes take over these while they are made into text, at most.

    `values`: they are all made into values first. 0: text already.
    """
    if not size:
        return _TIMES_TEXT
    if values:
        return _BYTES_OF_NUMBER // size
    return _BYTES_OF_NUMBER // 6 if size <= 2 else 2 * _TIMES_TEXT
