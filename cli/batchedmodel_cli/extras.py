"""Says in one sentence what a subcommand lacks, with the line to type.

What an extra brings is read from the installed distribution, so `pyproject.toml` is its one list.
"""

import re
import sys
from collections.abc import Iterator
from importlib.metadata import requires
from importlib.util import find_spec
from typing import Final

_DISTRIBUTION: Final = "batchedmodel"
_BY_EXTRA: Final = re.compile(r"([\w.-]+).*; *extra == '([\w-]+)'")
_FOR_PEOPLE: Final = ("serve", "kubernetes")
_WRONG: Final = 2


def need(extra: str) -> None:
    """Raise `ModuleNotFoundError`, as an import would, where a library of the extra is missing."""
    for module in _missing(extra):
        raise ModuleNotFoundError(f"No module named {module!r}", name=module)


def explained(error: ModuleNotFoundError) -> int:
    """Say which extra brings a missing module; the exit code. Raises the error where none does."""
    module = (error.name or "").partition(".")[0]
    for extra in _FOR_PEOPLE:
        if module in (missing := list(_missing(extra))):
            line = f"pip install '{_DISTRIBUTION}[{extra}]'"
            sentence = f"not installed: {', '.join(missing)}; try: {line}"
            print(f"batchedmodel: {sentence}", file=sys.stderr)
            return _WRONG
    raise error


def _missing(extra: str) -> Iterator[str]:
    return (module for module in _modules(extra) if find_spec(module) is None)


def _modules(extra: str) -> list[str]:
    """What the extra's libraries are called where they are imported."""
    matches = map(_BY_EXTRA.fullmatch, requires(_DISTRIBUTION) or ())
    return [match[1].replace("-", "_") for match in matches if match and match[2] == extra]
