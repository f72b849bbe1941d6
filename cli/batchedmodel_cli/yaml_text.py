"""YAML (or JSON) text into one document, bounded by what it would be with its aliases written out.

A few lines of aliases to aliases stand for billions of values, which whoever walks through the
document later would meet one by one. So they are counted while the text is read, which ends where
there are too many. Knows nothing of manifests.
"""

from typing import Any, Final

import yaml

from batchedmodel_contract.invalid_input import shown

MOST_CHARACTERS: Final = 4 * 1024 * 1024
"""Of a text; an API server takes objects of 1.5 MiB."""
MOST_VALUES: Final = 50_000
"""Of a text, aliases written out; an object with the books of its managers has some hundreds."""
MOST_LEVELS: Final = 100
_MOST_DIGITS: Final = 100
_TIMESTAMP: Final = "tag:yaml.org,2002:timestamp"
_NUMBERS: Final = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
_UNREADABLE: Final = (
    *(yaml.YAMLError, RecursionError),
    # What the library's constructors raise for a value that its explicit tag does not fit.
    *(ValueError, LookupError, AttributeError, TypeError, ArithmeticError),
)


class NotOneDocument(ValueError):
    """The text is no YAML, holds not one document, or more than is read; the message says which."""


class _TooMuch(yaml.MarkedYAMLError):
    """More than is read."""


def read_document(text: str) -> object:
    """The one document that a text holds; raises `NotOneDocument`."""
    if len(text) > MOST_CHARACTERS:
        raise NotOneDocument(f"is longer than {MOST_CHARACTERS} characters")
    try:
        documents = list(yaml.load_all(text, _Loader))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        kind = "" if isinstance(error, _TooMuch) else "is not YAML: "
        raise NotOneDocument(f"{kind}{place}{error.problem}") from error
    except _UNREADABLE as error:
        raise NotOneDocument(f"is not YAML: {' '.join(str(error).split())}") from error
    # A file that ends in `---` has an empty last document.
    documents = [document for document in documents if document is not None]
    if not documents:
        raise NotOneDocument("is empty")
    if len(documents) > 1:
        raise NotOneDocument(f"holds {len(documents)} documents; one manifest per file")
    return documents[0]


class _Loader(yaml.SafeLoader):
    """YAML as Kubernetes reads it: a key given twice is a mistake, not a silent choice.

    A date is a text, for there are none in JSON.
    """

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._values = 0
        """So far, each alias counted as what it stands for."""
        self._level = 0
        self._deepest = 0
        """Below the node that is being composed."""
        self._extents: dict[yaml.Node, tuple[int, int]] = {}
        """Of each whole node: how many values it is, and how many levels."""

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
            told = f"holds more than {MOST_VALUES} values, aliases written out"
            raise _TooMuch(problem=told, problem_mark=mark)
        if self._level + levels > MOST_LEVELS:
            told = f"is nested more than {MOST_LEVELS} levels deep"
            raise _TooMuch(problem=told, problem_mark=mark)


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in known if tag != _TIMESTAMP]
    for first, known in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
