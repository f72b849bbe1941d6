"""Which adapter a request asks for, by its path, its body and a header."""

from collections.abc import Mapping
from typing import Final

from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_contract.manifest.tenants import Share, TenantSettings, share_for
from batchedmodel_http.request_head import only
from batchedmodel_sidecar.calls import Call
from batchedmodel_sidecar.lora.served import ChosenAdapter, ServedAdapters
from batchedmodel_sidecar.protocols.adapter import Parsed


def named(model: str, *, told: str | None, header: str | None, header_name: str) -> str:
    """The name of the adapter that a request asks for, or of the `model` itself.

    `told`: what its path or its body names. A header counts where that is the model or nothing:
    gateways put it beside whatever their callers say. Raises `InvalidInput` where it names another
    adapter, for one of both is a mistake.
    """
    if header is None or header in ("", model):
        return told or model
    if told in (None, model, header):
        return header
    raise InvalidInput(header_name, f"names another adapter than {told}, which is asked", header)


class AdapterNames:
    """Finds the adapters of requests for one model."""

    def __init__(self, model: str, served: ServedAdapters, header: str) -> None:
        """`header`: its name; empty where the model has no adapters."""
        self._model = model
        self.served: Final = served
        self._header = header

    @property
    def are_known(self) -> bool:
        """Whether the model may have adapters."""
        return bool(self._header)

    def chosen(self, headers: Mapping[str, str], told: str | None) -> ChosenAdapter | None:
        """The adapter of a request; None for the model itself.

        `told`: what its path or its body names. Raises `InvalidInput`, and `Rejected` for what is
        not served, or not at present.
        """
        if self._header:
            header = only(headers, self._header)
            told = named(self._model, told=told, header=header, header_name=self._header)
        return None if told is None else self.served.choose(told)

    def applied(self, headers: Mapping[str, str], path: str | None, parsed: Parsed) -> Parsed:
        """What was read of a body, for the adapter that path, body or headers name; see `chosen`.

        It is the version that is served now, and not when the body began to come.
        """
        chosen = self.chosen(headers, path or parsed.named)
        return parsed if chosen is None else parsed.for_adapter(chosen)


def share_of_call(call: Call, caller: Share, settings: TenantSettings) -> Share:
    """Whose part of the model a call uses, now that it is known what it asks for."""
    name = call.description.name if call.adapter is None else call.adapter.name
    return share_for(name, caller, settings)
