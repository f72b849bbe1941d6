"""A handler's declaration, checked once and put into the forms that the rest needs.

Validation, collation, warm-up and the v2 metadata all follow from it.
"""

import math
import operator
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from batchedmodel_contract.inference.description import (
    RAGGED,
    CostRule,
    ModelDescription,
    TensorSpec,
    check_roles,
)
from batchedmodel_contract.inference.params import RESERVED, Param
from batchedmodel_contract.inference.tensors import Datatype
from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_model_server.api.handler import Handler, Spec
from batchedmodel_model_server.errors import CannotLoad

FIRST_VERSION: Final = "1"


class Sharing(Enum):
    """How items of different length share a forward pass."""

    PACKED = "packed"
    """One behind the other in one row."""
    PADDED = "padded"
    """Each filled up to the longest."""
    APART = "equal length only"
    """Not at all: there is one pass for each length, because padding would change answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Declaration:
    """What goes in and out of a model, one item at a time."""

    inputs: Mapping[str, Spec]
    outputs: Mapping[str, Spec]
    cost_rule: CostRule
    checks_items: bool
    """Whether the handler has a `check` of its own."""
    packs: bool
    """Whether the handler can take packed batches, as it says."""
    sharing: Sharing = Sharing.PADDED
    """As the self-test found, which is run after the declaration has been read."""
    params: Mapping[str, Param] = field(default_factory=dict)
    """What each item's request may set."""

    def lengths(self, sizes: Mapping[str, Sequence[int]], rows: int) -> list[int]:
        """Each row's length, given its size by letter; ones where all sizes are fixed.

        It is the product of an input's lettered sizes, and of several inputs the largest: what the
        device pays grows with it, and the proxy measures it in the same way.
        """
        longest = [1] * rows
        # Most inputs have the same letters, and count once.
        for letters in {spec.letters for spec in self.inputs.values() if spec.letters}:
            product = sizes[letters[0]]
            for letter in letters[1:]:
                product = list(map(operator.mul, product, sizes[letter]))
            longest = list(map(max, longest, product))
        return longest

    def length_of(self, sizes: Mapping[str, int]) -> int:
        """The length of one item of these sizes."""
        return max(
            math.prod(sizes[letter] for letter in spec.letters) for spec in self.inputs.values()
        )

    def sizes_of(self, length: int) -> dict[str, int]:
        """Sizes by letter, as equal as bounds allow, of the longest item up to this length.

        Where no item is as short, those of the shortest.
        """
        bounds = self.bounds.items()

        def sizes_at(side: int) -> dict[str, int]:
            return {letter: min(max(side, least), largest) for letter, (least, largest) in bounds}

        sides = range(1, length + 1)
        return sizes_at(
            bisect_right(sides, length, key=lambda side: self.length_of(sizes_at(side)))
        )

    @property
    def bounds(self) -> Mapping[str, tuple[int, int]]:
        """The least and the largest size of each letter, as all inputs together allow."""
        found: dict[str, tuple[int, int]] = {}
        for spec in self.inputs.values():
            for letter in spec.letters:
                least, largest = found.get(letter, (1, spec.max or 1))
                found[letter] = max(least, spec.min), min(largest, spec.max or 1)
        return found

    def padded_tokens(self, tokens: int, rows: int, longest: int) -> int:
        """What the device is given for `rows` items of `tokens` in all."""
        fills_up = self.cost_rule is CostRule.PADDED and self.sharing is Sharing.PADDED
        return rows * longest if fills_up else tokens


def declaration_of(handler: Handler) -> Declaration:
    """The declaration of a loaded handler; raises `CannotLoad` when it cannot be served."""
    for side in ("inputs", "outputs"):
        specs = getattr(handler, side, None)
        if not isinstance(specs, Mapping) or not specs:
            raise CannotLoad(f"{type(handler).__name__} declares no {side}")
        for name, spec in specs.items():
            if not isinstance(spec, Spec):
                raise CannotLoad(f"{type(handler).__name__}.{side}[{name!r}] is not a Spec")
            if not isinstance(name, str) or not name or ":" in name:
                raise CannotLoad(f"{type(handler).__name__}.{side}: {name!r} is not a tensor name")
    for name, spec in handler.inputs.items():
        if spec.letters and spec.max is None:
            raise CannotLoad(f"input {name}: dimension {spec.letters[0]} needs a max")
    known = {letter for spec in handler.inputs.values() for letter in spec.letters}
    for name, spec in (*handler.inputs.items(), *handler.outputs.items()) if handler.packs else ():
        if len(known) > 1 or spec.letters not in ((), spec.shape[:1]):
            raise CannotLoad(
                f"{name}: a handler that packs has one letter in all of its inputs, and wherever "
                f"one comes it is the first size, not as in {', '.join(map(str, spec.shape))}"
            )
    for name, spec in handler.outputs.items():
        own = [letter for letter in spec.letters if letter not in known]
        if own and spec.letters != (spec.shape[0],):
            # Such an output comes with one size per row, which can describe one dimension only.
            raise CannotLoad(
                f"output {name}: {own[0]} is in no input, so it must be the only letter and the "
                "first dimension"
            )
    cost_rule: object = handler.cost_rule
    if not isinstance(cost_rule, CostRule):
        known_rules = ", ".join(f"CostRule.{rule.name}" for rule in CostRule)
        raise CannotLoad(f"{type(handler).__name__}.cost_rule: {cost_rule!r} is no {known_rules}")
    declaration = Declaration(
        inputs=handler.inputs,
        outputs=handler.outputs,
        cost_rule=handler.cost_rule if known else CostRule.ROWS,
        checks_items=type(handler).check is not Handler.check,
        packs=handler.packs and bool(known),
        params=_params(handler),
    )
    for letter, (least, largest) in declaration.bounds.items():
        if least > largest:
            raise CannotLoad(f"inputs: {letter} is at least {least} here, at most {largest} there")
    _check_roles(handler, declaration)
    return declaration


def _check_roles(handler: Handler, declaration: Declaration) -> None:
    """Refuse roles that do not fit the tensors: callers would find out only later."""
    kind = type(handler).__name__
    tokenizer: object = handler.tokenizer
    if handler.text is not None and not isinstance(tokenizer, bytes):
        given = "none" if tokenizer is None else f"a {type(tokenizer).__name__}"
        raise CannotLoad(
            f"{kind}.text needs {kind}.tokenizer, the bytes of a tokenizer.json; it is {given}"
        )
    try:
        check_roles(describe("", handler, declaration))
    except InvalidInput as error:
        raise CannotLoad(f"{kind}.{error}") from error


def _params(handler: Handler) -> dict[str, Param]:
    kind = type(handler).__name__
    if not isinstance(handler.params, Mapping):
        raise CannotLoad(f"{kind}.params is not a mapping of names to Param")
    for name, param in handler.params.items():
        if not isinstance(param, Param):
            raise CannotLoad(f"{kind}.params[{name!r}] is not a Param")
        if not str(name).isidentifier():
            raise CannotLoad(f"{kind}.params: {name!r} is not a name")
        if name in RESERVED:
            raise CannotLoad(f"{kind}.params: {name} means something to every model already")
    return dict(handler.params)


def describe(
    name: str,
    handler: Handler,
    declaration: Declaration,
    *,
    version: str = FIRST_VERSION,
    idempotent: bool = True,
) -> ModelDescription:
    """What the server tells its callers."""
    return ModelDescription(
        name=name,
        version=version,
        platform=handler.platform,
        inputs=tuple(_tensor_spec(*entry) for entry in declaration.inputs.items()),
        outputs=tuple(_tensor_spec(*entry) for entry in declaration.outputs.items()),
        cost_rule=declaration.cost_rule,
        equal_lengths=declaration.sharing is Sharing.APART,
        text=handler.text,
        embedding=handler.embedding,
        shortest_embedding=handler.shortest_embedding,
        classification=handler.classification,
        ranking=handler.ranking,
        idempotent=idempotent,
        precision=handler.precision,
        params=declaration.params,
    )


def _tensor_spec(name: str, spec: Spec) -> TensorSpec:
    return TensorSpec(
        name=name,
        datatype=Datatype(spec.datatype),
        shape=tuple(RAGGED if isinstance(size, str) else size for size in spec.shape),
        max_length=spec.max,
        min_length=spec.min,
        letters=spec.letters,
    )
