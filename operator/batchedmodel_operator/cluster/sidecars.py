"""Asks the sidecars of pods for their state, each by one request.

Anybody may answer at a pod's address. So an answer that does not fit the question counts as none.
"""

import logging
from collections.abc import Sequence
from dataclasses import replace
from http import HTTPStatus
from typing import Any, Final

from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_contract.lora import AdapterState, adapter_state_from_mapping
from batchedmodel_contract.manifest.adapters import MOST_ITEMS
from batchedmodel_contract.processes import sidecar_api
from batchedmodel_contract.processes.logs import about
from batchedmodel_contract.processes.sidecar_api import ADMIN_PORT
from batchedmodel_kube.admin_client import AdminClient, NoAnswer, OtherPod, Whom
from batchedmodel_kube.object_text import Unreadable, parsed
from batchedmodel_operator.interfaces import SidecarState

_log: Final = logging.getLogger(__name__)
_LARGEST_ANSWER: Final = 262_144
_LONGEST_HASH: Final = 64
_LONGEST_TEXT: Final = 2_048
_LONGEST_REASON: Final = 256
_LONGEST_NAME: Final = 63
_MOST_ADAPTERS: Final = 2 * MOST_ITEMS
"""Versions; of each adapter there may be two for a while."""


class SidecarAdmin:
    """The admin ports of pods, by their addresses."""

    def __init__(self, port: int = ADMIN_PORT) -> None:
        self._client = AdminClient(largest_body=_LARGEST_ANSWER, port=port)

    async def state(self, address: str, whom: Whom) -> SidecarState | None:
        """What the sidecar says of itself, or None when the pod gives no answer."""
        document = _document(*await self._get(address, sidecar_api.SETTINGS, whom))
        settings, link_version = document.get("hash"), document.get("link_version")
        if not isinstance(settings, str) or len(settings) > _LONGEST_HASH:
            return None
        if "startup" not in document:
            # It is of an earlier release: pods keep their sidecar over an upgrade.
            status, body = await self._get(address, sidecar_api.MODEL_STARTUP, whom)
            if status in (HTTPStatus.OK, HTTPStatus.SERVICE_UNAVAILABLE):
                document["startup"] = body.decode(errors="replace")
            document |= _document(*await self._get(address, sidecar_api.ADAPTERS, whom))
        return SidecarState(
            settings_hash=settings,
            link_version=link_version if isinstance(link_version, int) else 0,
            startup=_text(document.get("startup")),
            adapters=_adapters(document.get("adapters")),
        )

    async def _get(self, address: str, path: str, whom: Whom) -> tuple[int | None, bytes]:
        """Status and body of the answer; no status when there is none, or another's."""
        try:
            answer = await self._client.ask(address, path, whom=whom)
        except OtherPod as error:
            _log.warning("dropped: %s", error, extra=about(model=whom.model, pod_uid=whom.pod))
        except NoAnswer:
            pass
        else:
            return answer.status, answer.body
        return None, b""


def _document(status: int | None, body: bytes) -> dict[str, Any]:
    """The JSON object of an answer; empty where there is none."""
    try:
        document = parsed(body) if status == HTTPStatus.OK else None
    except Unreadable:
        return {}
    return document if isinstance(document, dict) else {}


def _text(value: object) -> str | None:
    return value.strip()[:_LONGEST_TEXT] if isinstance(value, str) else None


def _adapters(value: object) -> Sequence[AdapterState] | None:
    if not isinstance(value, list):
        return None
    try:
        states = [adapter_state_from_mapping(one) for one in value[:_MOST_ADAPTERS]]
    except InvalidInput:
        return None
    return [_bounded(state) for state in states if len(state.name) <= _LONGEST_NAME]


def _bounded(state: AdapterState) -> AdapterState:
    reason = "".join(one if one.isprintable() else "?" for one in state.reason[:_LONGEST_REASON])
    return replace(state, reason=reason)
