"""How large the `spec` of a manifest may be altogether, in the two languages that judge it.

Single fields have bounds of their own, whose sum is far above this one. `manifest` applies the rule
where a file is read, `openapi` states it to an API server, and the operator reads no larger one.
"""

import json
from typing import Final

from batchedmodel_contract.schema.rules import Schema

LARGEST_SPEC: Final = 65_536
"""Bytes as JSON. An API server counts the defaults too, as it fills them in before it judges."""
_RULE: Final = f"has more than {LARGEST_SPEC} bytes as JSON"
_ENCODER: Final = json.JSONEncoder(ensure_ascii=False, separators=(", ", ":"))


def too_large(spec: object) -> str:
    """The end of the sentence about a spec that is too large; empty when it is not."""
    size = 0
    # Part by part: a spec that holds one part many times is far larger as JSON than in memory.
    for part in _ENCODER.iterencode(spec):
        size += len(part.encode(errors="replace"))
        if size > LARGEST_SPEC:
            return _RULE
    return ""


def validation() -> Schema:
    """The rule as an entry of the spec's `x-kubernetes-validations`."""
    # A formatted object is JSON but for some escapes. Two hexadecimal digits stand for each byte:
    # `bytes()` and `size()` of a text whose length nobody declared would exceed the cost that an
    # API server allows.
    text = "'%s'.format([dyn(self)])"
    return {
        "rule": f"size('%x'.format([{text}])) <= {2 * LARGEST_SPEC}",
        "message": _RULE,
        "reason": "FieldValueForbidden",
    }
