"""Which adapters serve in how many pods: the condition AdaptersLoaded, and the status's list. Pure.

Pods tell of them by their sidecars. In the condition the first case that applies decides.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from batchedmodel_contract.lora import AdapterPhase, AdapterState
from batchedmodel_contract.manifest.adapters import MOST_ITEMS
from batchedmodel_operator.conditions.findings import Finding, Reason, no, unknown, yes
from batchedmodel_operator.conditions.view import View

_LONGEST_REASON: Final = 256
_NAMED: Final = 5
"""Adapters in a sentence."""
_NOT_TOLD: Final = "a pod does not know it yet"

_Told = Mapping[str, Sequence[AdapterState]]
"""By uid of the pod."""


def adapters_loaded(view: View) -> Finding | None:
    """Whether all adapters serve in all pods; None of a model without adapters."""
    spec = view.observed.model.spec
    if spec is None or spec.adapters is None:
        return None
    living, told = view.living, _told(view)
    if not living:
        return unknown(Reason.NO_PODS, "there are no pods to load them")
    if not told:
        return unknown(Reason.NOT_STARTED, "no pod has told of its adapters yet")
    failed, loading = {}, []
    names = _names(view, told)
    for name in names:
        for states in told.values():
            newest = _newest(name, states)
            if newest is None or newest.phase in (AdapterPhase.FETCHING, AdapterPhase.LOADING):
                loading.append(name)
            elif newest.phase is AdapterPhase.FAILED:
                failed[name] = newest.reason
    if failed:
        sentences = [f"{name}: {reason}" for name, reason in failed.items()]
        return no(Reason.ADAPTER_FAILED, _listed(sentences, "; "))
    if loading:
        text = f"not loaded in every pod yet: {_listed(list(dict.fromkeys(loading)), ', ')}"
        return no(Reason.ADAPTERS_LOADING, text)
    if len(told) < len(living):
        text = f"{len(living) - len(told)} of {len(living)} pods have not told of their adapters"
        return unknown(Reason.NOT_STARTED, text)
    text = f"{len(names)} adapters serve in {len(told)} of {len(living)} pods"
    return yes(Reason.ADAPTERS_LOADED, text)


def adapters_status(view: View) -> list[dict[str, Any]]:
    """The status's list: for each adapter in how many pods it serves, and why not in another."""
    told = _told(view)
    return [_entry(name, told) for name in _names(view, told)]


def _entry(name: str, told: _Told) -> dict[str, Any]:
    ready, why = 0, ""
    for states in told.values():
        newest = _newest(name, states)
        ready += any(one.name == name and one.phase is AdapterPhase.READY for one in states)
        why = why or _why_not(newest)
    entry = {"name": name, "readyReplicas": ready, "replicas": len(told)}
    return entry | ({"reason": why[:_LONGEST_REASON]} if why else {})


def _why_not(newest: AdapterState | None) -> str:
    if newest is None:
        return _NOT_TOLD
    if newest.phase is AdapterPhase.READY:
        return ""
    return f"{newest.phase}: {newest.reason}" if newest.reason else str(newest.phase)


def _told(view: View) -> _Told:
    known = view.observed.memory.adapters
    return {pod.uid: known[pod.uid] for pod in view.living if pod.uid in known}


def _names(view: View, told: _Told) -> list[str]:
    """Those of the manifest and those that pods found in a folder, in order."""
    spec = view.observed.model.spec
    items = () if spec is None or spec.adapters is None else spec.adapters.items
    found = {state.name for states in told.values() for state in states}
    return sorted({item.name for item in items} | found)[:MOST_ITEMS]


def _newest(name: str, states: Sequence[AdapterState]) -> AdapterState | None:
    """The last version of an adapter: an older one may serve while this one cannot."""
    own = [state for state in states if state.name == name]
    return max(own, key=lambda state: state.number, default=None)


def _listed(parts: list[str], between: str) -> str:
    more = len(parts) - _NAMED
    return between.join(parts[:_NAMED]) + (f" and {more} more" if more > 0 else "")
