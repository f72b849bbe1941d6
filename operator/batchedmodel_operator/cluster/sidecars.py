"""Asks the sidecars of pods which batch settings they use, how their model's start goes, and which
adapters they have, and by which version of the link they speak with their model server.

Anybody may answer at a pod's address. So an answer that does not fit the question counts as none.
"""

import logging
from collections.abc import Sequence
from dataclasses import replace
from http import HTTPStatus
from typing import Final

from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_contract.lora import AdapterState, adapter_state_from_mapping
from batchedmodel_contract.manifest.adapters import MOST_ITEMS
from batchedmodel_contract.processes import sidecar_api
from batchedmodel_contract.processes.logs import about
from batchedmodel_contract.processes.sidecar_api import ADMIN_PORT
from batchedmodel_kube.admin_client import AdminClient, NoAnswer, OtherPod, Whom
from batchedmodel_kube.object_text import Unreadable, parsed

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

    async def settings_hash(self, address: str, whom: Whom) -> str | None:
        """The hash of the batch settings in force, or None when the pod gives no answer."""
        status, body = await self._get(address, sidecar_api.SETTINGS, whom)
        if status != HTTPStatus.OK:
            return None
        try:
            answer = parsed(body)["hash"]
        except (Unreadable, KeyError, TypeError):
            return None
        return answer if isinstance(answer, str) and len(answer) <= _LONGEST_HASH else None

    async def link_version(self, address: str, whom: Whom) -> int | None:
        """The version of the link that it speaks with its model server, 0 where it tells none."""
        status, body = await self._get(address, sidecar_api.SETTINGS, whom)
        if status != HTTPStatus.OK:
            return None
        try:
            answer = parsed(body).get("link_version", 0)
        except (Unreadable, AttributeError):
            return None
        return answer if isinstance(answer, int) else 0

    async def model_startup(self, address: str, whom: Whom) -> str | None:
        """What the sidecar says of the model's start, or None when the pod gives no answer."""
        status, body = await self._get(address, sidecar_api.MODEL_STARTUP, whom)
        if status not in (HTTPStatus.OK, HTTPStatus.SERVICE_UNAVAILABLE):
            return None
        return body.decode(errors="replace").strip()[:_LONGEST_TEXT]

    async def adapters(self, address: str, whom: Whom) -> Sequence[AdapterState] | None:
        """What the sidecar says of the model's adapters, or None when the pod gives no answer."""
        status, body = await self._get(address, sidecar_api.ADAPTERS, whom)
        if status != HTTPStatus.OK:
            return None
        try:
            told = parsed(body)["adapters"]
            states = [adapter_state_from_mapping(one) for one in told[:_MOST_ADAPTERS]]
        except (Unreadable, InvalidInput, KeyError, TypeError):
            return None
        return [_bounded(state) for state in states if len(state.name) <= _LONGEST_NAME]

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


def _bounded(state: AdapterState) -> AdapterState:
    reason = "".join(one if one.isprintable() else "?" for one in state.reason[:_LONGEST_REASON])
    return replace(state, reason=reason)
