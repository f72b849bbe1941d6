"""How bad input is named: the field, the value and the rule it breaks.

The reader of manifests and the parsers of requests complain in this one form.
"""

import json
import re
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

_SHOWN_CHARACTERS: Final = 80
_NOT_PRINTED: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_MISREAD: Final = (
    ValueError, TypeError, AttributeError, LookupError, OverflowError, struct.error, RecursionError
)  # fmt: skip
"""What a document of another form makes its reader raise."""
_ENCODER: Final = json.JSONEncoder(ensure_ascii=False, default=repr)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mistake:
    """One thing that is wrong with an input."""

    field: str
    """Path of the field as its author wrote it, e.g. ``spec.batching.maxBatchSize``."""

    rule: str
    """What the field must satisfy, as the end of a sentence that begins with the value."""

    value: str = ""
    """The value as shown to the author; empty when the field is absent."""

    def __str__(self) -> str:
        text = f"{self.value} {self.rule}" if self.value else self.rule
        # A field's name may be whatever its author wrote, and goes to logs and terminals.
        return f"{_NOT_PRINTED.sub('?', self.field)}: {text}"


class InvalidInput(ValueError):
    """One request (or one item of it) cannot be understood or accepted as it stands."""

    def __init__(self, field: str, rule: str, *value: object) -> None:
        """Name the field and the rule; a third argument is the offending value, if there is one."""
        self.mistake = Mistake(field=field, rule=rule, value=shown(value[0]) if value else "")
        super().__init__(str(self.mistake))


class Unbatchable(InvalidInput):
    """A request that some server may understand, but not as rows of a batch."""


@contextmanager
def readable(name: str) -> Iterator[None]:
    """Raise `InvalidInput` where a document of this name has another form than its reader expects.

    Around a reader, or as its decorator.
    """
    try:
        yield
    except InvalidInput:
        raise
    except _MISREAD as error:
        raise InvalidInput(name, f"cannot be read: {error!r}") from error


class InvalidManifest(ValueError):
    """A manifest breaks at least one rule; all mistakes that its reader could find are listed."""

    def __init__(self, mistakes: tuple[Mistake, ...]) -> None:
        self.mistakes = mistakes
        super().__init__("\n".join(str(mistake) for mistake in mistakes))


def shown(value: object) -> str:
    """The value as JSON, cut short: an error message must never repeat a whole body."""
    text = ""
    try:
        # Part by part: a large or deeply nested value costs no more than what is shown of it.
        for part in _ENCODER.iterencode(value):
            text += part
            if len(text) > _SHOWN_CHARACTERS:
                break
    except (TypeError, ValueError):
        text += f"(a {type(value).__name__} that cannot be shown)"
    if len(text) > _SHOWN_CHARACTERS:
        text = f"{text[:_SHOWN_CHARACTERS]}..."
    # JSON may hold half of a surrogate pair, which no answer and no terminal could be sent.
    return text.encode(errors="backslashreplace").decode()
