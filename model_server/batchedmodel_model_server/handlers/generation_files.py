"""Reads what the files of a model that generates say beside its weights, without torch.

Which tokens end a text and how the others are chosen, how a conversation becomes a prompt, and what
special tokens are called.
"""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from batchedmodel_contract.generation.sampling_rules import MAX_TOKENS, SAMPLING_RULES
from batchedmodel_contract.invalid_input import shown
from batchedmodel_contract.schema.rules import Broken
from batchedmodel_model_server.errors import CannotLoad
from batchedmodel_model_server.sources.untrusted_files import read_bytes, read_json

_GENERATION: Final = "generation_config.json"
_TOKENIZER: Final = "tokenizer_config.json"
_SPECIAL: Final = "special_tokens_map.json"
"""Of older checkpoints."""
_TEMPLATE: Final = "chat_template.jinja"
_DEFAULT: Final = "default"
_MOST_TEMPLATE_BYTES: Final = 1024 * 1024
_MOST_STOPS: Final = 64
_DEFAULTS: Final = {**SAMPLING_RULES, "max_new_tokens": MAX_TOKENS}
"""What is taken of the generation config, as in vLLM."""
_log: Final = logging.getLogger(__name__)
_SERVED: Final = ("full_attention", "sliding_attention")
INSTEAD: Final = (
    "; our engine runs decoders that keep keys and values of each token and nothing else, such as "
    "Llama, Qwen3 and GPT-2 (docs/language-models.md). Others run on another engine, such as vLLM, "
    "behind the sidecar (spec.model.protocol: OpenAI)"
)
"""What can be done, at the end of a refusal to generate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationFiles:
    """What is said of a model that generates."""

    stop_ids: tuple[int, ...]
    chat_template: str | None
    special_tokens: Mapping[str, str]
    sampling_defaults: Mapping[str, float]


def read_generation_files(
    folder: Path, config: Mapping[str, Any], *, sampling: bool = True
) -> GenerationFiles:
    """What the files in `folder` say; `config`: of `config.json`. Raises `CannotLoad`.

    `sampling`: whether what they say of how tokens are chosen is read as well.
    """
    tokenizer, generation = read_json(folder / _TOKENIZER, {}), read_json(folder / _GENERATION, {})
    return GenerationFiles(
        stop_ids=_stop_ids(generation, config),
        chat_template=_chat_template(folder, tokenizer),
        special_tokens=_special_tokens({**read_json(folder / _SPECIAL, {}), **tokenizer}),
        sampling_defaults=_sampling_defaults(generation) if sampling else {},
    )


def _stop_ids(generation: Mapping[str, Any], config: Mapping[str, Any]) -> tuple[int, ...]:
    given = generation.get("eos_token_id")
    file = _GENERATION
    if given is None:
        given, file = config.get("eos_token_id"), "config.json"
    if given is None:
        return ()
    listed = given if isinstance(given, list) else [given]
    if len(listed) > _MOST_STOPS or not all(type(one) is int and one >= 0 for one in listed):
        raise CannotLoad(f"{file}: eos_token_id {shown(given)} is no token id, nor a list of such")
    return tuple(dict.fromkeys(listed))


def _sampling_defaults(generation: Mapping[str, Any]) -> dict[str, float]:
    defaults: dict[str, float] = {}
    for name, rule in _DEFAULTS.items():
        try:
            if (value := generation.get(name)) is not None:
                # JSON has no integers: 50.0 is 50.
                is_whole = isinstance(value, float) and value.is_integer()
                defaults[name] = rule.read(int(value) if is_whole else value)
        except Broken as broken:
            _log.warning("%s: %s %s %s: left out", _GENERATION, name, shown(value), broken)
    if generation.get("do_sample") is False:
        defaults["temperature"] = 0.0
    return defaults


def _chat_template(folder: Path, tokenizer: Mapping[str, Any]) -> str | None:
    """A file of its own goes before the one in the tokenizer's, as in transformers."""
    file = folder / _TEMPLATE
    if file.is_file():
        try:
            return read_bytes(file, _MOST_TEMPLATE_BYTES).decode()
        except (OSError, UnicodeDecodeError) as error:
            raise CannotLoad(f"{file} cannot be read: {error}") from error
    given = tokenizer.get("chat_template")
    if isinstance(given, list):
        named = [one for one in given if isinstance(one, dict) and one.get("name") == _DEFAULT]
        given = named[-1].get("template") if named else None
    if given is None:
        return None
    if not isinstance(given, str) or len(given) > _MOST_TEMPLATE_BYTES:
        raise CannotLoad(f"{folder / _TOKENIZER}: chat_template is no text of bounded length")
    return given


def _special_tokens(tokenizer: Mapping[str, Any]) -> dict[str, str]:
    found = {}
    for name, value in tokenizer.items():
        if not name.endswith("_token"):
            continue
        text = value.get("content") if isinstance(value, dict) else value
        if isinstance(text, str):
            found[name] = text
    return found


def check_layers(config: Mapping[str, Any]) -> None:
    """Raise `CannotLoad` for layers of another kind than those served.

    `config`: of the loaded model, which knows more than its file says.
    """
    for kind in config.get("layer_types") or ():
        if kind not in _SERVED:
            raise CannotLoad(
                f"config.json: layers of type {kind} are not served, only "
                f"{' and '.join(_SERVED)}{INSTEAD}"
            )


def windows_of(config: Mapping[str, Any]) -> set[int]:
    """Of how many tokens some layers see the last ones only, as the loaded model's config says."""
    return _lengths([config.get("sliding_window")])


def switches_of(config: Mapping[str, Any]) -> set[int]:
    """Lengths beyond which tables of positions may be others, as the loaded model's config says."""
    rope = config.get("rope_parameters")
    parts = [config]
    if isinstance(rope, dict):
        # For all layers, or for each kind of them.
        parts += [rope, *(one for one in rope.values() if isinstance(one, dict))]
    given = [part.get("original_max_position_embeddings") for part in parts]
    if any(part.get("rope_type") == "dynamic" for part in parts):
        given.append(config.get("max_position_embeddings"))
    return _lengths(given)


def _lengths(given: Iterable[object]) -> set[int]:
    return {one for one in given if isinstance(one, int) and one > 0}
