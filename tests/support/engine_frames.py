"""Requests for texts, as an engine takes them."""

from array import array
from collections.abc import Sequence

from batchedmodel_contract.generation.frames import Submit


def submit(
    number: int, ids: Sequence[int] = (65, 66), *, max_tokens: int = 8, **others: object
) -> Submit:
    """A request for one text."""
    return Submit(id=number, ids=array("i", ids), max_tokens=max_tokens, **others)  # type: ignore[arg-type]
