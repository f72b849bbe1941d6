"""Sidecars that answer slowly, never, without end, nonsense, or as another."""

from functools import partial
from typing import Final

from support.plane_attacks.aim import Aim, Attack, Theme, model
from support.plane_attacks.node import ready_at
from support.plane_attacks.sidecars import Behaviour

THEME: Final = Theme(name="answers")
_PODS: Final = 18
_MODELS: Final = 2


async def _answering(aim: Aim, *, behaviour: Behaviour) -> None:
    """Pods of a few models whose sidecars behave so; half of them are still to be ready."""
    names = [f"{behaviour}-{number}" for number in range(_MODELS)]
    for name in names:
        await aim.make("batchedmodels", model(name, replicas=_PODS // _MODELS))
    for name in names:
        for number, pod in enumerate(await aim.pods_of(name, _PODS // _MODELS)):
            status = ready_at(aim.addresses[behaviour], ready=number % 2 == 0)
            await aim.report("pods", pod, status)
    await aim.begins()
    while not aim.until.is_set():
        # New settings, of which each sidecar is asked whether it uses them.
        for name in names:
            size = {"maxBatchSize": 1 + aim.number() % 4_000}
            await aim.change("batchedmodels", name, {"spec": {"batching": size}})
        await aim.rest(1.0)


for _one in Behaviour:
    if _one is not Behaviour.STEADY:
        _run = partial(_answering, behaviour=_one)
        THEME.attacks.append(Attack(name=f"sidecars of the kind {_one}", run=_run, rows=(3,)))
