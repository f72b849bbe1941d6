"""What the next step of an engine computes: tokens of running sequences, and parts of prompts.

One step mixes both, so that no answer waits for another's prompt. As much of prompts is read as the
target for the time between tokens allows, of those with least left first: so a short one does not
wait until a long one is read. The oldest has a quarter for sure. Sequences grow block by block.
Where blocks run out, the least important and newest sequence gives its own back, and is computed
anew later.

A tenant with few tokens to read does not wait for the prompts of another: a step reads its prompts
alone, though not two steps in a row. Where another has many prompts, the next steps are short, also
where no text goes on: the next short prompt waits for the step that runs.

Pure: the engine owns the sequences and the cache, and does what a plan says.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from batchedmodel_scheduling.engine.device_shares import DEFAULT_TOKEN_SECONDS
from batchedmodel_scheduling.latency.step_times import StepCost, StepLoad
from batchedmodel_scheduling.queue.items import NEVER, Priority

_LEAST_PART: Final = 16
"""Tokens of prompts that any step reads, however slow it is: or a first token would never come."""
_AIM: Final = 0.9
"""Of the target for the time between tokens: so long a step is planned, as some take longer."""
_BESIDE_BATCHES: Final = 0.6
"""Of that, where batches want the device as well."""
_PLAIN_STEPS: Final = 2.0
"""Without a target a step with prompts takes as long as so many without, where those are slow."""
_OLDEST: Final = 4
"""Of what a step reads, one part of so many is for the prompt that came first."""
_TIMES_LIGHT: Final = 2.0
"""A tenant is light if another has so many times as many tokens to read, each by its weight."""
_MANY_PROMPTS: Final = 3
"""Of one tenant: where it has as many to read, steps are short for light ones. As many as the
admission lets a flood have there, and more than tenants alike have at a time: for these short steps
would only read less."""
_LONGER: Final = 0.6
"""By so much of a step without prompts is a short step longer than one that reads the light
tenant's prompts alone. A prompt that comes meanwhile waits half of it on average, so its first
token takes less than twice the time, also where steps take somewhat longer than foretold."""
_SHORT_STEPS: Final = 128
"""Steps that are short after each with prompts of a light tenant: one to some seconds, as callers
in a conversation come back by then. Prompts are read at two fifths of the rate meanwhile, or
better."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSettings:
    """The bounds of a step."""

    max_sequences: int
    """That run at once."""
    max_tokens_per_step: int
    """Of prompts and answers together."""
    block_tokens: int
    """Tokens of a block of the cache."""
    blocks: int
    """All that the cache has."""
    token_seconds: float | None = None
    """Target of the time between two tokens of a stream; None: none is set."""

    def __post_init__(self) -> None:
        if min(self.max_sequences, self.block_tokens, self.blocks) < 1:
            raise ValueError("an engine has a sequence, a block and a token in it at least")
        if self.max_tokens_per_step < self.max_sequences:
            raise ValueError("a step has a token of each sequence at least")

    def blocks_of(self, tokens: int) -> int:
        """Blocks that so many tokens take."""
        return -(-tokens // self.block_tokens)

    def holds(self, tokens: int) -> bool:
        """Whether a sequence ever fits, with all that it may be given; else it is refused."""
        return self.blocks_of(tokens) <= self.blocks

    def needed(self, sequences: Iterable["EngineSequence"]) -> int:
        """Blocks that these must get for a token more each."""
        return sum([one.computed >= one.blocks * self.block_tokens for one in sequences])

    def lacks(self, one: "EngineSequence", tokens: int) -> int:
        """Blocks less that are free once it has got all for so many tokens more."""
        return max(0, self.blocks_of(one.computed + tokens) - one.blocks) + one.unused


@dataclass(slots=True, kw_only=True, eq=False)
class EngineSequence:
    """One text as the engine has it."""

    id: int
    length: int
    """Tokens that are known: of its prompt, and of what it was given since."""
    computed: int = 0
    """Of these, the first ones that are in the cache. One that waits may find some there."""
    blocks: int = 0
    """That it holds, or has found."""
    shared: int = 0
    """Of these, the ones that others hold as well, which it does not free."""
    unused: int = 0
    """Of those found, the ones that nobody holds: they count as free until it runs."""
    priority: Priority = Priority.NORMAL
    tenant: str = ""
    """Whose it is."""
    weight: float = 1.0
    """Of its tenant."""
    moved: int = 0
    """How often it gave its place to another tenant."""

    @property
    def missing(self) -> int:
        """Tokens to be computed before the next one comes; one where it only goes on."""
        return self.length - self.computed


class Part(NamedTuple):
    """So many tokens of a sequence are computed; where none is missing then, the next one comes."""

    sequence: EngineSequence
    tokens: int


class StepPlan(NamedTuple):
    """What to do before a step, and what is in it."""

    preempted: tuple[EngineSequence, ...]
    """They give back their blocks and wait, in front of all others."""
    admitted: tuple[EngineSequence, ...]
    """They run from now on, with blocks for all that is known of them."""
    parts: tuple[Part, ...]
    """Nothing of the others is computed."""


def load_of(parts: Iterable[Part]) -> StepLoad:
    """What is in a step with these parts, before it is computed."""
    read = sequences = context = 0
    for one, tokens in parts:
        sequences += 1
        if one.missing > 1:
            read += tokens
        else:
            context += one.computed
    return StepLoad(read, sequences, context)


class StepPlanner:
    """Plans one step after the other."""

    def __init__(self, settings: StepSettings, cost: StepCost) -> None:
        """`cost` may be learnt meanwhile: each plan asks it anew."""
        self.settings: Final = settings
        self._cost: Final = cost
        self._light_tokens = 0
        """Of the light tenants' prompts in the last step that had any."""
        self._short_steps = 0
        """How many of the next steps are short."""
        self._read_light_alone = False
        """Whether the last step did."""

    def plan(
        self,
        running: Sequence[EngineSequence],
        waiting: Iterable[EngineSequence],
        free_blocks: int,
        *,
        batch_waits: bool = False,
    ) -> StepPlan:
        """The next step. `running`: the oldest first; `waiting`: in the order of their turns.

        `batch_waits`: it wants the device too, and has a part of the time between two tokens. Of
        those that wait only as many are looked at as may run, one by one.
        """
        kept, preempted, free = self._kept(running, free_blocks)
        going_on = [one for one in kept if one.length - one.computed == 1]
        parts = [Part(one, 1) for one in going_on]
        free -= self.settings.needed(going_on)
        taken = len(kept)
        prompts = [one for one in kept if one.missing > 1] if len(parts) < len(kept) else []
        known = len(prompts)
        # What gave way just now would only have to again.
        for one in () if preempted else waiting:
            lacks = self.settings.lacks(one, one.missing)
            # A block more for each that runs, or the next steps would end somebody for this one.
            if taken >= self.settings.max_sequences or lacks + taken > free:
                break
            prompts.append(one)
            taken += 1
            free -= lacks
        to_read = self._turn(prompts)
        left = self._prefill_tokens(parts, batch_waits=batch_waits) if prompts else 0
        read = self._read(to_read, left)
        parts += [Part(one, read[one]) for one in prompts if one in read]
        admitted = [one for one in prompts[known:] if one in read]
        return StepPlan(tuple(preempted), tuple(admitted), tuple(parts))

    def _turn(self, prompts: Sequence[EngineSequence]) -> Sequence[EngineSequence]:
        """Those of these that the step may read."""
        self._short_steps = max(0, self._short_steps - 1)
        light = _of_light_tenants(prompts)
        if light:
            self._light_tokens = sum([one.missing for one in light])
            tenants = {one.tenant for one in light}
            others = Counter([one.tenant for one in prompts if one.tenant not in tenants])
            if max(others.values()) >= _MANY_PROMPTS:
                self._short_steps = _SHORT_STEPS
        self._read_light_alone = bool(light) and not self._read_light_alone
        return light if self._read_light_alone else prompts

    def _read(self, prompts: Sequence[EngineSequence], left: int) -> dict[EngineSequence, int]:
        """How much is read of each of these, the oldest of which is first."""
        if not prompts or left <= 0:
            return {}
        beside = 0 if self.settings.token_seconds is None else self._cost.prefill_beside()
        read = {prompts[0]: min(prompts[0].missing, -(-left // _OLDEST))}
        left -= read[prompts[0]]
        for one in sorted(prompts, key=lambda one: one.missing):
            before = read.get(one, 0)
            tokens = min(one.missing - before, left if before else left - beside)
            if tokens > 0:
                read[one] = before + tokens
                left -= tokens if before else tokens + beside
        return read

    def _kept(
        self, running: Sequence[EngineSequence], free: int
    ) -> tuple[list[EngineSequence], list[EngineSequence], int]:
        """Those that go on, those that give way to them, and the blocks that are free then."""
        kept, preempted = list(running), []
        needed = self.settings.needed(kept)
        while needed > free and len(kept) > 1:
            # The newest of those that matter least; the oldest goes on, so something ever ends.
            index = max(range(1, len(kept)), key=lambda at: (kept[at].priority, at))
            one = kept.pop(index)
            preempted.append(one)
            needed -= self.settings.lacks(one, 1)
            free += one.blocks - one.shared
        return kept, preempted, free

    def _prefill_tokens(self, parts: Sequence[Part], *, batch_waits: bool) -> int:
        """Tokens of prompts that may be read beside these."""
        settings, cost = self.settings, self._cost
        most = settings.max_tokens_per_step - len(parts)
        if not parts and not self._short_steps:
            return most
        sequences, context = len(parts) + 1, sum([one.computed for one, _ in parts])
        share = _BESIDE_BATCHES if batch_waits else 1.0
        plain = cost.predict(StepLoad(0, sequences, context))
        if not parts:
            seconds = NEVER
        elif settings.token_seconds is not None:
            seconds = _AIM * share * settings.token_seconds
        else:
            seconds = _AIM * max(share * DEFAULT_TOKEN_SECONDS, _PLAIN_STEPS * plain)
        if self._short_steps:
            light = cost.predict(StepLoad(self._light_tokens, sequences, context))
            seconds = min(seconds, light + _LONGER * plain)
        within = cost.prefill_within(seconds, sequences=sequences, context_tokens=context)
        return int(min(most, max(within, min(most, _LEAST_PART))))


def _of_light_tenants(prompts: Sequence[EngineSequence]) -> list[EngineSequence]:
    """Those whose tenants have at most half of what another has to be read, by weight."""
    if all(one.tenant == prompts[0].tenant for one in prompts):
        return []
    unread: dict[str, float] = {}
    for one in prompts:
        unread[one.tenant] = unread.get(one.tenant, 0.0) + one.missing / one.weight
    most = max(unread.values())
    return [one for one in prompts if _TIMES_LIGHT * unread[one.tenant] <= most]
