"""What Prometheus gets of our processes: their own texts, with labels as the chart has it add them.

The texts come from what a process answers with, so a name, a label or a value that no process
tells is in none of them.
"""

import asyncio
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import yaml
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from batchedmodel_autoscaler import model_metrics
from batchedmodel_autoscaler.telemetry import StateCollector, Telemetry
from batchedmodel_contract.manifest.batching import BatchSettings
from batchedmodel_kube import names
from batchedmodel_operator.kinds import Kind
from batchedmodel_operator.probes import Vitals, exposition
from batchedmodel_operator.reconcile.work_queue import Workers, WorkQueue
from support.autoscaler_world import MODEL, busy, fleet, pod
from support.chain import START_SECONDS, Chain, running_chain
from support.chart import CHART
from support.operator_world import World

NAMESPACE: Final = "team"
NAME: Final = "minilm"
_MONITORS: Final = (CHART / "templates" / "pod-monitors.yaml").read_text()
_EMPTY_HISTOGRAM: Final = re.compile(r"^\w+_count 0\.0$", re.MULTILINE)
_GENERATES: Final = {
    "generates": "true",
    "fixedSeconds": "0.03",
    "tokenSeconds": "0.0001",
    "stepSeconds": "0.002",
    "blocks": "256",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One that Prometheus has recorded."""

    name: str
    labels: Mapping[str, str]
    value: float
    grows: bool
    """Whether it counts, as a counter and the parts of a histogram do."""


async def scraped(folder: Path) -> list[Series]:
    """One pod of a model under some load, an autoscaler and an operator."""
    model = {f"__meta_kubernetes_pod_label_{re.sub('[^a-z]', '_', names.NAME_LABEL)}": NAME}
    return [
        *_labelled("models", await _of_a_sidecar(folder), NAMESPACE, "a", model),
        *_labelled("autoscaler", await _of_an_autoscaler(), "system", "autoscaler-0"),
        *_labelled("operator", _of_an_operator(), "system", "operator-0"),
    ]


async def _of_a_sidecar(folder: Path) -> str:
    """Of one whose every answer is later than its target, and which generates text as well."""
    settings = BatchSettings(target_seconds=0.02)
    async with (
        running_chain(
            folder, handler="simulated", parameters=_GENERATES, settings=settings
        ) as chain,
        asyncio.timeout(START_SECONDS),
    ):
        text = ""
        # Whether its timer wakes behind a call depends on when the others came.
        while not text or _EMPTY_HISTOGRAM.search(text):
            await asyncio.gather(*(_rows(chain, length) for length in (1, 5, 8)), _text(chain))
            text = await chain.metrics()
        return text


async def _rows(chain: Chain, length: int) -> None:
    rows = {"name": "x", "datatype": "INT64", "shape": [1, length], "data": [1] * length}
    async with chain.session.post(chain.url(chain.infer_path), json={"inputs": [rows]}) as answer:
        assert answer.status == 200, await answer.text()


async def _text(chain: Chain) -> None:
    asked = {"model": chain.name, "prompt": "hello", "max_tokens": 8, "stream": True}
    async with chain.session.post(chain.url("/v1/completions"), json=asked) as answer:
        assert answer.status == 200, await answer.text()
        assert b"[DONE]" in await answer.read()


async def _of_an_autoscaler() -> str:
    """Of one that knows a model with a busy pod."""
    now = 1000.0
    state = fleet([pod(1)])
    state.model_seen(replace(MODEL, max_replicas=8, conditions=await _conditions()))
    state.answered("uid-1", busy(0.6, queue_length=4, outstanding=8), now)
    registry = CollectorRegistry()
    Telemetry(registry).certificate_ends.set(time.time() + 60 * 86_400)
    registry.register(StateCollector(lambda: state.counts, lambda: True, lambda: 0))
    of_models = await model_metrics.exposition(state, lambda: now)
    return generate_latest(registry).decode() + of_models


async def _conditions() -> tuple[tuple[str, bool], ...]:
    """Those that the operator writes, of a healthy model."""
    world = World()
    await world.settle()
    (model,) = (
        one for (kind, _, _), one in world.cluster.objects.items() if kind == Kind.BATCHED_MODEL
    )
    return tuple((one["type"], one["type"] != "Degraded") for one in model["status"]["conditions"])


async def _nothing(key: str) -> None:
    """Reconciles no key."""


def _of_an_operator() -> str:
    queue = WorkQueue[str](lambda: 0.0, group=lambda key: key, places=1)
    workers = Workers(queue, _nothing, at_most=1, clock=time.monotonic)
    ended = dict.fromkeys(workers.reconciles, 1)
    return exposition(Vitals(leads=True, longest_reconcile_seconds=0.1, keys=1, reconciles=ended))


def _labelled(
    part: str, text: str, namespace: str, pod: str, meta: Mapping[str, str] | None = None
) -> list[Series]:
    """With the labels of a PodMonitor's targets; `meta`: what relabelling may read."""
    target = {"namespace": namespace, "pod": pod}
    for rule in _endpoint(part).get("relabelings", ()):
        (source,) = rule["sourceLabels"]
        target[rule["targetLabel"]] = (meta or {})[source]
    # Where both name a label, the target's wins, unless the PodMonitor says otherwise.
    honours = _endpoint(part).get("honorLabels", False)
    found = []
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            own = {
                name if honours or name not in target else f"exported_{name}": value
                for name, value in sample.labels.items()
            }
            grows = family.type in ("counter", "histogram")
            labels = {**target, **own}
            found.append(Series(name=sample.name, labels=labels, value=sample.value, grows=grows))
    return found


def _endpoint(part: str) -> dict[str, Any]:
    """What the template says of this part alone; that it is rendered so is tested elsewhere."""
    only = re.search(rf'if eq \$part "{part}" }}}}\n(.*?)\{{{{- (?:else|end)', _MONITORS, re.DOTALL)
    found = yaml.safe_load(only[1]) if only else {}
    assert isinstance(found, dict)
    return found


_SELECTOR: Final = re.compile(r"(?<![\w:])(batchedmodel_\w+)(?:\{(.*?)\})?")
_MATCHER: Final = re.compile(r'(\w+)(=~|!=|=)"(.*?)"')


def unseen(query: str, series: list[Series]) -> list[str]:
    """What a query asks for that no series has: metrics, values of a matcher, and labels."""
    missing = []
    grouped = {name for by in re.findall(r"\bby \(([^)]*)\)", query) for name in by.split(", ")}
    for name, matchers in _SELECTOR.findall(query):
        there = [one.labels for one in series if one.name == name]
        missing += [] if there else [name]
        for label, how, value in _MATCHER.findall(matchers):
            known = {labels[label] for labels in there if label in labels}
            missing += [f'{name}{{{label}{how}"{one}"}}' for one in _unmet(how, value, known)]
        missing += [
            f"{name} by {label}" for label in grouped if any(label not in one for one in there)
        ]
    return missing


def _unmet(how: str, value: str, known: set[str]) -> list[str]:
    """Of the values that a matcher names, each of which should be there; of `!=` another one."""
    if how == "!=":
        return [] if known - {value} else [value]
    wanted = value.split("|") if how == "=~" else [value]
    return [one for one in wanted if one not in known]
