"""Draws `parts.svg`: the parts, and a request's way through them."""

from collections.abc import Iterator
from pathlib import Path

from svg import FAINT, arrow, box, picture, rectangle, text


def content() -> str:
    """What the file should hold."""
    title = "The parts of BatchedModel, and the way of a request in six steps"
    return picture(960, 420, title, _parts())


def _parts() -> Iterator[str]:
    yield rectangle(284, 14, 662, 222, fill="#ffffff", line=FAINT)
    yield text(296, 34, "pod", fill=FAINT)
    yield from box(
        304,
        46,
        262,
        174,
        "sidecar",
        "1 admits the request, or refuses it",
        "2 parses the body, tokenises texts",
        "3 waits: the policy forms batches",
        "6 splits the batch's answer",
        "",
        "admin port: metrics, probes, drain",
    )
    yield from box(
        726,
        46,
        206,
        174,
        "model server",
        "4 checks each item",
        "5 pads or packs them, one",
        "forward pass for all; each",
        "has a status of its own",
    )
    yield from box(14, 72, 130, 96, "callers", "OpenAI, v2, v1,", "TEI, Cohere, ...")
    yield arrow(144, 120, 304, 120, both=True)
    yield text(224, 108, "HTTP", anchor="middle")
    yield arrow(566, 120, 726, 120, both=True)
    yield text(646, 108, "one batch", anchor="middle")
    yield text(646, 140, "v2, Unix socket", anchor="middle")
    yield from _control()


def _control() -> Iterator[str]:
    yield from box(14, 318, 130, 82, "HPA", "stock: sizes", "the Deployment")
    yield from box(
        304, 318, 190, 82, "autoscaler", "adds up the offered work", "of all pods of a model"
    )
    yield from box(560, 318, 170, 82, "operator", "turns the manifest", "into objects")
    yield from box(812, 318, 134, 82, "manifest", "kind:", "BatchedModel")
    yield arrow(304, 359, 144, 359)
    yield text(224, 347, "custom.metrics.k8s.io", anchor="middle")
    yield arrow(399, 318, 399, 220)
    yield text(408, 282, "asks every 2 s")
    yield arrow(812, 359, 730, 359)
    yield arrow(645, 318, 645, 236)
    yield text(654, 266, "Deployment, ConfigMap,")
    yield text(654, 285, "Service, HPA")


if __name__ == "__main__":
    Path(__file__).with_suffix(".svg").write_text(content(), "utf-8")
