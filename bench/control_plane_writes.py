"""What an API server's audit log tells of writes: who wrote what, and when. Pure but for the file.

Called by `control_plane`. All times are the API server's own, so that no two clocks are compared.
"""

import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from batchedmodel_operator.kinds import Kind

CHILDREN: Final = {
    "configmaps": Kind.CONFIG_MAP,
    "services": Kind.SERVICE,
    "deployments": Kind.DEPLOYMENT,
    "horizontalpodautoscalers": Kind.AUTOSCALER,
    "controllerrevisions": Kind.CONTROLLER_REVISION,
}
"""By the resource of the log: those that an edit of everything changes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """A request that writes, answered."""

    at: float
    """Seconds since the epoch."""
    user: str
    verb: str
    resource: str
    subresource: str
    namespace: str
    name: str
    status: int

    @property
    def what(self) -> str:
        """Verb and resource."""
        return f"{self.verb} {self.resource}{'/' if self.subresource else ''}{self.subresource}"


class Log:
    """The file, read on from where it was read last."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0

    def news(self) -> list[Write]:
        """The writes since the last call."""
        with self._path.open("rb") as file:
            file.seek(self._read)
            text = file.read()
        # The last line may be half written.
        whole = text[: text.rfind(b"\n") + 1]
        self._read += len(whole)
        return [write_of(json.loads(line)) for line in whole.splitlines()]


def write_of(entry: Mapping[str, Any]) -> Write:
    """The record of an entry."""
    what = entry.get("objectRef") or {}
    return Write(
        at=datetime.fromisoformat(entry["stageTimestamp"]).timestamp(),
        user=entry["user"]["username"],
        verb=entry["verb"],
        resource=what.get("resource", ""),
        subresource=what.get("subresource", ""),
        namespace=what.get("namespace", ""),
        name=what.get("name", ""),
        status=(entry.get("responseStatus") or {}).get("code", 0),
    )


def counts(writes: Iterable[Write], users: Sequence[str]) -> Counter[str]:
    """How often these users wrote what, Leases aside."""
    return Counter(one.what for one in writes if one.user in users and one.resource != "leases")


def edits_applied(
    writes: Sequence[Write], *, editor: str, operator: str, resource: str
) -> Iterator[float]:
    """For each edit, seconds from its answer to that of the last child's apply.

    Infinite where a child was not written before the next edit of the same model, or at all.
    """
    ordered = sorted(writes, key=lambda one: one.at)
    for number, edit in enumerate(ordered):
        if (edit.user, edit.resource, edit.subresource) != (editor, resource, ""):
            continue
        missing, seconds = set(CHILDREN), math.inf
        for later in ordered[number + 1 :]:
            if _is_of(later, edit) and later.user == operator and 200 <= later.status < 300:
                missing.discard(later.resource)
                if not missing:
                    seconds = later.at - edit.at
                    break
        yield seconds


def _is_of(write: Write, edit: Write) -> bool:
    same = write.name == edit.name or write.name.startswith(f"{edit.name}-")
    return same and write.namespace == edit.namespace and not write.subresource
