"""An API server in memory, as far as the operator can tell: server-side apply with field owners,
generations, preconditions, defaults and rewritten quantities. Counts what really changed.
"""

import copy
import itertools
import json
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from typing import Any

from batchedmodel_contract.lora import AdapterState
from batchedmodel_kube.admin_client import Whom
from batchedmodel_kube.errors import ClusterError, Conflict
from batchedmodel_kube.names import MANAGED_BY, MANAGED_BY_LABEL, NAME_LABEL
from batchedmodel_operator.cluster.objects import reader_of
from batchedmodel_operator.interfaces import Body, SidecarState
from batchedmodel_operator.kinds import CHILDREN, Kind
from batchedmodel_operator.observed.state import controller_of

Path = tuple[str, ...]
_REPLICAS: Path = ("spec", "replicas")


class FakeCluster:
    """Objects by kind, namespace and name. `writes` counts changes, `reads` requests."""

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str, str], dict[str, Any]] = {}
        self.reads = 0
        self.applies = 0
        """Requests, those that fail included."""
        self.writes = 0
        self.hidden: dict[Kind, ClusterError] = {}
        """Kinds that cannot be listed."""
        self.failures: dict[Kind, ClusterError] = {}
        self.status_failure: ClusterError | None = None
        """What an apply of a kind is answered with."""
        self.annotated: list[str] = []
        """Names of pods, in the order of their annotations."""
        self.before_pods: Callable[[], None] = lambda: None
        """What somebody does while an operator looks, just before it reads the pods."""
        self._owned: dict[tuple[str, str, str], dict[str, dict[Path, Any]]] = {}
        self._numbers = itertools.count(1)

    # What the operator calls.

    def get(self, kind: Kind, namespace: str, name: str) -> Body | None:
        live = self.objects.get((kind, namespace, name))
        return _as_read(kind, live) if live is not None and _is_watched(kind, live) else None

    def owned(
        self, kind: Kind, namespace: str, model: str, owners: Container[str]
    ) -> Sequence[Body]:
        if kind is Kind.POD:
            self.before_pods()
        bodies = [
            _as_read(kind, body)
            for (one, where, _), body in self.objects.items()
            if one == kind
            and where == namespace
            and body["metadata"].get("labels", {}).get(NAME_LABEL) == model
        ]
        return [body for body in bodies if controller_of(body["metadata"]) in owners]

    def unseen(self, namespace: str) -> Mapping[Kind, ClusterError]:
        return self.hidden

    async def read(self, kind: Kind, namespace: str, name: str) -> Body | None:
        self.reads += 1
        live = self.objects.get((kind, namespace, name))
        return None if live is None else _as_read(kind, live)

    async def apply(self, manifest: Body, *, manager: str, subresource: str = "") -> Body:
        self.applies += 1
        kind = Kind(manifest["kind"])
        if subresource and self.status_failure is not None:
            raise self.status_failure
        if not subresource and kind in self.failures:
            raise self.failures[kind]
        sent = copy.deepcopy(dict(manifest))
        metadata = sent["metadata"]
        key = (kind, metadata["namespace"], metadata["name"])
        uid, version = metadata.pop("uid", None), metadata.pop("resourceVersion", None)
        live = self.objects.get(key)
        if uid is not None and (live is None or live["metadata"]["uid"] != uid):
            raise Conflict(f"{kind} {key[2]} is another one")
        if live is not None and version not in (None, live["metadata"]["resourceVersion"]):
            raise Conflict(f"{kind} {key[2]} has changed")
        if live is None:
            live = self.put(sent)
            before = None
        else:
            before = copy.deepcopy(live)
        fields = dict(_leaves(_rewritten(sent)))
        owned = self._owned.setdefault(key, {})
        role = manager + subresource
        for path in set(owned.get(role, {})) - set(fields):
            if not any(path in others for name, others in owned.items() if name != role):
                _remove(live, path)
                if path == _REPLICAS:
                    _set(live, path, 1)
        for path, value in fields.items():
            _set(live, path, value)
            for name, others in owned.items():
                if name != role and others.get(path, value) != value:
                    del others[path]
        owned[role] = fields
        self._changed(key, before)
        return _as_read(kind, live)

    async def delete(self, kind: Kind, namespace: str, name: str, uid: str) -> None:
        live = self.objects.get((kind, namespace, name))
        if live is not None and live["metadata"]["uid"] != uid:
            raise Conflict(f"{kind} {name} is another one")
        self.remove(kind, namespace, name)

    async def annotate(self, pod: str, namespace: str, uid: str, annotation: Body) -> None:
        self.annotated.append(pod)
        self.edit(Kind.POD, namespace, pod, {"metadata": {"annotations": dict(annotation)}})

    # What others do.

    def put(self, body: Body) -> dict[str, Any]:
        """Somebody creates an object."""
        live: dict[str, Any] = _rewritten(copy.deepcopy(dict(body)))
        metadata = live["metadata"]
        number = next(self._numbers)
        metadata.update(uid=f"uid-{number}", resourceVersion=str(number), generation=1)
        if live["kind"] == Kind.DEPLOYMENT:
            live.setdefault("spec", {}).setdefault("replicas", 1)
        if live["kind"] == Kind.SERVICE:
            live.setdefault("spec", {}).setdefault("clusterIP", "10.96.0.9")
        key = (live["kind"], metadata["namespace"], metadata["name"])
        self.objects[key] = live
        self._owned[key] = {}
        self.writes += 1
        return live

    def edit(self, kind: Kind, namespace: str, name: str, change: Body) -> None:
        """Somebody patches an object and so becomes the owner of what he changed."""
        key = (kind, namespace, name)
        live = self.objects[key]
        before = copy.deepcopy(live)
        for path, value in _leaves(change):
            if _get(live, path) != value:
                for fields in self._owned[key].values():
                    fields.pop(path, None)
            _set(live, path, value)
        self._changed(key, before)

    def remove(self, kind: Kind, namespace: str, name: str) -> None:
        """Somebody deletes an object."""
        if self.objects.pop((kind, namespace, name), None) is not None:
            self.writes += 1

    def _changed(self, key: tuple[str, str, str], before: dict[str, Any] | None) -> None:
        live = self.objects[key]
        live["metadata"]["managedFields"] = [
            {"manager": role, "operation": "Apply", "fieldsV1": {"f:spec": {"f:replicas": {}}}}
            for role, fields in self._owned[key].items()
            if _REPLICAS in fields
        ]
        if before is None or _without_marks(before) == _without_marks(live):
            return
        self.writes += 1
        live["metadata"]["resourceVersion"] = str(next(self._numbers))
        if before.get("spec") != live.get("spec"):
            live["metadata"]["generation"] += 1


class FakeSidecars:
    """Answers by address; an address that is missing does not answer."""

    def __init__(self) -> None:
        self.answers: dict[str, str] = {}
        self.asked: list[str] = []
        self.startups: dict[str, str] = {}
        """What is said of the model's start, by address."""
        self.adapters_told: dict[str, list[AdapterState]] = {}
        """What is said of the model's adapters, by address."""
        self.link_versions: dict[str, int] = {}
        """Of the link to the model server, by address; other sidecars tell none."""

    async def state(self, address: str, whom: Whom) -> SidecarState | None:
        self.asked.append(address)
        startup, adapters = self.startups.get(address), self.adapters_told.get(address)
        version = self.link_versions.get(address, 0)
        if address not in self.answers and (startup, adapters, version) == (None, None, 0):
            return None
        return SidecarState(
            settings_hash=self.answers.get(address, ""),
            link_version=version,
            startup=startup,
            adapters=adapters,
        )


def _is_watched(kind: Kind, live: Body) -> bool:
    labels = live["metadata"].get("labels", {})
    return kind not in CHILDREN or labels.get(MANAGED_BY_LABEL) == MANAGED_BY


def _as_read(kind: Kind, live: Body) -> Body:
    return reader_of(kind)(json.dumps(live).encode())


def contains(live: object, wanted: object) -> bool:
    """Whether everything that is wanted stands in the live object."""
    if isinstance(wanted, dict):
        return isinstance(live, dict) and all(
            name in live and contains(live[name], value) for name, value in wanted.items()
        )
    return bool(live == _rewritten(wanted))


def _leaves(value: Body, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    for name, inner in value.items():
        if path == () and name in ("apiVersion", "kind"):
            continue
        if isinstance(inner, dict) and inner:
            yield from _leaves(inner, (*path, name))
        elif (*path, name) not in (("metadata", "name"), ("metadata", "namespace")):
            yield (*path, name), inner


def _rewritten(value: Any) -> Any:
    """As the API server gives back what it was sent."""
    if isinstance(value, dict):
        return {name: _rewritten(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_rewritten(inner) for inner in value]
    if isinstance(value, str) and value.endswith("000m"):
        return value.removesuffix("000m")
    return value


def _get(body: Any, path: Path) -> Any:
    for name in path:
        body = body.get(name) if isinstance(body, dict) else None
    return body


def _set(body: dict[str, Any], path: Path, value: Any) -> None:
    for name in path[:-1]:
        body = body.setdefault(name, {})
    body[path[-1]] = copy.deepcopy(value)


def _remove(body: dict[str, Any], path: Path) -> None:
    for name in path[:-1]:
        body = body.get(name, {})
    body.pop(path[-1], None)


def _without_marks(body: dict[str, Any]) -> dict[str, Any]:
    marks = ("managedFields", "resourceVersion", "generation")
    kept = {name: value for name, value in body["metadata"].items() if name not in marks}
    return {**body, "metadata": kept}
