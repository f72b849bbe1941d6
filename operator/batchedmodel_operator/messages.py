"""Makes sentences of others fit for a status, which more people may read than a log. Pure.

The operator sees no Secret. But a container that dies may name what it was given, and Kubernetes
passes its last words on.
"""

import re
from typing import Final

_LONGEST: Final = 1024
_MASK: Final = "***"
_SECRETS: Final = (
    (re.compile(r"(\b[a-z][a-z0-9+.-]{0,15}://)[^/\s@]{1,512}@", re.IGNORECASE), rf"\1{_MASK}@"),
    (re.compile(r"\b(bearer|basic) +[\w.~+/=-]{8,}", re.IGNORECASE), rf"\1 {_MASK}"),
    (
        re.compile(
            r"""((?:token|password|passwd|secret|api_?key|access_?key|credentials?) ?= ?)"""
            r"""(?:"[^"]+"|'[^']+'|[^\s,;&"']+)""",
            re.IGNORECASE,
        ),
        rf"\1{_MASK}",
    ),
    (
        re.compile(r"""("(?:[\w-]{0,32}(?:token|password|secret|key))": ?")[^"]+""", re.IGNORECASE),
        rf"\1{_MASK}",
    ),
    (re.compile(r"\b(?:hf_|gh[oprsu]_|sk-|AKIA|eyJ)[\w.-]{16,}"), _MASK),
)
"""Credentials in addresses, in headers, by their name, and by the look of well-known ones."""


def presentable(message: str) -> str:
    """The message without what looks like a credential, and not too long."""
    for pattern, instead in _SECRETS:
        message = pattern.sub(instead, message)
    return message if len(message) <= _LONGEST else f"{message[: _LONGEST - 3]}..."
