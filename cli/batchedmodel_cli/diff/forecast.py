"""How the same traffic fares before and after an edit, by the simulator. Called by `command`."""

from dataclasses import dataclass

from batchedmodel_cli.diff.dry_run import Outcome
from batchedmodel_cli.diff.effects import Difference
from batchedmodel_cli.simulate import inputs, notes
from batchedmodel_cli.simulate.simulator import SimulatedPods
from batchedmodel_cli.simulate.study import Outlook, Question, outlook
from batchedmodel_cli.simulate.traffic import Traffic
from batchedmodel_contract.inference.profile import Profile
from batchedmodel_contract.manifest.batching import BatchSettings
from batchedmodel_contract.manifest.manifest import BatchedModel


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    """What both sides have in common."""

    traffic: Traffic
    profile: Profile
    """Of the device that there is."""
    new_profile: Profile | None
    """Of the device that there will be; None: the same."""
    hand_off_milliseconds: float
    seed: int
    assumed_length: bool
    """Nobody said how long requests are."""


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


def concerns_the_simulator(difference: Difference) -> bool:
    """Whether anything was edited that the simulator knows of."""
    before, after = difference.before, difference.after
    return before.pods != after.pods or _simulated(before) != _simulated(after)


def forecast(
    name: str, simulation: Simulation, difference: Difference, progress: inputs.Progress
) -> Forecast:
    """Some twenty simulations."""
    before, after = difference.before, difference.after
    profile = simulation.new_profile
    if profile is None and _device(before) == _device(after):
        profile = simulation.profile
    return Forecast(
        traffic=simulation.traffic,
        before=_side(name, simulation, before, simulation.profile, progress),
        after=_side(name, simulation, after, profile, progress),
    )


def _side(
    name: str,
    simulation: Simulation,
    outcome: Outcome,
    profile: Profile | None,
    progress: inputs.Progress,
) -> Side:
    if profile is None:
        reason = "the profile is of another accelerator; --new-profile names this one's"
        return Side(device="", pods=outcome.pods, outlook=None, reason=reason)
    if not outcome.pods:
        return Side(device=profile.device, pods=0, outlook=None, reason="there are no pods")
    simulator = SimulatedPods(
        traffic=simulation.traffic,
        pod=inputs.pod(outcome.spec, profile, simulation.hand_off_milliseconds),
        seed=simulation.seed,
        on_run=progress.advance,
    )
    question = Question(
        spec=outcome.spec,
        replicas=outcome.pods,
        longest=simulation.traffic.longest,
        largest_measured=notes.largest_measured(profile),
    )
    found = outlook(question, simulator)
    said = notes.notes(
        BatchedModel(name=name, spec=outcome.spec),
        simulation.traffic,
        profile,
        alone_seconds=simulator.alone_seconds(),
        assumed_length=simulation.assumed_length,
        of_one_pod=False,
    )
    return Side(device=profile.device, pods=outcome.pods, outlook=found, notes=tuple(said))


def _simulated(outcome: Outcome) -> tuple[object, ...]:
    spec = outcome.spec
    return BatchSettings.of(spec.batching), spec.model.protocol, _device(outcome)


def _device(outcome: Outcome) -> tuple[object, ...]:
    accelerator = outcome.spec.accelerator
    return () if accelerator is None else (accelerator.resource, accelerator.count)
