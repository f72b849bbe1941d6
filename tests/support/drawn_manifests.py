"""Manifests drawn from the contract's declarations: right, nearly right and senseless ones.

For tests in which two judges must agree about each of them. A seed gives the same ones every time.
"""

from collections.abc import Iterator
from random import Random
from typing import Any, Final

from batchedmodel_contract.schema.reading import RecordOf, Records, declarations
from batchedmodel_contract.schema.rules import Choice, Real, Rule, Text, Truth, Whole
from batchedmodel_contract.schema.shapes import AscendingWholes, ListOf, MapOf, Names
from batchedmodel_kube.manifest.spec import Model, Spec
from batchedmodel_kube.schema.quantities import Amount, CountOrPercent, Quantity
from batchedmodel_kube.schema.shapes import NamedEntries, Shape, Texts

# Not 2.0: a number of JSON, in which it is the same as 2, but a float to a reader of YAML.
_SENSELESS: Final[tuple[object, ...]] = (
    *(None, 0, 1, -1, 10**12, 1.5, True, "", "x", "1", "a b", "a\n", "é", "a/b", "a:B"),
    *([], [1], ["a"], [None], {}, {"a": 1}, {"a": None}, {"a": {"b": None}}),
)
_TEXTS: Final = (
    *("hf", "simulated", "a:B", "a.b:C", "é:B", "9a:B", "owner/model", "a/b/c", "main", ".."),
    *("a_b", "nvidia.com/gpu", "image:1"),
)
_SERVERS: Final = (
    *({"handler": "simulated"}, {"handler": "a:B"}),
    *({"protocol": "V2", "image": "own:1"}, {"protocol": "OpenAI", "image": "own:1"}),
)
_OF_ENGINES: Final = ("maxConcurrentRequests",)
_OF_HANDLERS: Final = ("maxSequences", "maxTokensPerStep", "maxContextTokens", "kvCache")
_OF_MODELS: Final = (
    *("handler", "source", "port", "parameters", "resources", "env"),
    *("imagePullPolicy", "command", "args", "envFrom", "volumeMounts", "securityContext"),
)
_NAMED: Final[tuple[Any, ...]] = (
    *([{"name": "a"}], [{"name": "a"}, {"name": "a"}], [{"name": "cache"}], [{}]),
    *([{"name": "batcher"}], [{"name": "a", "volumeMounts": None, "securityContext": None}]),
    [{"name": "a", "volumeMounts": [{"name": "cache"}, {"name": "cache"}], "securityContext": {}}],
    [{"name": "a", "volumeMounts": [{"name": "socket"}]}],
    *([{"name": "a", "volumeMounts": [{}]}], [{"name": "a", "securityContext": 1}]),
)
_SOURCES: Final[tuple[dict[str, Any], ...]] = (
    *({}, {"path": "a", "pythonPackage": "b"}, {"volume": {"claimName": "v", "subPath": "a"}}),
    {"huggingFace": {"repo": "a/b", "cacheClaimName": "v"}},
)
_QUANTITIES: Final = (1, 0, "1", "500m", "2Gi", "1.5Gi", "1e3", "1.", "x", -1, 0.5)
_MEMORY: Final = ("512Mi", "1.5Gi", "1G", "0.5Gi", "0Mi", "1Ti", "512", "999999Mi", "1000000Mi")
_RESOURCES: Final = ("cpu", "memory", "nvidia.com/gpu", "amd.com/gpu")


def drawn_manifests(count: int, *, seed: int) -> Iterator[dict[str, Any]]:
    """That many manifests, of which roughly a third is right, under names of their own."""
    random = Random(seed)
    for number in range(count):
        yield {
            "apiVersion": "batchedmodel.dev/v1alpha1",
            "kind": "BatchedModel",
            "metadata": {"name": f"drawn-{number}"},
            "spec": _spec(random),
        }


def _spec(random: Random) -> dict[str, Any]:
    model = _model(random)
    spec = {**_record(random, Spec, 0.15), "model": model}
    # Whether such a manifest is right depends on its class as well.
    spec.pop("className", None)
    if random.random() < 0.8:
        # Otherwise this section would be what is wrong with most of them.
        _spare(model, spec)
    return spec


def _spare(model: object, spec: dict[str, Any]) -> None:
    """Leaves out what servers of the model's kind have nothing to do with."""
    server = model if isinstance(model, dict) else {}
    if "handler" not in server:
        spec.pop("adapters", None)
    generation = spec.get("generation")
    if "handler" not in server and server.get("protocol") != "OpenAI":
        spec.pop("generation", None)
    elif isinstance(generation, dict):
        others = _OF_ENGINES if "handler" in server else _OF_HANDLERS
        spec["generation"] = {name: generation[name] for name in generation if name not in others}


def _model(random: Random) -> object:
    if random.random() < 0.2:
        return drawn_value(random, Spec, "model")
    server = random.choice(_SERVERS)
    if random.random() < 0.3:
        name = random.choice(_OF_MODELS)
        return server | {name: drawn_value(random, Model, name)}
    return server


def _record(random: Random, of: type[Any], share: float) -> dict[str, Any]:
    """A mapping with about that share of the record's fields."""
    found = {
        declared.name: drawn_value(random, of, declared.name)
        for _, declared in declarations(of)
        if random.random() < (0.95 if declared.required else share)
    }
    return found | _stray(random)


def _stray(random: Random) -> dict[str, Any]:
    """Now and then a field that nobody declared."""
    return {"unknown": 1} if random.random() < 0.01 else {}


def _part(random: Random, rule: Rule) -> object:
    return random.choice(_SENSELESS) if random.random() < 0.02 else _fitting(random, rule)


def drawn_value(random: Random, of: type[Any], name: str) -> object:
    """A value for a field or section of that record; more often than not it follows the rule."""
    declared = next(one for _, one in declarations(of) if one.name == name)
    if random.random() < 0.05:
        return random.choice(_SENSELESS)
    if isinstance(declared.rule, RecordOf):
        return _record(random, declared.rule.of, 0.5)
    return _fitting(random, declared.rule)


def _fitting(random: Random, rule: Rule) -> Any:
    match rule:
        case Whole(minimum=minimum, maximum=maximum):
            near = min(maximum, max(minimum, random.randint(1, 60)))
            return random.choice((*[near] * 6, minimum, maximum, minimum - 1, maximum + 1))
        case Truth():
            return random.random() < 0.5
        case Choice(of=members):
            return random.choice([member.value for member in members])
        case AscendingWholes():
            edges = [random.randint(1, 99) for _ in range(random.randint(0, 3))]
            return sorted(edges) if random.random() < 0.8 else edges
        case MapOf(each=Quantity()):
            return {random.choice(_RESOURCES): random.choice(_QUANTITIES)}
        case Shape(fields=fields):
            names = random.sample(sorted(fields), min(len(fields), random.randint(0, 3)))
            return {name: _part(random, fields[name]) for name in names} | _stray(random)
        case Text(at_least=0):
            return random.choice(("", "a", "a b", "é"))
        case Amount():
            return random.choice((0, 1, -1, "1Gi", "http", "x" * 64, "x" * 65, 0.5, True))
        case Texts():
            return random.choice((["a"], ["", "--b=c"], [1], [], "a"))
        case CountOrPercent():
            return random.choice((0, 1, 1001, -1, "0%", "25%", "100%", "101%", "1", "%"))
        case NamedEntries(each=each):
            entry = _fitting(random, each)
            return random.choice((*_NAMED, *[[{**entry, "name": "a"}]] * len(_NAMED)))
        case Names(called="path"):
            return random.choice((["/a"], ["/a/*", "/b"], ["a"], []))
        case Names(called="network"):
            return random.choice((["10.0.0.0/8"], ["10.0.0.1", "fd00::/8"], ["10.0.0.0/33"], []))
        case Names():
            return random.choice((["a"], ["a", "b"], ["a", "a"], []))
        case Records():
            source = {"path": "a"} if random.random() < 0.8 else random.choice(_SOURCES)
            name = random.choice(("a", "b", "B.1", "a/b"))
            return [{"name": name, "source": source}] * random.choice((0, 1, 1, 1, 2))
        case ListOf(each=each):
            return [_part(random, each) for _ in range(random.randint(0, 2))]
        case MapOf(each=Text(at_least=0, pattern=str()), keys=None):
            return random.choice(({}, {"a": "b"}, {"a": ""}, {"a": "b\0"}))
        case MapOf(each=Text(at_least=0)):
            return random.choice(({}, {"a": "b"}, {"": "x"}, {"a": ""}))
        case Text(form=form) if "memory" in form:
            return random.choice(_MEMORY)
        case Text():
            return random.choice(_TEXTS)
        case Real(minimum=least, maximum=most):
            return random.choice((least, most, least / 2, most * 2, (least + most) / 2, "1"))
        case MapOf(each=Real()):
            return random.choice(({}, {"a": 1.5}, {"a": 1, "b": 0.5}, {"a": 0}, {"a": "1"}, []))
    raise TypeError(f"no values are known for {rule!r}")
