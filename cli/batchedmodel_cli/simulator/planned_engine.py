"""An engine that does what a `StepPlanner` says, in simulated time. `TokenPod` takes it as well."""

from typing import Final, Protocol

from batchedmodel_cli.simulator.token_engine import Call
from batchedmodel_scheduling.engine.giving_way import GivingWay
from batchedmodel_scheduling.engine.step_planner import (
    EngineSequence,
    StepPlan,
    StepSettings,
    load_of,
)
from batchedmodel_scheduling.generation.requests import EngineStep
from batchedmodel_scheduling.latency.step_times import StepCost, StepLoad
from batchedmodel_scheduling.queue.items import NEVER


class Planner(Protocol):
    """Plans steps: `StepPlanner`, and what it is compared with."""

    @property
    def settings(self) -> StepSettings:
        """The bounds of its steps."""
        ...

    def plan(
        self,
        running: list[EngineSequence],
        waiting: list[EngineSequence],
        free_blocks: int,
    ) -> StepPlan:
        """The next step."""
        ...


class PlannedEngine:
    """Calls that run and calls that wait in the engine."""

    def __init__(
        self, planner: Planner, cost: StepCost, *, giving_way: GivingWay | None = None
    ) -> None:
        """`cost`: how long steps take in truth; `giving_way`: by which tenants share it, if so."""
        self._giving_way: Final = giving_way
        self._planner: Final = planner
        self._cost: Final = cost
        self._calls: Final[dict[EngineSequence, Call]] = {}
        self._of: Final[dict[Call, EngineSequence]] = {}
        self.running: Final[list[EngineSequence]] = []
        self.waiting: Final[list[EngineSequence]] = []
        self.free_blocks = planner.settings.blocks
        self.ends_at = NEVER
        self.steps = 0
        self.sequence_seconds = 0.0
        """Sequences that ran, times the seconds of their steps."""
        self.read_tokens = self.given_tokens = self.preempted = 0
        self.moved = self.moved_tokens = 0
        """Sequences that gave way to other tenants, and what was computed of them."""
        self._plan: StepPlan | None = None
        self._load = StepLoad(0, 0, 0)
        self._told = self._ended = 0
        """Sequences that got a token in the last step, and that ended with it."""

    @property
    def cache_usage(self) -> float:
        """The part of the blocks that is in use."""
        return 1.0 - self.free_blocks / self._planner.settings.blocks

    def offer(self, call: Call, now: float) -> None:
        """Have it run as soon as there is a place."""
        one = EngineSequence(
            id=call.number,
            length=call.prompt,
            tenant=call.share.tenant,
            weight=call.share.weight,
        )
        self._calls[one], self._of[call] = call, one
        self.waiting.append(one)
        if self.ends_at == NEVER:
            self.begin(now)

    def drop(self, call: Call) -> None:
        """Its caller has left; its blocks are free at once."""
        if (one := self._of.pop(call, None)) is not None:
            del self._calls[one]
            self._leave(one)

    def begin(self, now: float) -> None:
        """Begin a step if there is anything to do."""
        self._make_way(now)
        plan = self._planner.plan(self.running, list(self.waiting), self.free_blocks)
        for one in plan.preempted:
            self._leave(one)
            one.computed = 0
            self.waiting.insert(0, one)
            self.preempted += 1
        for one in plan.admitted:
            self.waiting.remove(one)
            self.running.append(one)
            self._give_blocks(one, one.length)
        if not plan.parts:
            self._plan, self.ends_at = None, NEVER
            return
        block_tokens = self._planner.settings.block_tokens
        for one, tokens in plan.parts:
            if one.computed + tokens > one.blocks * block_tokens:
                self._give_blocks(one, one.computed + tokens)
        self._load = load_of(plan.parts)
        seconds = self._seconds
        self._plan, self.ends_at = plan, now + seconds
        self.read_tokens += self._load.prefill_tokens
        self.sequence_seconds += seconds * len(self.running)
        self.steps += 1

    def end(self) -> list[Call]:
        """End the step that runs; the calls that got a token. Begin the next one then."""
        assert self._plan is not None, "no step ends that did not begin"
        told, had = list[Call](), len(self._calls)
        settings = self._planner.settings
        longest = settings.blocks * settings.block_tokens
        for one, tokens in self._plan.parts:
            call = self._calls.get(one)
            if call is None:
                continue
            one.computed += tokens
            if one.computed < one.length:
                continue
            one.length += 1
            call.given += 1
            told.append(call)
            if one.length >= longest:
                call.output = call.given  # it has no room to go on
            if call.given >= call.output:
                self.drop(call)
        self.given_tokens += len(told)
        self._told, self._ended = len(told), had - len(self._calls)
        return told

    def report(self) -> EngineStep:
        """What it tells when a step has ended, before the next one begins."""
        here = (*self.running, *self.waiting)
        return EngineStep(
            seconds=self._seconds if self.steps else 0.0,
            running=len(self.running),
            waiting=len(self.waiting),
            free_blocks=self.free_blocks,
            backlog=sum([one.missing for one in here if one.missing > 1]),
            prefill_tokens=self._load.prefill_tokens,
            tokens=self._told,
            ended=self._ended,
        )

    @property
    def _seconds(self) -> float:
        """Of the step that runs."""
        return self._cost.predict(self._load)

    def _make_way(self, now: float) -> None:
        way, settings = self._giving_way, self._planner.settings
        if way is None or not self.waiting:
            return
        self.waiting[:] = way.in_turn(self.waiting, self.running, settings)
        first = self.waiting[0]
        for one in way.to(first, self.running, self.free_blocks, settings, self._cost, now):
            self._leave(one)
            self.moved += 1
            self.moved_tokens += one.computed
            one.moved += 1
            one.computed = 0
            self.waiting.insert(1, one)

    def _give_blocks(self, one: EngineSequence, tokens: int) -> None:
        more = max(0, self._planner.settings.blocks_of(tokens) - one.blocks)
        one.blocks += more
        self.free_blocks -= more
        assert self.free_blocks >= 0, "a plan gives no blocks that there are not"

    def _leave(self, one: EngineSequence) -> None:
        self.free_blocks += one.blocks
        one.blocks = 0
        if one in self.running:
            self.running.remove(one)
        elif one in self.waiting:
            self.waiting.remove(one)
