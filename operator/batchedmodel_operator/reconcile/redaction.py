"""Takes out of a text from a pod what looks like a secret. Pure.

A container's last words go into conditions, Events and the operator's log, which more people read
than the pod's own log. A server that dies over its configuration likes to print it. What a secret
looks like cannot be known; these are the forms that tokens and passwords mostly have.
"""

import re
from typing import Final

HIDDEN: Final = "***"

_WORD: Final = r"""[^\s"'`,;&<>)\]}]"""
_START: Final = r"(?<![\w-])"
"""Of a name as a whole. Tried at each of its letters, a long one would be read again and again."""
# A pod chooses the text: no form may go back over what it has read.
_FORMS: Final = (
    # https://user:password@host, with or without the user
    (re.compile(r"(?<=://)[^\s/@:]*+:[^\s/@]++@"), rf"{HIDDEN}@"),
    # Authorization: Bearer ..., Basic ...
    (re.compile(rf"\b(bearer|basic) ++(?=\S*\d)({_WORD}{{8,}}+)", re.IGNORECASE), rf"\1 {HIDDEN}"),
    # HF_TOKEN=..., "api_key": "...", ?access_token=...
    (
        re.compile(
            rf"({_START}(?=[\w-]*?"
            r"(?:token|secret|passwo?r?d|api[_-]?key|access[_-]?key|credential))[\w-]++"
            rf"""["']?+\s*+(?:=|:)\s*+["']?+)({_WORD}++)""",
            re.IGNORECASE,
        ),
        rf"\1{HIDDEN}",
    ),
    # Tokens that say by themselves what they are, and below them JSON web tokens.
    (
        re.compile(
            r"\b(?:hf_\w{8,}|gh[a-z]_\w{16,}|github_pat_\w{16,}|glpat-[\w-]{16,}|sk-[\w-]{16,}"
            r"|AKIA[0-9A-Z]{12,})"
        ),
        HIDDEN,
    ),
    (
        re.compile(rf"{_START}(?=[\w-]*?\beyJ[\w-]{{4}})[\w-]++\.[\w-]++\.[\w-]*+"),
        HIDDEN,
    ),
    (re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END|\Z)", re.DOTALL), HIDDEN),
)


def redacted(text: str) -> str:
    """The text with `***` for whatever looks like a secret in it."""
    for form, replacement in _FORMS:
        text = form.sub(replacement, text)
    return text
