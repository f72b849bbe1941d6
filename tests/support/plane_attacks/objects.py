"""Objects that are deep, wide, large or never go."""

import json
from typing import Final

from batchedmodel_kube.names import NAME_LABEL
from support.plane_attacks.aim import Aim, Theme, model, model_text

THEME: Final = Theme(name="objects")
_DEEP: Final = 4_000
_SPEC_BYTES: Final = 1_300_000
_MOST_OWNERS: Final = 32
_LONGEST_NOTES: Final = 131_072
"""Of both, what the chart's policy admits."""


async def _edited_on(aim: Aim, names: list[str], seconds: float) -> None:
    """Each is edited in turn, so that everybody who watches is told all of it again."""
    while not aim.until.is_set():
        for name in names:
            label = {"metadata": {"annotations": {"edit": str(aim.number())}}}
            await aim.change("batchedmodels", name, label)
            await aim.rest(seconds)


@THEME.attack(1)
async def nested_brackets(aim: Aim) -> None:
    deep = "[" * _DEEP + "]" * _DEEP
    fields = (
        f'"pod":{{"volumes":[{{"name":"odd","x":{deep}}}]}}',
        f'"pod":{{"affinity":{{"x":{deep}}}}}',
        f'"pod":{{"tolerations":[{{"x":{deep}}}]}}',
        f'"autoscaling":{{"maxReplicas":2,"behavior":{{"x":{deep}}}}}',
        f'"pod":{{"initContainers":[{{"name":"odd","x":{deep}}}]}}',
    )
    names = [f"deep-{number}" for number, _ in enumerate(fields)]
    await aim.begins()
    for name, text in zip(names, fields, strict=True):
        await aim.make("batchedmodels", model_text(name, text))
    await _edited_on(aim, names, 0.2)


@THEME.attack(1, 5)
async def brackets_one_by_one(aim: Aim) -> None:
    some = "[[[[0]]]]"
    text = ",".join([some] * len(aim.some(_SPEC_BYTES // (len(some) + 1))))
    await aim.begins()
    await aim.make("batchedmodels", model_text("small", f'"pod":{{"affinity":{{"x":[{text}]}}}}'))
    await _edited_on(aim, ["small"], 0.5)


@THEME.attack(5)
async def wide_lists(aim: Aim) -> None:
    wide = f"[{','.join(['[]'] * len(aim.some(_SPEC_BYTES // 3)))}]"
    names = [f"wide-{number}" for number in aim.some(14)]
    for name in names:
        await aim.make("batchedmodels", model_text(name, f'"pod":{{"affinity":{{"x":{wide}}}}}'))
    await aim.begins()
    await _edited_on(aim, names, 0.5)


@THEME.attack(5)
async def wide_maps(aim: Aim) -> None:
    # Who wrote which key stands in the metadata, too.
    keys = ",".join(f'"k{number}":0' for number in aim.some(20_000))
    text = f'"pod":{{"affinity":{{{keys}}}}}'
    names = [f"keys-{number}" for number in aim.some(4)]
    for name in names:
        await aim.make("batchedmodels", model_text(name, text))
    await aim.begins()
    await _edited_on(aim, names, 0.5)


@THEME.attack(5)
async def many_owners(aim: Aim) -> None:
    owners = [
        {"apiVersion": "v1", "kind": "ConfigMap", "name": f"c{number}", "uid": f"u{number}"}
        for number in range(4_000)
    ]
    await aim.begins()
    while not aim.until.is_set():
        for count in (len(owners), _MOST_OWNERS):
            owned = model(f"owned-{aim.number()}")
            owned["metadata"]["ownerReferences"] = owners[:count]
            await aim.make("batchedmodels", owned)
        await aim.rest(1.0)


@THEME.attack(5)
async def large_texts(aim: Aim) -> None:
    text = {f"V{number}": 'é"\\\n' * 250 for number in range(30)}  # nearly 64 KiB
    names = [f"texts-{number}" for number in aim.some(4)]
    for name in names:
        await aim.make("batchedmodels", model(name, model={"handler": "simulated", "env": text}))
    await aim.begins()
    await _edited_on(aim, names, 1.0)


@THEME.attack()
async def annotations_and_labels_of_the_largest_size(aim: Aim) -> None:
    for length, labels in ((260_000, 800), (_LONGEST_NOTES - 20, 64)):
        large = model("noted")
        large["metadata"]["annotations"] = {"example.com/note": "n" * length}
        large["metadata"]["labels"] = {f"l{number}": "v" * 63 for number in range(labels)}
        await aim.make("batchedmodels", large)
    pod = {"annotations": {f"a{number}": "n" * 900 for number in range(60)}}
    await aim.make("batchedmodels", model("noting", pod=pod))
    await aim.begins()
    await _edited_on(aim, ["noted", "noting"], 0.5)


@THEME.attack()
async def names_of_the_longest(aim: Aim) -> None:
    await aim.begins()
    for length in (46, 47, 48, 49, 63, 253):
        await aim.make("batchedmodels", model(f"n{'x' * (length - 1)}", replicas=1))
    await aim.make("batchedmodels", model("9-digits-first"))
    await aim.rest(60.0)


@THEME.attack()
async def finalizers_that_never_end(aim: Aim) -> None:
    await aim.begins()
    while not aim.until.is_set():
        name = f"stays-{aim.number()}"
        stays = model(name)
        stays["metadata"]["finalizers"] = ["example.com/never"]
        await aim.make("batchedmodels", stays)
        await aim.rest(0.3)
        await aim.drop("batchedmodels", name)


@THEME.attack(5)
async def kept_templates_of_others(aim: Aim) -> None:
    """Large objects that carry the label of a model, which are listed at each look at it."""
    await aim.make("batchedmodels", model("templated"))
    data = json.loads(f"[{','.join(['[[]]'] * len(aim.some(80_000)))}]")
    label = {NAME_LABEL: "templated"}
    for number in aim.some(24):
        metadata = {"name": f"kept-{number}", "labels": label}
        body = {"metadata": metadata, "revision": number, "data": {"template": data}}
        head = {"apiVersion": "apps/v1", "kind": "ControllerRevision"}
        await aim.make("controllerrevisions", head | body)
    await aim.begins()
    while not aim.until.is_set():
        env = {"N": str(aim.number())}
        await aim.change("batchedmodels", "templated", {"spec": {"model": {"env": env}}})
        await aim.rest(1.0)
