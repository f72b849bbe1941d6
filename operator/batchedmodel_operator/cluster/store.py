"""The operator's cache of all that is BatchedModels' in a cluster, kept right by watches.

Rights follow from `WATCHED`: the chart's rules allow the operator to list and watch these.
"""

import json
import zlib
from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from batchedmodel_kube.client import Collection, path_of
from batchedmodel_kube.errors import ClusterError, Forbidden, Unreachable
from batchedmodel_kube.informer import Cache
from batchedmodel_kube.names import MANAGED_BY, MANAGED_BY_LABEL, NAME_LABEL
from batchedmodel_kube.reading import Object
from batchedmodel_operator.cluster.objects import reader_of
from batchedmodel_operator.interfaces import Body
from batchedmodel_operator.kinds import CHILDREN, RESOURCES, Kind
from batchedmodel_operator.observed.state import Key, controller_of, is_news, keys_of

WATCHED: Final = (
    *(Kind.BATCHED_MODEL, Kind.MODEL_CLASS),
    *CHILDREN,
    *(Kind.CONTROLLER_REVISION, Kind.REPLICA_SET, Kind.POD),
)
_UNLABELLED: Final = frozenset({Kind.BATCHED_MODEL, Kind.MODEL_CLASS})
_MOST_OF_NAMESPACE: Final = 33_554_432
"""Bytes that is kept of one namespace's objects: those of a thousand models are a third of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What a reconcile reads of an object. A later version with an equal record is no news."""

    kind: Kind
    namespace: str
    name: str
    uid: str
    models: tuple[Key, ...]
    """BatchedModels that its changes concern, by its label and its owner."""
    label: str
    """The BatchedModel whose label it has, which is no proof that it is that one's."""
    owner: str
    """Uid of its controller; empty where it has none."""
    awaited: bool
    """Of a BatchedModel: whether its manifest was edited since an operator looked at it."""
    text: bytes
    """Its fields as JSON, compressed."""
    version: str = field(compare=False)

    @classmethod
    def of(cls, kind: Kind, body: Object) -> "Record":
        """Of a body that `reader_of` has read."""
        metadata = dict(body["metadata"])
        version = metadata.pop("resourceVersion", "")
        namespace, name = metadata.get("namespace", ""), metadata["name"]
        is_model = kind is Kind.BATCHED_MODEL
        itself = (Key(namespace=namespace, name=name),)
        text = json.dumps({**body, "metadata": metadata}, separators=(",", ":"))
        return cls(
            kind=kind,
            namespace=namespace,
            name=name,
            uid=metadata["uid"],
            models=itself if is_model else tuple(sorted(keys_of(body))),
            label=(metadata.get("labels") or {}).get(NAME_LABEL, ""),
            owner=controller_of(metadata),
            awaited=is_model and is_news(body),
            text=zlib.compress(text.encode(), 1),
            version=version,
        )

    @property
    def body(self) -> Body:
        """Made anew each time: a caller may change it."""
        body: dict[str, Any] = json.loads(zlib.decompress(self.text))
        body["metadata"]["resourceVersion"] = self.version
        return body


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """A collection that is followed, and its cache."""

    kind: Kind
    namespace: str
    """Empty: all of them."""
    collection: Collection
    cache: Cache[Record]


class Store:
    """All records, by name and by label."""

    def __init__(self, namespaces: Sequence[str], changed: Callable[[Record], None]) -> None:
        """`namespaces`: those whose objects are kept; none means all.

        `changed` hears of each record that is new or has changed, and of each that is no more.
        """
        self._changed = changed
        self._records: dict[str, Record] = {}
        """By uid."""
        self._named: dict[tuple[Kind, str, str], Record] = {}
        self._labelled: dict[tuple[Kind, str, str], dict[str, Record]] = {}
        self._bytes: Counter[str] = Counter()
        """Of records' texts, by namespace."""
        self.watches: Final = tuple(
            self._watch(kind, namespace)
            for kind in WATCHED
            for namespace in (("",) if kind is Kind.MODEL_CLASS else namespaces or ("",))
        )

    def get(self, kind: Kind, namespace: str, name: str) -> Body | None:
        """An object, or None when it is not there."""
        record = self._named.get((kind, namespace, name))
        return None if record is None else record.body

    def owned(
        self, kind: Kind, namespace: str, model: str, owners: Container[str]
    ) -> Sequence[Body]:
        """The objects of a kind with a BatchedModel's label and one of these controllers.

        Anybody in the namespace may make objects with the label: none of theirs is unpacked.
        """
        labelled = self._labelled.get((kind, namespace, model), {})
        return [one.body for one in labelled.values() if one.owner in owners]

    def unseen(self, namespace: str) -> Mapping[Kind, ClusterError]:
        """The kinds of which it is not known what there is, each with the reason.

        Each an error of its own: one that is raised again and again keeps all its tracebacks.
        """
        return {
            watch.kind: _anew(watch.cache.failure)
            for watch in self.watches
            if watch.namespace in ("", namespace)
            and (isinstance(watch.cache.failure, Forbidden) or not watch.cache.complete.is_set())
        }

    def models(self) -> Iterator[Body]:
        """All BatchedModels."""
        return (one.body for one in self._records.values() if one.kind is Kind.BATCHED_MODEL)

    def wrote(self, kind: Kind, body: Body) -> None:
        """What a write of ours was answered with: no watch need have come as far."""
        namespace = body["metadata"].get("namespace", "")
        for watch in self.watches:
            if watch.kind is kind and watch.namespace in ("", namespace):
                watch.cache.wrote(body)

    def _watch(self, kind: Kind, namespace: str) -> Watch:
        resource = RESOURCES[kind]
        collection = Collection(
            path=path_of(resource.group, resource.version, resource.plural, namespace=namespace),
            read=reader_of(kind),
            labels="" if kind in _UNLABELLED else f"{MANAGED_BY_LABEL}={MANAGED_BY}",
            metadata_only=kind is Kind.REPLICA_SET,
            # An operator of some namespaces may have no right to what is the cluster's.
            may_be_closed=bool(namespace) or kind is Kind.MODEL_CLASS,
        )
        cache = Cache(
            partial(self._read, kind), seen=self._seen, gone=self._gone, renewed=self._renewed
        )
        return Watch(kind=kind, namespace=namespace, collection=collection, cache=cache)

    def _read(self, kind: Kind, body: Object) -> Record:
        record = Record.of(kind, body)
        before = self._records.get(record.uid)
        added = len(record.text) - (0 if before is None else len(before.text))
        if self._bytes[record.namespace] + added > _MOST_OF_NAMESPACE:
            raise ValueError(f"its namespace has more than the {_MOST_OF_NAMESPACE} bytes kept")
        return record

    def _seen(self, record: Record) -> None:
        before = self._records.get(record.uid)
        self._keep(record)
        self._changed(record)
        if before is not None and before.models != record.models:
            self._changed(before)

    def _renewed(self, record: Record) -> None:
        self._keep(record)
        if record.awaited:
            # The answer to a write of ours holds an edit, whose own event now comes too late.
            self._changed(record)

    def _gone(self, record: Record) -> None:
        self._forget(record)
        self._changed(record)

    def _keep(self, record: Record) -> None:
        before = self._records.get(record.uid)
        if before is not None:
            self._forget(before)
        self._records[record.uid] = record
        self._bytes[record.namespace] += len(record.text)
        self._named[_name_of(record)] = record
        if record.label:
            self._labelled.setdefault(_label_of(record), {})[record.uid] = record

    def _forget(self, record: Record) -> None:
        record = self._records.pop(record.uid)
        self._bytes[record.namespace] -= len(record.text)
        if not self._bytes[record.namespace]:
            del self._bytes[record.namespace]
        if self._named.get(_name_of(record)) is record:
            # Another one may have the name by now.
            del self._named[_name_of(record)]
        alike = self._labelled.get(_label_of(record), {})
        alike.pop(record.uid, None)
        if not alike:
            self._labelled.pop(_label_of(record), None)


def _anew(failure: ClusterError | None) -> ClusterError:
    return Unreachable("it is not listed yet") if failure is None else type(failure)(*failure.args)


def _name_of(record: Record) -> tuple[Kind, str, str]:
    return record.kind, record.namespace, record.name


def _label_of(record: Record) -> tuple[Kind, str, str]:
    return record.kind, record.namespace, record.label
