"""One BatchedModel's way from what is there to what is wanted: observe, plan, apply, report.

Called by the workers with a key. It makes no difference why they call.
"""

import logging
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

from batchedmodel_kube.errors import ClusterError, Conflict, Forbidden, Gone, Invalid, Refused
from batchedmodel_operator.conditions import status
from batchedmodel_operator.conditions.events import announcements
from batchedmodel_operator.interfaces import Body, Cluster, Known, Sidecars
from batchedmodel_operator.kinds import FIELD_MANAGER, Kind, child_name
from batchedmodel_operator.observed.memory import Memory
from batchedmodel_operator.observed.state import Key, Model, Observed, after
from batchedmodel_operator.planning.plan import Failure, Plan, plan
from batchedmodel_operator.planning.target import Hold, serves
from batchedmodel_operator.reconcile.apply import Outcome, take
from batchedmodel_operator.reconcile.observe import find, names_taken, observe
from batchedmodel_operator.reconcile.turns import Turns, standing
from batchedmodel_operator.reconcile.work_queue import LONGEST_SPACING_SECONDS
from batchedmodel_operator.render import Images
from batchedmodel_operator.rollout import Cause, Record

_log: Final = logging.getLogger(__name__)
_ENDING_SECONDS: Final = 30.0
"""Between two tries where the namespace is being deleted."""
_UNWRITTEN_SECONDS: Final = 600.0
"""For which no status is written to a manifest that another definition has altered: with any write
the API server loses the fields that it only leaves out until then. An Event tells of it meanwhile.
"""


class Reconciler:
    """Remembers for each BatchedModel what it applied; everything else is in the cache."""

    def __init__(
        self,
        *,
        known: Known,
        cluster: Cluster,
        sidecars: Sidecars,
        images: Images,
        clock: Callable[[], float],
        calendar: Callable[[], datetime],
        turns: Turns[Key],
        look_at: Callable[[Key], None],
        edits_wait: Callable[[Key], float],
    ) -> None:
        """`known`: what there is, as far as watches have told and writes of ours were answered.

        `clock`: monotonic seconds; `calendar`: the time for people, with its zone.

        `look_at`: is told of models whose turn has come. `edits_wait`: for up to how many
        seconds edits of a model wait that come now.
        """
        self._known = known
        self._cluster = cluster
        self._sidecars = sidecars
        self._images = images
        self._clock = clock
        self._calendar = calendar
        self._turns = turns
        self._look_at = look_at
        self._edits_wait = edits_wait
        self._memories: dict[Key, Memory] = {}
        self._ending: dict[Key, tuple[str, int, float]] = {}
        """Uid and generation of those for which nothing can be made any more, and when to try."""
        self._classes: dict[Key, str] = {}
        """The class of each that names one."""

    def of_class(self, name: str) -> tuple[Key, ...]:
        """The BatchedModels that were seen to name this class."""
        return tuple(key for key, named in self._classes.items() if named == name)

    async def reconcile(self, key: Key) -> float | None:
        """Seconds after which to reconcile again at the latest; None when there is nothing left.

        Raises `ClusterError` when something did not succeed and is to be tried again.
        """
        now, memory = self._clock(), self._memories.get(key)
        try:
            model = await find(self._known, self._cluster, key)
        except Forbidden:
            # Whoever takes rights away in one namespace holds up no other.
            self._tell(self._turns.forget(key))
            raise
        self._names(key, "" if model is None else model.class_name)
        if model is None:
            for remembered in (self._memories, self._ending):
                remembered.pop(key, None)
            self._tell(self._turns.forget(key))
            return None
        *ending, again_at = self._ending.get(key, ("", 0, now))
        if ending == [model.uid, model.generation] and now < again_at:
            return again_at - now
        observed = await observe(self._known, self._sidecars, model, memory or Memory(), now)
        try:
            return await self._bring_about(observed, now)
        except ClusterError:
            raise
        except Exception as bug:
            await self._tell_of_bug(observed, bug, now)
            raise

    def _names(self, key: Key, class_name: str) -> None:
        if class_name:
            self._classes[key] = class_name
        else:
            self._classes.pop(key, None)

    async def _bring_about(self, observed: Observed, now: float) -> float:
        """As `reconcile`, once it is known what is there."""
        key = observed.model.key
        try:
            observed, planned, outcome = await self._act(observed, now)
            if planned.unfinished and outcome.failure is None:
                observed, planned, outcome = await self._act(observed, now)
            await self._report(observed, planned, outcome, now)
        except Gone:
            # The namespace or the object itself is being deleted. Its end makes another event.
            if key not in self._ending:
                _log.info("%s: it is being deleted, or its namespace", key, extra=key.fields())
            self._memories.pop(key, None)
            self._tell(self._turns.forget(key))
            model = observed.model
            self._ending[key] = model.uid, model.generation, now + _ENDING_SECONDS
            return _ENDING_SECONDS
        except Conflict:
            self._memories.pop(key, None)
            raise
        if outcome.failure is not None:
            raise outcome.failure.error
        return planned.come_back_after

    async def _act(self, observed: Observed, now: float) -> tuple[Observed, Plan, Outcome]:
        """One plan and its steps; with it what is there afterwards."""
        key = observed.model.key
        planned = self._plan(observed, now)
        if planned.creates and (taken := await names_taken(self._cluster, key, planned.creates)):
            # Without our label it is not in the cache.
            observed = replace(observed, children={**observed.children, **taken})
            planned = self._plan(observed, now)
        if (wait := self._edits_wait(key)) > 0:
            # The status says so until edits are quick again, and brings none of them forward.
            sooner = min(wait + LONGEST_SPACING_SECONDS, planned.come_back_after)
            planned = replace(planned, edits_wait=wait, come_back_after=sooner)
        # Nobody else has asked meanwhile. What it took is written down before it is acted on.
        self._note(key, _begun(observed, planned), planned)
        await self._latch(observed, planned)
        outcome = await take(self._cluster, key, planned)
        for kind, why in observed.unseen.items():
            unknown = Failure(kind=kind, name=child_name(kind, key.name), error=why)
            outcome = replace(outcome, failure=outcome.failure or unknown)
        memory = self._memories[key] = replace(
            observed.memory,
            applied={**observed.memory.applied, **outcome.applied},
            inquiries=planned.inquiries,
        )
        found = after(observed, live=outcome.live, deleted=outcome.deleted, memory=memory)
        return found, planned, outcome

    def _plan(self, observed: Observed, now: float) -> Plan:
        may_begin = self._turns.may_begin(observed.model.key)
        return plan(observed, self._images, now, self._calendar(), may_begin=may_begin)

    def _note(self, key: Key, found: Body, planned: Plan) -> None:
        waits = planned.pending is not None and planned.pending.hold is Hold.TURN
        stands = standing(found)
        if stands.failed and not self._turns.is_failed(key):
            _log.warning(
                "%s: it failed, so no other model follows the operator or a class until it serves",
                key,
                extra=key.fields(),
            )
        self._tell(self._turns.note(key, stands, waits=waits))

    def _tell(self, keys: Iterable[Key]) -> None:
        for key in keys:
            self._look_at(key)

    async def _latch(self, observed: Observed, planned: Plan) -> None:
        """Write down what must not be tried again, before it is acted on.

        The pods that failed are gone soon after. Another operator that went on from there without
        the record would try the same revision again.
        """
        model, decided = observed.model, planned.rollout
        lasting = decided.latched or decided.fault or decided.cause is not Cause.EDIT
        if decided.latches == Record.of(model.status).latches or not lasting:
            return
        # All else still speaks of what was applied before.
        found = status.with_rollout(model.status, decided)
        try:
            await self._write(model, found)
        except ClusterError:
            # It gives its turn back.
            self._note(model.key, model.status, planned)
            raise

    async def _report(
        self, observed: Observed, planned: Plan, outcome: Outcome, now: float
    ) -> None:
        model, at = observed.model, self._at()
        found = status.report(observed, planned, outcome.failure, at=at)
        self._note(model.key, found, planned)
        if status.same(found, model.status):
            return
        altered_at = observed.memory.altered_at
        if altered_at is not None and now < altered_at + _UNWRITTEN_SECONDS:
            if now == altered_at:
                _log.error(
                    "%s: another definition has altered it, or its class",
                    model.key,
                    extra=model.key.fields(),
                )
                await self._announce(observed, found, at, now)
            return
        try:
            await self._write(model, found)
        except Refused as error:
            # Pods matter more than what is said about them.
            _log.error("%s: the status was refused: %s", model.key, error, extra=model.key.fields())
            return
        if planned.pending is not None and planned.pending.hold is Hold.HEALTH and serves(found):
            # Only what is written says so to the next reconcile.
            self._look_at(model.key)
        # After the status, by which the next reconcile tells what has been announced.
        await self._announce(observed, found, at, now)

    async def _write(self, model: Model, found: Body) -> None:
        manifest = status.status_manifest(model, found)
        body = await self._cluster.apply(manifest, manager=FIELD_MANAGER, subresource="status")
        # The cache knows it now, and takes none of the events before it.
        if not status.only(found, model.status, body.get("status") or {}):
            self._look_at(model.key)

    async def _tell_of_bug(self, observed: Observed, bug: Exception, now: float) -> None:
        """Say in the status that the operator has a bug which something of this model's shows."""
        model = observed.model
        why = Invalid(f"the operator fails over something of it: {type(bug).__name__}")
        failure = Failure(kind=Kind.BATCHED_MODEL, name=model.key.name, error=why)
        outcome = Outcome(applied={}, live={}, deleted=frozenset(), failure=failure)
        try:
            await self._report(observed, Plan(rollout=Record.of(model.status)), outcome, now)
        except Exception:
            _log.exception(
                "%s: its status cannot be written either", model.key, extra=model.key.fields()
            )

    async def _announce(self, observed: Observed, found: Body, at: str, now: float) -> None:
        model, memory = observed.model, observed.memory
        events, announced = announcements(
            model, found["conditions"], memory.announced, at=at, now=now
        )
        self._memories[model.key] = replace(memory, announced=announced)
        for event in events:
            try:
                await self._cluster.apply(event, manager=FIELD_MANAGER)
            except ClusterError as error:
                _log.warning(
                    "%s: an event was not taken: %s", model.key, error, extra=model.key.fields()
                )

    def _at(self) -> str:
        return self._calendar().strftime("%Y-%m-%dT%H:%M:%SZ")


def _begun(observed: Observed, planned: Plan) -> Body:
    """A status as far as it tells where a model stands once this plan is acted on."""
    before, decided = observed.model.status, planned.rollout
    told: dict[str, Any] = {"rollout": decided.to_status()}
    if observed.deployment is not None:
        told["desiredReplicas"] = observed.deployment.body["spec"].get("replicas", 1)
    if decided.target == Record.of(before).target:
        # What is applied now is not refused yet.
        past = "Reconciled" if planned.applies else ""
        listed = before.get("conditions") or ()
        told["conditions"] = [one for one in listed if one.get("type") != past]
    return told
