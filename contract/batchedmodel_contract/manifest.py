"""Reads a whole BatchedModel manifest and judges what no single field can.

Called with a mapping by `batchedmodel run` (from YAML) and by the operator (from the API server).
Each cross-field rule is a named pure check, listed once in `CHECKS`. The checks judge a whole spec,
so they run only once every field of it obeys its own rule.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from batchedmodel_contract.mistakes import InvalidManifest, Mistake, shown
from batchedmodel_contract.reading import read
from batchedmodel_contract.spec import Spec

API_VERSION: Final = "batchedmodel.dev/v1alpha1"
KIND: Final = "BatchedModel"
_NAME: Final = re.compile(r"[a-z]([a-z0-9-]{0,46}[a-z0-9])?")


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchedModel:
    """A manifest that was read and found right."""

    name: str
    spec: Spec


def read_manifest(manifest: object) -> BatchedModel:
    """The record of a manifest.

    Raises `InvalidManifest` with the mistakes of its head and every mistake that a single field of
    its spec makes; if none does, with every mistake that fields make together.
    """
    if not isinstance(manifest, Mapping):
        raise InvalidManifest(
            (Mistake(field="manifest", rule="is not a mapping", value=shown(manifest)),)
        )
    mistakes = [*_wrong_header(manifest)]
    spec = None
    if manifest.get("spec") is None:
        mistakes.append(Mistake(field="spec", rule="is required"))
    else:
        spec = read(Spec, manifest["spec"], "spec", mistakes)
    if spec is not None:
        mistakes.extend(mistake for check in CHECKS for mistake in check(spec))
    if spec is None or mistakes:
        raise InvalidManifest(tuple(mistakes))
    return BatchedModel(name=manifest["metadata"]["name"], spec=spec)


def _wrong_header(manifest: Mapping[str, object]) -> Iterator[Mistake]:
    for field, expected in (("apiVersion", API_VERSION), ("kind", KIND)):
        given = manifest.get(field)
        if given is None:
            yield Mistake(field=field, rule=f"is required and must be {expected}")
        elif given != expected:
            yield Mistake(field=field, rule=f"is not {expected}", value=shown(given))
    metadata = manifest.get("metadata")
    name = metadata.get("name") if isinstance(metadata, Mapping) else None
    if name is None:
        yield Mistake(field="metadata.name", rule="is required")
    elif not isinstance(name, str) or _NAME.fullmatch(name) is None:
        rule = (
            "is not a name of 1 to 48 lower-case letters, digits and '-' that starts with a letter"
        )
        yield Mistake(field="metadata.name", rule=rule, value=shown(name))


def _server_is_not_chosen(spec: Spec) -> Iterator[Mistake]:
    if (spec.model.handler is None) == (spec.model.protocol is None):
        yield Mistake(field="spec.model", rule="needs exactly one of handler and protocol")


def _own_container_lacks_its_image(spec: Spec) -> Iterator[Mistake]:
    if spec.model.protocol is not None and spec.model.image is None:
        yield Mistake(field="spec.model.image", rule="is required with protocol")


def _handler_has_fields_of_an_own_container(spec: Spec) -> Iterator[Mistake]:
    if spec.model.handler is not None and spec.model.port is not None:
        rule = "is only for a container of one's own (protocol)"
        yield Mistake(field="spec.model.port", rule=rule, value=shown(spec.model.port))


def _own_container_has_fields_of_a_handler(spec: Spec) -> Iterator[Mistake]:
    if spec.model.protocol is None:
        return
    if spec.model.source is not None:
        yield Mistake(field="spec.model.source", rule="is only for a handler")
    if spec.model.parameters:
        yield Mistake(field="spec.model.parameters", rule="is only for a handler")


def _source_does_not_fit_the_handler(spec: Spec) -> Iterator[Mistake]:
    if spec.model.handler == "hf" and spec.model.source is None:
        yield Mistake(field="spec.model.source", rule="is required with handler hf")
    if spec.model.handler == "simulated" and spec.model.source is not None:
        yield Mistake(field="spec.model.source", rule="is not used by handler simulated")


def _source_is_not_one(spec: Spec) -> Iterator[Mistake]:
    source = spec.model.source
    if source is None:
        return
    given = [source.path, source.python_package, source.hugging_face]
    if sum(one is not None for one in given) != 1:
        rule = "needs exactly one of path, pythonPackage and huggingFace"
        yield Mistake(field="spec.model.source", rule=rule)


def _queue_cannot_hold_a_batch(spec: Spec) -> Iterator[Mistake]:
    batching = spec.batching
    if batching.max_queue_size is not None and batching.max_queue_size < batching.max_batch_size:
        rule = f"is below maxBatchSize ({batching.max_batch_size}): the queue must hold one batch"
        value = shown(batching.max_queue_size)
        yield Mistake(field="spec.batching.maxQueueSize", rule=rule, value=value)


def _wait_outlasts_the_request(spec: Spec) -> Iterator[Mistake]:
    batching = spec.batching
    if batching.max_wait_milliseconds >= batching.request_timeout_seconds * 1000:
        rule = f"is not below requestTimeoutSeconds ({batching.request_timeout_seconds} s)"
        value = shown(batching.max_wait_milliseconds)
        yield Mistake(field="spec.batching.maxWaitMilliseconds", rule=rule, value=value)


CHECKS: Final[tuple[Callable[[Spec], Iterator[Mistake]], ...]] = (
    _server_is_not_chosen,
    _own_container_lacks_its_image,
    _handler_has_fields_of_an_own_container,
    _own_container_has_fields_of_a_handler,
    _source_does_not_fit_the_handler,
    _source_is_not_one,
    _queue_cannot_hold_a_batch,
    _wait_outlasts_the_request,
)
"""Cross-field rules, each named as the fault it finds, in the order their messages are shown.

None of them is asked about a spec with a field that could not be read."""
