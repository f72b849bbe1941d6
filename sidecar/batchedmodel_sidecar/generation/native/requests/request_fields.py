"""Fields that requests for text have in common, read and checked. Pure."""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from batchedmodel_contract.generation.frames import Sampling
from batchedmodel_contract.generation.sampling_rules import MAX_TOKENS, SAMPLING_RULES
from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_contract.schema.rules import Broken, Real, Whole
from batchedmodel_sidecar.generation.fields import SEEDS
from batchedmodel_sidecar.protocols.json_bodies import whole_number

_MOST_STOPS: Final = 16
_LONGEST_STOP: Final = 128
_MOST_LOGPROBS: Final = 20
_TOKEN_IDS: Final = Whole(minimum=0, maximum=2**31 - 1)
_SEED_BITS: Final = 2**63 - 1
_PENALTY: Final = Real(minimum=-2.0, maximum=2.0)
_RULES: Final[Mapping[str, Real | Whole]] = {
    **SAMPLING_RULES,
    "presence_penalty": _PENALTY,
    "frequency_penalty": _PENALTY,
}

SAMPLING: Final = frozenset(
    {
        *("temperature", "top_p", "top_k", "min_p", "seed"),
        *("presence_penalty", "frequency_penalty", "repetition_penalty"),
    }
)
"""The fields that say how tokens are chosen, the same in all protocols."""
STOPPING: Final = frozenset({"stop", "stop_token_ids", "ignore_eos"})


class Stopping(NamedTuple):
    """What ends a text before its length."""

    texts: tuple[str, ...]
    ids: tuple[int, ...]


def sampling_of(asked: Mapping[str, Any], logprobs: int | None) -> tuple[Sampling, bool]:
    """How tokens are chosen, and whether the caller gave the seed; raises `InvalidInput`."""
    seed = optional_whole(asked, "seed", SEEDS)
    sampling = Sampling(
        temperature=optional_real(asked, "temperature", 1.0),
        top_p=optional_real(asked, "top_p", 1.0),
        top_k=max(0, int(optional_real(asked, "top_k", 0))),  # -1 is vLLM's word for all
        min_p=optional_real(asked, "min_p", 0.0),
        presence_penalty=optional_real(asked, "presence_penalty", 0.0),
        frequency_penalty=optional_real(asked, "frequency_penalty", 0.0),
        repetition_penalty=optional_real(asked, "repetition_penalty", 1.0),
        seed=0 if seed is None else seed & _SEED_BITS,
        logprobs=logprobs,
    )
    return sampling, seed is not None


def stopping_of(asked: Mapping[str, Any], model_stops: tuple[int, ...]) -> Stopping:
    """What ends its texts; raises `InvalidInput`. `model_stops`: tokens that end any text."""
    given = asked.get("stop")
    texts = [] if given is None else [given] if isinstance(given, str) else given
    if not isinstance(texts, list) or len(texts) > _MOST_STOPS:
        raise InvalidInput("stop", f"is not a text or a list of at most {_MOST_STOPS}", given)
    for text in texts:
        if not isinstance(text, str) or not 0 < len(text) <= _LONGEST_STOP:
            rule = f"holds something else than texts of 1 to {_LONGEST_STOP} characters"
            raise InvalidInput("stop", rule, text)
    ids = asked.get("stop_token_ids")
    ids = [] if ids is None else ids
    if not isinstance(ids, list) or len(ids) > _MOST_STOPS:
        raise InvalidInput("stop_token_ids", f"is not a list of at most {_MOST_STOPS}", ids)
    stops = tuple(whole_number(_TOKEN_IDS, one, "stop_token_ids") for one in ids)
    return Stopping(tuple(texts), stops if flag_of(asked, "ignore_eos") else stops + model_stops)


def max_tokens_of(asked: Mapping[str, Any], *fields: str) -> int | None:
    """The first of these fields that is there; raises `InvalidInput`."""
    found = [optional_whole(asked, field, MAX_TOKENS) for field in fields]
    return next((one for one in found if one is not None), None)


def logprobs_of(asked: Mapping[str, Any], field: str) -> int | None:
    """How many tokens are told with each one; raises `InvalidInput`."""
    return optional_whole(asked, field, Whole(minimum=0, maximum=_MOST_LOGPROBS))


def optional_whole(asked: Mapping[str, Any], field: str, rule: Whole) -> int | None:
    """A whole number, None where it is absent; raises `InvalidInput`."""
    given = asked.get(field)
    return None if given is None else whole_number(rule, given, field)


def optional_real(asked: Mapping[str, Any], field: str, default: float) -> float:
    """A number; raises `InvalidInput`."""
    given = asked.get(field)
    if given is None:
        return default
    try:
        return _RULES[field].read(given)
    except Broken as broken:
        raise InvalidInput(field, str(broken), given) from broken


def flag_of(asked: Mapping[str, Any], field: str) -> bool:
    """True or false, which is what is absent; raises `InvalidInput`."""
    given = asked.get(field)
    if given is None:
        return False
    if not isinstance(given, bool):
        raise InvalidInput(field, "is not true or false", given)
    return given


def require_neutral(asked: Mapping[str, Any], neutral: Mapping[str, tuple[Any, ...]]) -> None:
    """Raise `InvalidInput` for a field that is not supported, unless it changes nothing."""
    for field, values in neutral.items():
        given = asked.get(field)
        # 0 is no false here, although Python takes them for equal.
        if given is not None and not any(
            type(one) is type(given) and one == given for one in values
        ):
            raise InvalidInput(field, "is not supported here", given)


def optional_object(asked: Mapping[str, Any], field: str) -> dict[str, Any]:
    """An object, which is empty where it is absent; raises `InvalidInput`."""
    given = asked.get(field)
    if given is None:
        return {}
    if not isinstance(given, dict):
        raise InvalidInput(field, "is not an object", given)
    return given
