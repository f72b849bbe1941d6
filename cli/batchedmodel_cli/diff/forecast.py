"""How the same traffic does before and after an edit, by the simulator. Called by `command`."""

import dataclasses
from dataclasses import dataclass

from batchedmodel_cli.diff.dry_run import Outcome
from batchedmodel_cli.diff.effects import Difference
from batchedmodel_cli.simulate.batches import BatchPods
from batchedmodel_cli.simulate.report import notes
from batchedmodel_cli.simulate.study import Outlook, Study
from batchedmodel_cli.simulate.traffic import Traffic
from batchedmodel_contract.inference.profile import Profile
from batchedmodel_kube.manifest.pod_settings import batch_settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One side of the edit; without an outlook there is a reason."""

    device: str
    pods: int
    outlook: Outlook | None
    reason: str = ""
    notes: tuple[str, ...] = ()
    """What limits the figures."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """Both sides."""

    traffic: Traffic
    before: Side
    after: Side


def forecast(
    pods: BatchPods, new_profile: Profile | None, difference: Difference
) -> Forecast | None:
    """Some twenty simulations; None if the edit changes nothing that the simulator knows.

    `pods` have the traffic and the present device's profile. `new_profile` is that of the device
    after the edit; None: it is the same, unless the accelerator is edited.
    """
    before, after = difference.before, difference.after
    if before.pods == after.pods and _simulated(before) == _simulated(after):
        return None
    if new_profile is None and _device(before) == _device(after):
        new_profile = pods.profile
    return Forecast(
        traffic=pods.traffic,
        before=_side(pods, before, pods.profile),
        after=_side(pods, after, new_profile),
    )


def _side(pods: BatchPods, outcome: Outcome, profile: Profile | None) -> Side:
    if profile is None:
        reason = "the profile is of another accelerator; --new-profile names this one's"
        return Side(device="", pods=outcome.pods, outlook=None, reason=reason)
    if not outcome.pods:
        return Side(device=profile.device, pods=0, outlook=None, reason="there are no pods")
    spec = outcome.spec
    pods = dataclasses.replace(pods, profile=profile, upstream=spec.model.protocol is not None)
    return Side(
        device=profile.device,
        pods=outcome.pods,
        outlook=Study(spec=spec, replicas=outcome.pods, pods=pods).outlook(),
        notes=tuple(notes(spec, pods)),
    )


def _simulated(outcome: Outcome) -> tuple[object, ...]:
    spec = outcome.spec
    # It knows rows and batches, and no tokens.
    batched = dataclasses.replace(spec, generation=None)
    return batch_settings(batched), spec.model.protocol, _device(outcome)


def _device(outcome: Outcome) -> tuple[object, ...]:
    accelerator = outcome.spec.accelerator
    return () if accelerator is None else (accelerator.resource, accelerator.count)
