"""What an account asked for, by the API server's audit log, and what its roles allow it."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Right:
    """One verb on one sort of object."""

    group: str
    resource: str
    """With its subresource."""
    verb: str

    def __str__(self) -> str:
        return f"{self.verb} {self.resource}{'.' if self.group else ''}{self.group}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What an account has asked for."""

    used: frozenset[Right]
    refused: Sequence[str]
    """What it was told about each request that it had no right to make."""


def asked(log: Path, user: str) -> Asked:
    """All that stands in the log about a user."""
    used: set[Right] = set()
    refused: list[str] = []
    for line in log.read_text().splitlines():
        entry = json.loads(line)
        # Whoever asks which kinds there are is asking about no object.
        if entry["user"]["username"] != user or "objectRef" not in entry:
            continue
        code = (entry.get("responseStatus") or {}).get("code", 0)
        used |= set(_rights(entry, code))
        if code == 403:
            refused.append(f"{entry['verb']} {entry['requestURI']}")
    return Asked(used=frozenset(used), refused=refused)


def granted(rules: Iterable[Mapping[str, Any]]) -> frozenset[Right]:
    """What rules of roles allow."""
    return frozenset(
        Right(group=group, resource=resource, verb=verb)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    )


def _rights(entry: Mapping[str, Any], code: int) -> Iterable[Right]:
    what = entry["objectRef"]
    resource = what["resource"]
    if what.get("subresource"):
        resource += f"/{what['subresource']}"
    yield Right(group=what.get("apiGroup", ""), resource=resource, verb=entry["verb"])
    # An apply or an update that makes the object is asked for the right to do that, too.
    if code == 201 and entry["verb"] in ("patch", "update"):
        yield Right(group=what.get("apiGroup", ""), resource=resource, verb="create")
