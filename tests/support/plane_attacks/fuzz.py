"""Odd BatchedModels, drawn from the schema that an API server holds them to.

A seed gives the same ones every time. Most are taken; which, the API server says.
"""

import asyncio
import json
import re
import string
from collections.abc import Iterator, Mapping
from functools import partial
from random import Random
from typing import Any, Final

import yaml

from support.plane import CRD
from support.plane_attacks.aim import Aim, Attack, model

_AT_ONCE: Final = 2
_LOOKED_AT_SECONDS: Final = 0.2
_LETTERS: Final = (
    string.ascii_letters + '\u0000\u001f\u2028\ud7ff\ufffd\U0001f600éß中"\\\n\t{}[]:, '
)
_TEXTS: Final = (
    *("a", "simulated", "a:B", "a.b:C", "owner/model", "main", "image:1", "nvidia.com/gpu"),
    *(
        "100m",
        "1Gi",
        "25%",
        "0%",
        "100%",
        "/a",
        "/*",
        "/a/b/*",
        "10.0.0.0/8",
        "10.0.0.1",
        "fd00::/8",
    ),
    *("token", "x-tenant", "A100", "0", "1e3", "-", "_", "a_b"),
)
_SERVERS: Final[tuple[dict[str, Any], ...]] = (
    {"handler": "simulated"},
    {"handler": "hf", "source": {"pythonPackage": "a.b"}},
    {"handler": "a:B", "source": {"huggingFace": {"repo": "a/b"}}},
    {"protocol": "V2", "image": "own:1"},
    {"protocol": "OpenAI", "image": "own:1", "port": 9000},
)
_NUMBERS: Final = (0, -1, 1, 2**31, -(2**63), 2**63 - 1, 1e308, -1e-308, 0.1, 10**15)
_SHARE: Final = 0.12
"""Of the fields that may be absent, those that are there."""
_NEARLY_LARGEST: Final = 20_000


class _Nothing(Exception):
    """No value is known that follows the rule."""


def odd_models(*, seed: int) -> Iterator[dict[str, Any]]:
    """Without an end, under names of their own."""
    definition = yaml.safe_load(CRD.read_text())
    schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    random, number = Random(seed), 0
    while True:
        spec = _drawn(random, schema)
        server = random.choice(_SERVERS)
        spec["model"] = {**spec.get("model", {}), **server}
        # How many pods there are is the cluster's matter, and costs an API server its time.
        spec["suspend"] = number % 4 > 0
        for section, name in ((spec, "replicas"), (spec.get("autoscaling", {}), "minReplicas")):
            if name in section:
                section[name] = 1
        for other in {"handler", "protocol", "source"} - server.keys():
            spec["model"].pop(other, None)
        made = model(f"odd-{number}")
        yield {**made, "spec": spec}
        number += 1


def _drawn(random: Random, schema: Mapping[str, Any]) -> Any:
    if schema.get("x-kubernetes-int-or-string"):
        return _number(random, schema) if random.random() < 0.5 else _text(random, schema)
    if "enum" in schema:
        return random.choice(schema["enum"])
    match schema.get("type"):
        case "object":
            return _mapping(random, schema)
        case "array":
            most = min(schema.get("maxItems", 8), random.choice((0, 1, 2, 3, 64)))
            found = [_drawn(random, schema["items"]) for _ in range(most)]
            return _different(found) if schema.get("x-kubernetes-list-type") != "atomic" else found
        case "string":
            return _text(random, schema)
        case "integer" | "number":
            return _number(random, schema)
        case "boolean":
            return random.random() < 0.5
    raise TypeError(f"no values are known for {schema!r}")


def _mapping(random: Random, schema: Mapping[str, Any]) -> dict[str, Any]:
    required = schema.get("required", ())
    found: dict[str, Any] = {}
    for name, inner in schema.get("properties", {}).items():
        if name in required or random.random() < _SHARE:
            try:
                found[name] = _drawn(random, inner)
            except _Nothing:
                continue
    extra = schema.get("additionalProperties")
    if extra:
        for _ in range(random.choice((0, 1, 3, schema.get("maxProperties", 8)))):
            found[_some_letters(random, 20)] = _drawn(random, extra)
    if schema.get("x-kubernetes-preserve-unknown-fields"):
        for _ in range(random.choice((0, 1, 3))):
            found[_some_letters(random, 10)] = anything(random)
    return found


def anything(random: Random, depth: int = 0) -> Any:
    """Any JSON: small mostly, sometimes deep, wide or long."""
    kind = random.randrange(12 if depth < 6 else 6)
    match kind:
        case 0:
            return random.choice((True, False, "", {}, []))
        case 1:
            return random.choice(_NUMBERS)
        case 2 | 3:
            return _some_letters(random, 30)
        case 4:
            return _some_letters(random, random.choice((300, _NEARLY_LARGEST)))
        case 5:
            return random.choice(([[]] * 300, [0] * 3_000, {str(one): {} for one in range(200)}))
        case 6:
            return _nested(random.choice((3, 63, 64, 65, 150, 400)))
        case 7 | 8 | 9:
            return [anything(random, depth + 1) for _ in range(random.randrange(4))]
    names = (_some_letters(random, 8) for _ in range(random.randrange(4)))
    return {name: anything(random, depth + 1) for name in names}


def _nested(depth: int) -> Any:
    found: Any = 0
    for one in range(depth):
        found = [found] if one % 2 else {"x": found}
    return found


def _text(random: Random, schema: Mapping[str, Any]) -> str:
    least, most = schema.get("minLength", 0), schema.get("maxLength", 300)
    if pattern := schema.get("pattern"):
        fitting = [one for one in _TEXTS if re.search(pattern, one) and least <= len(one) <= most]
        if not fitting:
            raise _Nothing
        return random.choice(fitting)
    length = random.choice((least, 1, 8, min(most, _NEARLY_LARGEST)))
    return _some_letters(random, max(least, min(length, most)))


def _number(random: Random, schema: Mapping[str, Any]) -> int | float:
    least, most = schema.get("minimum", -(2**31)), schema.get("maximum", 2**31)
    near = min(most, max(least, random.randint(1, 60)))
    return random.choice((least, most, near, near))  # type: ignore[no-any-return]


def _some_letters(random: Random, length: int) -> str:
    # A few letters again and again, as the longest would take longer to draw than to be parsed.
    some = "".join(random.choice(_LETTERS) for _ in range(min(length, 24)))
    return (some * (length // 24 + 1))[:length]


def _different(found: list[Any]) -> list[Any]:
    by_key = {json.dumps(one.get("name") if isinstance(one, dict) else one): one for one in found}
    return list(by_key.values())


async def _fuzz(aim: Aim, *, count: int, seed: int) -> None:
    """So many that are taken: made, edited, looked at and deleted."""
    drawn, taken = odd_models(seed=seed), 0
    path = aim.path("batchedmodels")
    await aim.begins()

    async def one() -> None:
        nonlocal taken
        while taken < count:
            made = next(drawn)
            if await aim.ask("POST", path, made) != 201:
                continue
            taken += 1
            name = made["metadata"]["name"]
            spec = json.dumps({"spec": next(drawn)["spec"]})
            await aim.change("batchedmodels", name, spec)
            await aim.rest(_LOOKED_AT_SECONDS)
            await aim.drop("batchedmodels", name)

    async with asyncio.TaskGroup() as group:
        for _ in range(_AT_ONCE):
            group.create_task(one())


def fuzz(count: int, *, seed: int) -> Attack:
    """So many random objects that the API server takes."""
    run = partial(_fuzz, count=count, seed=seed)
    return Attack(name=f"{count:,} random objects", run=run, rows=(1, 5))
