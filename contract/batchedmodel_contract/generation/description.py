"""What a sidecar must know of a model that generates, beside its tokenizer."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, NamedTuple

from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_contract.schema.reading import camel_case


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSeconds:
    """How long a step takes, as measured when the engine started."""

    base: float
    """Of any step."""
    prefill_token: float
    """That each token of a prompt adds."""
    sequence: float
    """That each sequence adds which gets a token."""
    context_token: float
    """That each token adds which these sequences have in the cache."""


class StepBounds(NamedTuple):
    """How large steps may be."""

    sequences: int
    tokens: int
    """Of prompts and texts together, as many as sequences at least."""

    def within(self, max_sequences: int | None, max_tokens_per_step: int | None) -> "StepBounds":
        """What holds where a manifest says so much; what it does not say gives way to the rest."""
        sequences = max_sequences or self.sequences
        if max_tokens_per_step is None:
            return StepBounds(sequences, max(self.tokens, sequences))
        return StepBounds(min(sequences, max_tokens_per_step), max_tokens_per_step)


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationDescription:
    """An engine and its model."""

    vocabulary: int
    """Token ids are below it."""
    max_context_tokens: int
    """Of a prompt and its text together."""
    block_tokens: int
    """Tokens of a block of the cache of keys and values."""
    blocks: int
    max_sequences: int
    """That run at once, where the manifest asks for no less."""
    max_tokens_per_step: int
    step_seconds: StepSeconds
    stop_ids: tuple[int, ...] = ()
    """Tokens that end a text, as the model's configs say; the tokenizer's eos does as well."""
    chat_template: str | None = None
    """In Jinja2; None: there is none, and chats are refused."""
    special_tokens: Mapping[str, str] = field(default_factory=dict)
    """What templates call them, such as `bos_token`, and their texts."""
    sampling_defaults: Mapping[str, float] = field(default_factory=dict)
    """Of `generation_config.json`: how tokens are chosen where a caller says nothing."""

    def bounds(self, max_sequences: int | None, max_tokens_per_step: int | None) -> StepBounds:
        """What holds where a manifest says so much."""
        own = StepBounds(self.max_sequences, self.max_tokens_per_step)
        return own.within(max_sequences, max_tokens_per_step)

    def to_mapping(self) -> dict[str, Any]:
        """As JSON."""
        document = {camel_case(name): value for name, value in asdict(self).items()}
        seconds = asdict(self.step_seconds)
        return document | {"stepSeconds": {camel_case(name): seconds[name] for name in seconds}}


def generation_from_mapping(mapping: Any) -> GenerationDescription:
    """The description in a document of our server; raises `InvalidInput`."""
    try:
        template = mapping["chatTemplate"]
        description = GenerationDescription(
            vocabulary=int(mapping["vocabulary"]),
            max_context_tokens=int(mapping["maxContextTokens"]),
            block_tokens=int(mapping["blockTokens"]),
            blocks=int(mapping["blocks"]),
            max_sequences=int(mapping["maxSequences"]),
            max_tokens_per_step=int(mapping["maxTokensPerStep"]),
            step_seconds=_step_seconds(mapping["stepSeconds"]),
            stop_ids=tuple(map(int, mapping["stopIds"])),
            chat_template=None if template is None else str(template),
            special_tokens={str(k): str(v) for k, v in mapping["specialTokens"].items()},
            sampling_defaults={str(k): v for k, v in mapping["samplingDefaults"].items()},
        )
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
        raise InvalidInput("generation", f"is not a description of it: {error!r}") from error
    least = min(
        description.vocabulary,
        description.max_context_tokens,
        description.block_tokens,
        description.blocks,
        description.max_sequences,
        description.max_tokens_per_step,
    )
    if least < 1:
        raise InvalidInput("generation", "has a number below 1", least)
    return description


def _step_seconds(mapping: Mapping[str, Any]) -> StepSeconds:
    names = [field.name for field in fields(StepSeconds)]
    found = {name: float(mapping[camel_case(name)]) for name in names}
    if not all(0 <= value < math.inf for value in found.values()):
        raise ValueError(f"{found} holds something else than seconds")
    return StepSeconds(**found)
