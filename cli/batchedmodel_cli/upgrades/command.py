"""`batchedmodel upgrades`: which models' pods other images would replace, and which keep theirs."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from types import SimpleNamespace
from typing import Any, Final

import click

from batchedmodel_cli import kubectl
from batchedmodel_cli.formatting import aligned
from batchedmodel_cli.simulate.inputs import Refused
from batchedmodel_cli.upgrades.foretell import Effect, Forecast, Images, foretell
from batchedmodel_kube.manifest.model_class import class_name_of
from batchedmodel_kube.manifest.workload import UpgradeMode
from batchedmodel_kube.names import CLASS_KIND, KIND, MANAGED_BY, MANAGED_BY_LABEL

_WRONG: Final = 2
_MEANINGS: Final = {
    Effect.ROLLS: "their pods are replaced, of upgrades.atOnce models at a time",
    Effect.TAKEN_BACK: "pods stay: these images failed there and were taken back",
    Effect.WAITS: "pods stay until the model server's image is known to fit another sidecar",
    Effect.PINNED: "pods stay until their manifest is edited or sidecar.upgrade is Rolling",
    Effect.UP_TO_DATE: "pods have these images",
    Effect.OWN_IMAGES: "manifests name all images",
    Effect.NO_PODS: "no Deployment is there yet",
    Effect.UNREADABLE: "manifest and class break a rule, so pods stay",
}


@click.command(
    epilog="""\b
Examples:
  batchedmodel upgrades --sidecar-image registry/sidecar:1.3 --mode Rolling
  batchedmodel upgrades --model-server-image registry/model-server:1.3 -n team --json""",
    params=[
        click.Option(["--sidecar-image"], metavar="IMAGE", help="The chart's sidecar.image."),
        click.Option(["--model-server-image"], metavar="IMAGE", help="Its modelServer.image."),
        click.Option(
            ["--mode"],
            type=click.Choice([one.value for one in UpgradeMode]),
            default=UpgradeMode.PINNED.value,
            show_default=True,
            help="Its upgrades.mode.",
        ),
        *kubectl.OPTIONS,
        click.Option(["--json"], is_flag=True, help="Print JSON instead of lines."),
    ],
)
def command(**given: object) -> int:
    """Says for each model whether an operator with these images would replace its pods.

    It reads all BatchedModels (with --namespace those of one), their classes and Deployments with
    kubectl. Nothing is written.
    """
    arguments = SimpleNamespace(**given)
    images = Images(
        sidecar=arguments.sidecar_image,
        model_server=arguments.model_server_image,
        mode=UpgradeMode(arguments.mode),
    )
    try:
        if images.sidecar is None and images.model_server is None:
            raise Refused("--sidecar-image or --model-server-image is missing: what would be new")
        models = _objects(arguments, KIND.lower())
        classes = _objects(arguments, CLASS_KIND.lower()) if any(map(class_name_of, models)) else []
        selector = f"--selector={MANAGED_BY_LABEL}={MANAGED_BY}"
        deployments = _objects(arguments, "deployment", selector)
        failed = any(
            ((m.get("status") or {}).get("rollout") or {}).get("failedRevision") for m in models
        )
        templates = _objects(arguments, "controllerrevision", selector) if failed else []
    except Refused as error:
        print(error, file=sys.stderr)
        return _WRONG
    found = list(foretell(models, classes, deployments, templates, images))
    if arguments.json:
        print(json.dumps([asdict(one) for one in found], indent=2))
    else:
        print("\n".join(_lines(found)))
    return 0


def _objects(arguments: SimpleNamespace, *what: str) -> list[dict[str, Any]]:
    where = () if arguments.namespace is not None else ("--all-namespaces",)
    context, namespace = arguments.context, arguments.namespace
    text = kubectl.run("get", *what, *where, context=context, namespace=namespace, form="json")
    try:
        items: Any = json.loads(text)["items"]
        if all(isinstance(one["metadata"]["name"], str) for one in items):
            return list(items)
    except (ValueError, TypeError, LookupError, RecursionError):
        pass
    raise Refused(f"kubectl get {what[0]}: what it printed is no list of objects")


def _lines(found: Sequence[Forecast]) -> list[str]:
    if not found:
        return ["there are no BatchedModels"]
    rows = [("NAMESPACE", "NAME", "PODS", "EFFECT", "IMAGES")]
    for one in found:
        images = ", ".join(f"{image['from']} -> {image['to']}" for image in one.images)
        rows.append((one.namespace, one.name, str(one.pods), one.effect.value, images))
    counts = Counter(one.effect for one in found)
    told = [(one.value, str(counts[one]), _MEANINGS[one]) for one in Effect if counts[one]]
    why = [f"{one.namespace}/{one.name}: {one.why}" for one in found if one.why]
    return [*aligned(rows, indent=0), "", *aligned(told, indent=0), *(["", *why] if why else [])]
