"""JSON documents compared by value: 1 is not 1.0, and 1.5 is 1.50."""

import json
from typing import Any


def by_value(text: str | bytes) -> Any:
    """A document whose numbers are texts: all digits of an integer, the shortest of another."""
    return json.loads(text, parse_int=str, parse_float=_shortest, parse_constant=_shortest)


def _shortest(text: str) -> str:
    return json.dumps(float(text))
