"""Reads YAML (or JSON) documents from a file or a text, within bounds.

A few lines of aliases to aliases can stand for billions of values. So each alias is counted as the
values that it stands for while the text is read, and reading ends where there are too many.
"""

from pathlib import Path
from typing import Any, Final

import yaml

from batchedmodel_contract.invalid_input import shown

_LONGEST_PROBLEM: Final = 500
MOST_CHARACTERS: Final = 4 * 1024 * 1024
"""In a text; an API server takes objects of up to 1.5 MiB."""
MOST_VALUES: Final = 50_000
"""In a text, aliases written out; a live object with its managed fields has some hundreds."""
MOST_LEVELS: Final = 100
_MOST_DIGITS: Final = 100
_TIMESTAMP: Final = "tag:yaml.org,2002:timestamp"
_NUMBERS: Final = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
_UNREADABLE: Final = (
    *(yaml.YAMLError, RecursionError),
    # The library's constructors raise these for a value that does not fit its explicit tag.
    *(ValueError, LookupError, AttributeError, TypeError, ArithmeticError),
)


class NotOneDocument(ValueError):
    """A file or text that is not read as YAML documents, or as one; the message says why."""


class _TooMuch(yaml.MarkedYAMLError):
    """The text exceeds a bound."""


def read_text(file: Path) -> str:
    """A file's text; only the beginning of one that is too long. Raises `NotOneDocument`."""
    try:
        with file.open(encoding="utf-8") as text:
            # One character more than the bound, so that `read_document` refuses the text.
            return text.read(MOST_CHARACTERS + 1)
    except FileNotFoundError:
        raise NotOneDocument("no such file") from None
    except IsADirectoryError:
        message = "is a folder; name the manifest in it, or a checkpoint by run --model"
        raise NotOneDocument(message) from None
    except UnicodeDecodeError as error:
        raise NotOneDocument(f"is not UTF-8 text: {error.reason}") from error
    except OSError as error:
        raise NotOneDocument(f"cannot be read: {error.strerror}") from error


def read_document(text: str) -> object:
    """The one document that a text holds; raises `NotOneDocument`."""
    documents = read_documents(text)
    if len(documents) > 1:
        raise NotOneDocument(f"holds {len(documents)} documents; one manifest per file")
    return documents[0]


def read_documents(text: str) -> list[object]:
    """The documents that a text holds, at least one; raises `NotOneDocument`."""
    if len(text) > MOST_CHARACTERS:
        raise NotOneDocument(f"is longer than {MOST_CHARACTERS} characters")
    try:
        documents = list(yaml.load_all(text, _Loader))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        kind = "" if isinstance(error, _TooMuch) else "is not YAML: "
        raise NotOneDocument(f"{kind}{place}{str(error.problem)[:_LONGEST_PROBLEM]}") from error
    except _UNREADABLE as error:
        raise NotOneDocument(f"is not YAML: {' '.join(str(error).split())}") from error
    # A file that ends in `---` has an empty last document.
    documents = [document for document in documents if document is not None]
    if not documents:
        raise NotOneDocument("is empty")
    return documents


class _Loader(yaml.SafeLoader):
    """YAML as Kubernetes reads it: a key given twice is a mistake, and a date is a text."""

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._values = 0
        """Values so far, aliases written out."""
        self._level = 0
        self._deepest = 0
        """The deepest level so far within the node that is being composed."""
        self._extents: dict[yaml.Node, tuple[int, int]] = {}
        """Values and levels of each node that is complete."""

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        mark: yaml.Mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
        if self.check_event(yaml.AliasEvent):
            alias = super().compose_node(parent, index)
            assert alias is not None, "an alias stands for a node"
            if alias not in self._extents:
                raise _TooMuch(
                    problem="an alias stands for what it is a part of", problem_mark=mark
                )
            values, levels = self._extents[alias]
            self._count(values, levels, mark)
            return alias
        before, deepest = self._values, self._deepest
        self._deepest = self._level
        self._count(1, 1, mark)
        self._level += 1
        node = super().compose_node(parent, index)
        self._level -= 1
        assert node is not None, "no alias, so there is a node"
        self._extents[node] = (self._values - before, self._deepest - self._level)
        self._deepest = max(self._deepest, deepest)
        if isinstance(node, yaml.ScalarNode) and node.tag in _NUMBERS:
            digits = len(node.value)
            if digits > _MOST_DIGITS:
                raise _TooMuch(problem=f"a number has {digits} digits", problem_mark=mark)
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                if key.value in seen:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"{shown(key.value)} is given twice", key.start_mark
                    )
                seen.add(key.value)
        return super().construct_mapping(node, deep)

    def _count(self, values: int, levels: int, mark: yaml.Mark) -> None:
        self._values += values
        self._deepest = max(self._deepest, self._level + levels)
        if self._values > MOST_VALUES:
            problem = f"holds more than {MOST_VALUES} values, aliases written out"
            raise _TooMuch(problem=problem, problem_mark=mark)
        if self._level + levels > MOST_LEVELS:
            problem = f"is nested more than {MOST_LEVELS} levels deep"
            raise _TooMuch(problem=problem, problem_mark=mark)


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in known if tag != _TIMESTAMP]
    for first, known in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
